"""From a wheel or a prefix to conda packages: everything is read and described before any is
written.
"""

from __future__ import annotations

import glob
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.host.limits import read_cores
from torchsmith.inputs import one_file
from torchsmith.package.conda.describe import (
    Description,
    describe_tree,
    describe_wheel,
    info_files,
    layout_of,
)
from torchsmith.package.conda.tree import PLACEHOLDER, Entry, entry_of, read_tree
from torchsmith.package.conda.wheel import Contents, lay_out, read_contents
from torchsmith.package.conda.write import EARLIEST, write_package
from torchsmith.package.pack import writing
from torchsmith.plan.conda import CondaSpec

_PREFIX = "@PREFIX@"
_LICENSE_FILE = re.compile(r"(?:licenses/.*|(?:LICEN[CS]E|COPYING|NOTICE)[^/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packed:
    """A package, described, and the files it was written to."""

    described: Description
    files: tuple[Path, ...]


def pack(
    spec: CondaSpec,
    *,
    threads: int | None = None,
    ignore: Sequence[str] = (),
    write: bool = True,
) -> Packed:
    """Pack what a spec describes; without `write`, only say what it would be."""
    if bool(spec.wheel) == bool(spec.tree):
        raise UsageError("a conda package is made of one wheel or one folder", "Name one of them.")
    cores = threads or read_cores()
    output = Path(spec.output)
    if spec.tree:
        described = describe_tree(spec)
        files = _targets(spec, described)
        if write:
            entries = read_tree(Path(spec.tree), prefix=spec.prefix, ignore=ignore, threads=cores)
            _write(spec, described, entries, {}, files, cores)
        return Packed(described, files)
    wheel = one_file(spec.wheel) if glob.has_magic(spec.wheel) else Path(spec.wheel)
    contents = read_contents(wheel)
    layout = layout_of(spec, contents)
    described = describe_wheel(spec, contents, layout)
    files = _targets(spec, described)
    if write:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            # Beside the result, where there has to be room anyway.
            with tempfile.TemporaryDirectory(dir=output, prefix=".conda-") as folder:
                root = Path(folder)
                lay_out(contents, layout, root, prefix=spec.prefix, threads=cores)
                entries = read_tree(root, prefix=spec.prefix, ignore=ignore, threads=cores)
                _write(spec, described, entries, _licenses(contents), files, cores)
    return Packed(described, files)


def _targets(spec: CondaSpec, described: Description) -> tuple[Path, ...]:
    if not re.fullmatch(r"[a-z0-9_.-]+", described.name):
        raise UsageError(
            f"{described.name!r} is not the name of a conda package",
            "Use a-z, 0-9, '_', '.' and '-'.",
        )
    for title, text in (("version", described.version), ("build string", described.build)):
        if not re.fullmatch(r"[A-Za-z0-9_.!+]+", text):
            raise UsageError(
                f"{text!r} is not the {title} of a conda package",
                "Use letters, digits, '_' and '.'.",
            )
    folder = Path(spec.output) / described.subdir
    return tuple(folder / f"{described.stem}.{form}" for form in spec.formats)


def _write(
    spec: CondaSpec,
    described: Description,
    entries: Sequence[Entry],
    licenses: dict[str, bytes],
    files: Sequence[Path],
    threads: int,
) -> None:
    texts = [
        entry_of(path, text.replace(_PREFIX, PLACEHOLDER).encode()) for path, text in spec.texts
    ]
    listed = {entry.path: entry for entry in (*entries, *texts)}
    ordered = [listed[path] for path in sorted(listed)]
    info = info_files(described, ordered)
    info |= {f"recipe/{name}": text.encode() for name, text in spec.record}
    info |= {f"licenses/{name}": content for name, content in licenses.items()}
    for file in files:
        write_package(ordered, info, file, date=described.date or EARLIEST, threads=threads)


def _licenses(contents: Contents) -> dict[str, bytes]:
    start = f"{contents.folder}/"
    with zipfile.ZipFile(contents.wheel.path) as archive:
        return {
            rest.removeprefix("licenses/"): archive.read(name)
            for name in contents.wheel.files
            if name.startswith(start) and _LICENSE_FILE.fullmatch(rest := name.removeprefix(start))
        }
