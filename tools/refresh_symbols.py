"""Refresh the table of what torch's published libraries export, for `torchsmith fits`.

Of every release since 2.1 and both platforms, one wheel's libraries are read in place on PyPI,
by HTTP range requests: one library at a time lies on the disk. What was published never changes:
only releases that the table lacks are read, some 0.7 GB each. All of them are some 20 GB.

    python -m tools.refresh_symbols                  add what is new to the table
    python -m tools.refresh_symbols --all            read all of them again
    python -m tools.refresh_symbols --cache FOLDER   keep each wheel's symbols there, for next time
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import zstandard
from packaging.version import Version
from tools.refresh_pypi import (
    INDEX,
    File,
    RefreshError,
    RemoteFile,
    Web,
    by_release,
    files_of,
    write_atomically,
)

from torchsmith.facts.exports import Build, Exports, Head, exports_in, exports_of
from torchsmith.facts.files import DATA
from torchsmith.verify.binary import read_symbols

TABLE = DATA / "exports.bin"
OLDEST = (2, 1)
PLATFORMS = ("aarch64", "x86_64")
LIBRARIES = frozenset(
    f"torch/lib/lib{name}.so"
    for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_cuda_linalg")
) | {"torch/lib/libtorch_python.so"}
# Read ahead: few requests for a library of a gigabyte, little wasted behind a small one.
AHEAD = 32 << 20

Libraries = dict[str, list[str]]


def chosen(files: Sequence[File], platform: str) -> File | None:
    """Choose the wheel of one platform that is read: of the newest CPython with a GIL."""
    wheels = [
        file
        for file in files
        if file.is_wheel and file.platform == platform and not file.python.endswith("t")
    ]
    return max(wheels, key=lambda file: (int(file.python[3:] or 0), file.name), default=None)


def exports(web: Web, wheel: File) -> Libraries:
    """Read what each of a wheel's libraries defines."""
    found: Libraries = {}
    try:
        with zipfile.ZipFile(io.BufferedReader(RemoteFile(web, wheel.url), AHEAD)) as archive:
            for info in archive.infolist():
                # A CUDA library's names are the same on both platforms: one is enough.
                lent = wheel.platform != PLATFORMS[-1] and "cuda" in info.filename
                if info.filename not in LIBRARIES or lent:
                    continue
                with archive.open(info) as member, tempfile.TemporaryFile() as library:
                    shutil.copyfileobj(member, library, AHEAD)
                    library.seek(0)
                    name = info.filename.rpartition("/")[2]
                    found[name] = sorted(read_symbols(library).defined)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise RefreshError(f"{wheel.url}: not a complete wheel ({error})") from error
    if "libtorch_cpu.so" not in found:
        raise RefreshError(f"{wheel.url}: holds no libtorch_cpu.so")
    return found


def cached(web: Web, wheel: File, folder: Path | None) -> Libraries:
    """The same, from a file of an earlier time where there is one."""
    file = folder / f"{wheel.name}.json.zst" if folder else None
    if file is not None and file.exists():
        known: Libraries = json.loads(zstandard.decompress(file.read_bytes()))
        return known
    found = exports(web, wheel)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(zstandard.compress(json.dumps(found).encode(), 9))
    return found


def with_cuda(
    found: Mapping[tuple[str, str], Libraries], known: Collection[tuple[str, str]] = ()
) -> dict[Build, set[str]]:
    """Join what the libraries of each release and platform export, CUDA's lent to the other.

    `known` are those that were read before: what is lent to them is all that is new.
    """
    joined: dict[Build, set[str]] = {}
    for version in dict.fromkeys(version for version, _ in found):
        lender = found.get((version, PLATFORMS[-1]), {})
        lent = {name: names for name, names in lender.items() if "cuda" in name}
        for platform in PLATFORMS:
            place = (version, platform)
            whole = {**found.get(place, {}), **lent}
            if whole and (place in found or place in known):
                build = Build(version, platform, tuple(sorted(whole)))
                joined[build] = set().union(*whole.values())
    return joined


def joined(old: Exports, new: Exports) -> Exports:
    """Both tables, by release; a build that both know is joined."""
    at: dict[tuple[str, str], Build] = {}
    for item in (*old.builds, *new.builds):
        before = at.get(_place(item))
        libraries = {*item.libraries, *(before.libraries if before else ())}
        at[_place(item)] = Build(item.torch, item.platform, tuple(sorted(libraries)))
    builds = sorted(at.values(), key=lambda item: (Version(item.torch), item.platform))
    bits = {_place(build): 1 << number for number, build in enumerate(builds)}
    known: dict[int, int] = {}
    for table in (old, new):
        moved = [(1 << number, bits[_place(item)]) for number, item in enumerate(table.builds)]
        for mark, exporting in table.marks.items():
            for bit, its in moved:
                if exporting & bit:
                    known[mark] = known.get(mark, 0) | its
    return Exports(builds, known)


def _place(build: Build) -> tuple[str, str]:
    return build.torch, build.platform


def pack(table: Exports) -> bytes:
    """Write a table down; `exports_in` reads it."""
    groups: dict[int, list[int]] = {}
    for mark, builds in table.marks.items():
        groups.setdefault(builds, []).append(mark)
    body = bytearray()
    for _, group in sorted(groups.items()):
        before = 0
        for mark in sorted(group):
            body += _number(mark - before)
            before = mark
    counts = tuple((f"{builds:x}", len(group)) for builds, group in sorted(groups.items()))
    head = msgspec.json.encode(Head(table.builds, counts))
    return zstandard.compress(len(head).to_bytes(4, "big") + head + bytes(body), 19)


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the last byte has no eighth bit."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0: done, 2: it failed and nothing was changed."""
    parser = argparse.ArgumentParser(description="Refresh the table of torch's exported symbols.")
    parser.add_argument("--index", default=INDEX, help="simple index (default: %(default)s)")
    parser.add_argument("--table", type=Path, default=TABLE, help="the file to write")
    parser.add_argument("--cache", type=Path, help="keep each wheel's symbols in this folder")
    parser.add_argument("--jobs", type=int, default=4, help="wheels at a time")
    parser.add_argument("--all", action="store_true", help="read known releases again, too")
    options = parser.parse_args(arguments)
    web = Web()
    try:
        fresh = options.all or not options.table.exists()
        old = exports_of({}) if fresh else exports_in(options.table.read_bytes())
        known = {(item.torch, item.platform) for item in old.builds}
        releases = by_release(files_of(web, options.index, "torch"), OLDEST)
        wheels = {
            (version, platform): wheel
            for version, files in reversed(releases.items())
            for platform in PLATFORMS
            if (version, platform) not in known and (wheel := chosen(files, platform))
        }
        with ThreadPoolExecutor(options.jobs) as pool:
            tables = pool.map(lambda wheel: cached(web, wheel, options.cache), wheels.values())
            found = {}
            for place, table in zip(wheels, tables, strict=True):
                found[place] = table
                total = sum(map(len, table.values()))
                print(*place, f"{total} symbols", file=sys.stderr, flush=True)
        write_atomically(options.table, pack(joined(old, exports_of(with_cuda(found, known)))))
    except (RefreshError, OSError) as error:
        print(f"refresh_symbols: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
