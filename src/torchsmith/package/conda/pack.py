"""From a wheel or a prefix to conda packages: everything is read and described before any is
written.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.host.limits import read_cores
from torchsmith.package.conda.info import Description, info_files
from torchsmith.package.conda.requirements import (
    conda_depends,
    conda_name,
    conda_versions,
    cuda_of_label,
    public_version,
    system_requirements,
)
from torchsmith.package.conda.tree import PLACEHOLDER, Entry, entry_of, read_tree
from torchsmith.package.conda.wheel import Contents, Layout, lay_out, read_contents
from torchsmith.package.conda.write import EARLIEST, said, write_package
from torchsmith.plan.conda import (
    CondaSpec,
    conda_subdir,
    cuda_requirements,
    python_requirements,
    torch_constraints,
    torch_run_exports,
)
from torchsmith.resolve.naming import conda_build_string

_PREFIX = "@PREFIX@"
_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*['\"](\d+\.\d+)", re.MULTILINE)
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
        raise UsageError("one wheel, or one folder, is packed at a time", "Name one of them.")
    cores = threads or read_cores()
    output = Path(spec.output)
    if spec.tree:
        described = _described_tree(spec)
        files = _targets(spec, described)
        if write:
            entries = read_tree(Path(spec.tree), prefix=spec.prefix, ignore=ignore, threads=cores)
            _write(spec, described, entries, {}, files, cores)
        return Packed(described, files)
    contents = read_contents(_found(spec.wheel))
    layout = Layout("" if _noarch(spec, contents) else _python(spec, contents))
    described = _described_wheel(spec, contents, layout)
    files = _targets(spec, described)
    if write:
        with said(output):
            output.mkdir(parents=True, exist_ok=True)
            # Beside the result, where there has to be room anyway.
            with tempfile.TemporaryDirectory(dir=output, prefix=".conda-") as folder:
                root = Path(folder)
                lay_out(contents, layout, root, prefix=spec.prefix, threads=cores)
                entries = read_tree(root, prefix=spec.prefix, ignore=ignore, threads=cores)
                _write(spec, described, entries, _licenses(contents), files, cores)
    return Packed(described, files)


def _found(pattern: str) -> Path:
    path = Path(pattern)
    if path.exists() or not re.search(r"[*?\[]", pattern):
        return path
    matches = sorted(Path().glob(pattern))
    if len(matches) != 1:
        named = ", ".join(map(str, matches)) or "none"
        raise UsageError(
            f"one wheel was to be packed as {pattern}, and there is {named}",
            "Remove what does not belong there, then run the same command again.",
        )
    return matches[0]


def _targets(spec: CondaSpec, described: Description) -> tuple[Path, ...]:
    if not re.fullmatch(r"[a-z0-9_.-]+", described.name):
        raise UsageError(
            f"{described.name!r} is no name of a conda package", "Use a-z, 0-9, '_', '.' and '-'."
        )
    for title, text in (("version", described.version), ("build string", described.build)):
        if not re.fullmatch(r"[A-Za-z0-9_.!+]+", text):
            raise UsageError(
                f"{text!r} is no {title} of a conda package", "Use letters, digits, '_' and '.'."
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


def _described_tree(spec: CondaSpec) -> Description:
    return Description(
        name=spec.name,
        version=spec.version,
        build=spec.build or str(spec.number),
        subdir=spec.subdir,
        number=spec.number,
        depends=spec.depends,
        constrains=spec.constrains,
        run_exports=spec.run_exports,
        license=spec.license,
        summary=spec.summary,
        home=spec.home,
        date=_source_date(),
        imports=spec.imports,
        commands=spec.commands,
        variant={"target_platform": spec.subdir},
    )


def _source_date() -> int:
    """https://reproducible-builds.org/specs/source-date-epoch/."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(text) if text.isdigit() else 0


def _noarch(spec: CondaSpec, contents: Contents) -> bool:
    """Whether one package will do for every Python and machine."""
    pure = all((tag.abi, tag.platform) == ("none", "any") for tag in contents.wheel.tags)
    return pure and not spec.python and spec.subdir in ("", "noarch")


def _python(spec: CondaSpec, contents: Contents) -> str:
    if spec.python:
        return spec.python
    found = {
        f"{match[1]}.{match[2]}"
        for tag in contents.wheel.tags
        if tag.abi.startswith("cp") and (match := re.fullmatch(r"cp(\d)(\d+)", tag.interpreter))
    }
    if len(found) != 1:
        raise UsageError(
            f"{contents.wheel.path.name} does not say for which Python it is",
            "Say it: --python 3.11.",
        )
    return found.pop()


def _machine(contents: Contents) -> str:
    for tag in contents.wheel.tags:
        for machine in ("x86_64", "aarch64"):
            if tag.platform.endswith(machine):
                return machine
    if any(tag.platform != "any" for tag in contents.wheel.tags):
        raise UsageError(
            f"{contents.wheel.path.name} is not for a machine that torchsmith packs for",
            "It packs for Linux on x86_64 and aarch64.",
        )
    return ""


def _described_wheel(spec: CondaSpec, contents: Contents, layout: Layout) -> Description:
    wheel, metadata = contents.wheel, contents.metadata
    machine = _machine(contents)
    if layout.python and not machine and not spec.subdir:
        raise UsageError(f"{wheel.path.name} is for any Python and machine", "Leave --python out.")
    version = spec.version or public_version(wheel.version)
    label = wheel.version.partition("+")[2]
    cuda = _cuda_of(contents) or cuda_of_label(label)
    python: tuple[str, ...]
    if layout.python:
        python = python_requirements(layout.python)
    else:
        asked = conda_versions_of(metadata.get("Requires-Python", ""))
        python = (f"python {asked}".strip(),)
    subdir = spec.subdir or (conda_subdir(f"linux-{machine}") if layout.python else "noarch")
    system, constrained = system_requirements(wheel.libraries)
    depends = [
        *python,
        *conda_depends(
            wheel.requires, python=layout.python, machine=machine, replaces=dict(spec.replaces)
        ),
        *system,
    ]
    constrains = [*spec.constrains]
    run_exports = spec.run_exports
    if cuda and not any(item.startswith("__cuda") for item in spec.depends):
        toolkit, driver = cuda_requirements(cuda)
        depends.append(driver)
        if wheel.name == "torch":
            depends.append(toolkit)
    if wheel.name == "torch" and not spec.constrains:
        constrains += torch_constraints(version, cuda=bool(cuda))
    if wheel.name == "torch" and not run_exports:
        run_exports = torch_run_exports(version)
    return Description(
        name=spec.name or conda_name(wheel.name),
        version=version,
        build=spec.build or _build(spec, layout, label, cuda, torch=wheel.name == "torch"),
        subdir=subdir,
        number=spec.number,
        depends=_sorted(depends, spec.depends),
        constrains=tuple(sorted({*constrains, *constrained})),
        run_exports=run_exports,
        license=spec.license or _license(contents),
        summary=spec.summary or metadata.get("Summary", ""),
        home=spec.home or metadata.get("Home-page", "") or "",
        date=contents.date or _source_date(),
        imports=spec.imports or _imports(contents),
        commands=spec.commands,
        entry_points=contents.entry_points,
        variant={
            "target_platform": subdir,
            **({"python": layout.python} if layout.python else {}),
            **({"cuda": cuda} if cuda else {}),
        },
    )


def _sorted(found: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """One spec for each package; one that was given stands in place of one that was found."""
    named = {spec.partition(" ")[0]: spec for spec in (*found, *given)}
    return tuple(named[name] for name in sorted(named))


def conda_versions_of(text: str) -> str:
    """'>=3.9,!=3.9.7' -> as conda writes it; what cannot be read asks for nothing."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return conda_versions(SpecifierSet(text))
    except InvalidSpecifier:
        return ""


def _cuda_of(contents: Contents) -> str:
    """The CUDA a torch says it was built with."""
    if contents.wheel.name != "torch" or "torch/version.py" not in contents.wheel.files:
        return ""
    with zipfile.ZipFile(contents.wheel.path) as archive:
        match = _CUDA_OF_TORCH.search(archive.read("torch/version.py").decode("utf-8", "replace"))
    return match[1] if match else ""


def _build(spec: CondaSpec, layout: Layout, label: str, cuda: str, *, torch: bool) -> str:
    if not layout.python:
        return f"pyh_{spec.number}"
    if torch or cuda or label == "cpu":
        return conda_build_string(layout.python, cuda, "", spec.number)
    return f"py{layout.python.replace('.', '')}_{spec.number}"


def _imports(contents: Contents) -> tuple[str, ...]:
    """What a test imports: every module it brings that is not private."""
    return tuple(name for name in contents.wheel.modules if not name.startswith("_"))


def _license(contents: Contents) -> str:
    said = contents.metadata.get("License-Expression") or contents.metadata.get("License") or ""
    # Some write the whole text there.
    return said if "\n" not in said and len(said) < 100 else ""


def _licenses(contents: Contents) -> dict[str, bytes]:
    start = f"{contents.folder}/"
    with zipfile.ZipFile(contents.wheel.path) as archive:
        return {
            rest.removeprefix("licenses/"): archive.read(name)
            for name in contents.wheel.files
            if name.startswith(start) and _LICENSE_FILE.fullmatch(rest := name.removeprefix(start))
        }
