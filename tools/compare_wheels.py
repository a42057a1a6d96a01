"""Say where two archives differ: which files, and what in them.

    python tools/compare_wheels.py ONE.whl OTHER.whl

For wheels, libtorch archives and other zip files. Of a library the sections are named, with the
first bytes that differ: a path there is the usual reason why a build is not reproducible. Ends with
0 if the two are the same, bit for bit.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

_SHOWN = 48
_BEFORE = 16


def differences(one: Path, other: Path) -> Iterator[str]:
    """Lines that say what differs; none if the files are the same."""
    contents = one.read_bytes(), other.read_bytes()
    if contents[0] == contents[1]:
        return
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        left, right = first.namelist(), second.namelist()
        for name in sorted(set(left) ^ set(right)):
            yield f"{name}: only in {(one if name in left else other).name}"
        if sorted(left) == sorted(right) and left != right:
            yield "the files stand in another order"
        found = False
        for name in (name for name in left if name in right):
            lines = list(_member(name, first, second))
            found = found or bool(lines)
            yield from lines
    if not found and left == right:
        yield f"the files are the same, packed in another way (byte {_first(*contents)})"


def _member(name: str, first: zipfile.ZipFile, second: zipfile.ZipFile) -> Iterator[str]:
    infos = first.getinfo(name), second.getinfo(name)
    for what in ("date_time", "external_attr", "compress_type"):
        values = [getattr(info, what) for info in infos]
        if values[0] != values[1]:
            shown = [oct(value >> 16) if what == "external_attr" else value for value in values]
            yield f"{name}: {what} {shown[0]} and {shown[1]}"
    left, right = first.read(name), second.read(name)
    if left != right:
        sections = list(_sections(left, right))
        yield f"{name}: {len(left)} and {len(right)} bytes"
        yield from (f"  {line}" for line in sections or [_around(left, right)])


def _sections(left: bytes, right: bytes) -> Iterator[str]:
    try:
        tables = [
            {
                section.name: section.data()
                for section in ELFFile(io.BytesIO(content)).iter_sections()
            }
            for content in (left, right)
        ]
    except ELFError:
        return
    for name in sorted(set(tables[0]) | set(tables[1])):
        one, other = (table.get(name, b"") for table in tables)
        if one != other:
            yield f"{name}: {len(one)} and {len(other)} bytes, {_around(one, other)}"


def _first(left: bytes, right: bytes) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _around(left: bytes, right: bytes) -> str:
    at = _first(left, right)
    start = max(0, at - _BEFORE)
    shown = [_readable(content[start : start + _SHOWN]) for content in (left, right)]
    return f"from {at:#x} on: {shown[0]} | {shown[1]}"


def _readable(content: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in content)


def main(names: list[str]) -> int:
    """Compare two files, and say with which hash they are the same."""
    if len(names) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    one, other = map(Path, names)
    try:
        found = list(differences(one, other))
    except (OSError, zipfile.BadZipFile) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(found) or f"the same: sha256 {hashlib.sha256(one.read_bytes()).hexdigest()}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
