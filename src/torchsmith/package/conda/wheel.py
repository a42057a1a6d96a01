"""Laying out a wheel's files as they lie in a prefix.

https://packaging.python.org/en/latest/specifications/binary-distribution-format/
No byte code: torchsmith's own Python need not be the one the package is for, whose first import
makes it.
"""

from __future__ import annotations

import base64
import calendar
import configparser
import csv
import hashlib
import io
import os
import re
import stat
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from torchsmith.errors import UsageError
from torchsmith.package.conda.tree import PLACEHOLDER
from torchsmith.package.patchelf import Patch, patch
from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.verify.binary import Library
from torchsmith.verify.wheelfile import Wheel, sound_wheel, uses_torch

_EPOCH_OF_ZIP = 1980
_LARGE = 1 << 24
_ENTRY_POINT = """\
#!{python}
import sys

from {module} import {first}

if __name__ == "__main__":
    sys.exit({call}())
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a prefix keeps what; for any Python, the installer decides."""

    python: str = ""

    @property
    def site(self) -> str:
        """The folder of modules."""
        return f"lib/python{self.python}/site-packages" if self.python else "site-packages"

    def place(self, name: str, project: str) -> str:
        """Where a member of a wheel goes."""
        folder, _, rest = name.partition("/")
        if not folder.endswith(".data"):
            return f"{self.site}/{name}"
        scheme, _, path = rest.partition("/")
        homes = {
            "purelib": self.site,
            "platlib": self.site,
            "scripts": self.scripts,
            "headers": f"include/python{self.python}/{project}",
            "data": "",
        }
        if not path or scheme not in homes:
            raise UsageError(
                f"{name}: a wheel has no folder {scheme!r} for data",
                f"There may be {', '.join(homes)}.",
            )
        return f"{homes[scheme]}/{path}".lstrip("/")

    @property
    def scripts(self) -> str:
        """The folder of programs."""
        return "bin" if self.python else "python-scripts"

    def recorded(self, place: str) -> str:
        """A place as RECORD writes it, which is from the folder of modules."""
        if place.startswith(f"{self.site}/"):
            return place.removeprefix(f"{self.site}/")
        return f"../../../{re.sub(f'^{self.scripts}/', 'bin/', place)}"


@dataclass(frozen=True, slots=True)
class Contents:
    """A wheel that was read: what it says, and what conda has to know."""

    wheel: Wheel
    metadata: Message
    folder: str
    entry_points: tuple[str, ...]
    date: int


def read_contents(path: Path) -> Contents:
    """Read a wheel, and refuse what is none."""
    wheel = sound_wheel(path)
    with zipfile.ZipFile(path) as archive:
        folder = wheel.info
        metadata = HeaderParser().parsestr(
            archive.read(f"{folder}/METADATA").decode("utf-8", "replace")
        )
        points = f"{folder}/entry_points.txt"
        text = archive.read(points).decode("utf-8", "replace") if points in wheel.files else ""
        newest = max(info.date_time for info in archive.infolist())
    # A wheel that says the earliest date there is says nothing.
    date = calendar.timegm((*newest, 0, 0, 0)) if newest[0] > _EPOCH_OF_ZIP else 0
    return Contents(wheel, metadata, folder, _entry_points(path, text), date)


def _entry_points(path: Path, text: str) -> tuple[str, ...]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise UsageError(
            f"{path.name}: its entry_points.txt cannot be read: {error}", "Build the wheel again."
        ) from error
    found = []
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            target = value.partition("[")[0].strip()
            if "/" in name or not re.fullmatch(r"[\w.]+:[\w.]+", target):
                raise UsageError(
                    f"{path.name}: the entry point {name} = {value} names no function",
                    "It is written NAME = MODULE:FUNCTION.",
                )
            found.append(f"{name} = {target}")
    return tuple(found)


def lay_out(
    contents: Contents, layout: Layout, root: Path, *, prefix: str = "", threads: int = 1
) -> None:
    """Unpack a wheel into an empty folder, as its files will lie in a prefix."""
    project = contents.wheel.name
    places = {
        name: layout.place(name, project)
        for name in contents.wheel.files
        if not name.endswith(".pyc") and "/__pycache__/" not in name
    }
    if len(set(places.values())) < len(places):
        raise UsageError(
            f"{contents.wheel.path.name} has two files for one place", "Build it again."
        )
    _unpack(contents.wheel.path, {name: root / place for name, place in places.items()}, threads)
    changed = {
        place
        for name, place in places.items()
        if f"{contents.folder.removesuffix('.dist-info')}.data/scripts/" in name
        and _mend_shebang(root / place, layout)
    }
    # For any Python, the installer writes them.
    points = contents.entry_points if layout.python else ()
    written = [_write_entry_point(point, layout, root) for point in points]
    patched = _set_rpaths(contents.wheel.libraries, places, layout, root, threads)
    unstable = {*changed, *written, *_holding(root, places.values(), prefix)}
    _write_record(contents, layout, root, places, written, patched, unstable)


def _unpack(wheel: Path, places: dict[str, Path], threads: int) -> None:
    """Unpack side by side: a handle for each batch, and unpacking holds no lock."""

    def batch(infos: list[zipfile.ZipInfo]) -> None:
        with zipfile.ZipFile(wheel) as archive:
            for info in infos:
                path = places[info.filename]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(info))
                path.chmod(0o755 if info.external_attr >> 16 & stat.S_IXUSR else 0o644)

    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if info.filename in places]
    infos.sort(key=lambda info: -info.file_size)
    large = [[info] for info in infos if info.file_size > _LARGE]
    small = infos[len(large) :]
    with ThreadPoolExecutor(max(1, threads)) as pool:
        list(pool.map(batch, [*large, small]))


def _mend_shebang(path: Path, layout: Layout) -> bool:
    """A script that begins with #!python is for the Python it is installed beside."""
    content = path.read_bytes()
    match = re.match(rb"#!python[w]?(?=\s)", content)
    path.chmod(0o755)
    if match is None:
        return False
    python = _interpreter(layout).encode()
    path.write_bytes(b"#!" + python + content[match.end() :])
    return True


def _interpreter(layout: Layout) -> str:
    return f"{PLACEHOLDER}/bin/python{layout.python}"


def _write_entry_point(point: str, layout: Layout, root: Path) -> str:
    name, _, target = point.partition(" = ")
    module, _, call = target.partition(":")
    place = f"{layout.scripts}/{name}"
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    first = call.partition(".")[0]
    text = _ENTRY_POINT.format(python=_interpreter(layout), module=module, first=first, call=call)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return place


def _set_rpaths(
    libraries: tuple[Library, ...],
    places: dict[str, str],
    layout: Layout,
    root: Path,
    threads: int,
) -> set[str]:
    def one(library: Library) -> str:
        place = places[library.path]
        search = search_path(library, place, layout.site)
        patch(root / place, Patch(search=tuple(search.split(":"))))
        return place

    # What needs no other library looks for none.
    looking = [item for item in libraries if (item.needed or item.search) and item.path in places]
    with ThreadPoolExecutor(max(1, threads)) as pool:
        return set(pool.map(one, looking))


def _holding(root: Path, places: Iterable[str], prefix: str) -> set[str]:
    """Files that will be others once they are installed."""
    if not prefix:
        return set()
    return {place for place in places if prefix.encode() in (root / place).read_bytes()}


def _write_record(
    contents: Contents,
    layout: Layout,
    root: Path,
    places: dict[str, str],
    written: list[str],
    patched: set[str],
    unstable: set[str],
) -> None:
    """RECORD as an installer leaves it: hashes of what is there now, none of what will change."""
    info = f"{layout.site}/{contents.folder}"
    (root / info / "INSTALLER").write_text("conda\n", encoding="utf-8")
    record = f"{info}/RECORD"
    with zipfile.ZipFile(contents.wheel.path) as archive:
        text = archive.read(f"{contents.folder}/RECORD").decode("utf-8", "replace")
    known = {row[0]: row[1:3] for row in csv.reader(io.StringIO(text)) if len(row) > 2}
    rows: list[list[str]] = []
    for name, place in places.items():
        if place in (record, f"{info}/INSTALLER"):
            continue
        marks = _hashed(root / place) if place in patched else known.get(name, ["", ""])
        rows.append([place, *(["", ""] if place in unstable else marks)])
    rows += [[place, "", ""] for place in written]
    rows += [[f"{info}/INSTALLER", *_hashed(root / info / "INSTALLER")], [record, "", ""]]
    for row in rows:
        row[0] = layout.recorded(row[0])
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(sorted(rows))
    (root / record).write_text(out.getvalue(), encoding="utf-8")


def _hashed(path: Path) -> list[str]:
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(len(content))]


_ORIGIN = "$ORIGIN"


def search_path(library: Library, place: str, site: str) -> str:
    """The RPATH of a library at `place` of a prefix whose modules lie in `site`.

    torch's own are those of PyTorch's packages. Any other looks beside itself, where it looked
    before as far as that is in the prefix, for torch's libraries if it needs them, and then among
    the prefix's. Paths of the machine it was built on go.
    """
    folder = PurePosixPath(place).parent
    if folder == PurePosixPath(site, "torch"):
        first = MODULE_RPATH.split(":")
    elif folder == PurePosixPath(site, "torch/lib"):
        first = LIBRARY_RPATH.split(":")
    else:
        first = [_ORIGIN]
        last = [_towards(folder, PurePosixPath("lib"))]
        if uses_torch(library):
            last.insert(0, _towards(folder, PurePosixPath(site, "torch/lib")))
        return ":".join(dict.fromkeys([*first, *_kept(library, folder), *last]))
    return ":".join(dict.fromkeys([*first, *_kept(library, folder)]))


def _kept(library: Library, folder: PurePosixPath) -> list[str]:
    """Where it looked before, as far as that is below the prefix."""
    kept = []
    for entry in library.search:
        plain = entry.replace("${ORIGIN}", _ORIGIN).rstrip("/")
        if plain != _ORIGIN and not plain.startswith(f"{_ORIGIN}/"):
            continue
        inside = os.path.normpath(f"{folder}/{plain.removeprefix(_ORIGIN)}")
        if inside.split("/")[0] != "..":
            kept.append(plain)
    return kept


def _towards(folder: PurePosixPath, other: PurePosixPath) -> str:
    relative = os.path.relpath(other, folder)
    return _ORIGIN if relative == "." else f"{_ORIGIN}/{relative}"
