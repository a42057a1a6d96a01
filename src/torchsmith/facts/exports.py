"""Which symbols the libraries of each published torch export.

The table is ``data/exports.bin``, made by ``tools/refresh_symbols.py`` from the wheels on PyPI.
It holds no names: only the first 40 bits of each name's hash, which for a name that torch never
had are taken by another with a chance of one in two million.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec
import zstandard
from packaging.version import Version

from torchsmith.facts.files import DATA

_HASH_BYTES = 5
# What extensions take from torch: its own namespaces, those of two libraries within it, the Python
# binding's functions and the C functions of the stable ABI. MKL's or oneDNN's they do not.
_TORCH = re.compile(
    r"_Z(?:T[IVT])?N[VKRO]*(?:2at|3c10|4c10d|5torch|6caffe2|6fbgemm|4gloo)"
    r"|_Z[0-9]+THP|THP|(?:aoti_)?torch_[a-z]"
)
# Lambdas and what is in a file of its own: whoever uses them has them compiled in, and their
# names change with the compiler.
_PASSING = re.compile(r"U[lt](?:(?!U[lt])[A-Za-z0-9_])*?E[0-9]*_|__nv_|_GLOBAL__N_")
_C_FUNCTION = re.compile(r"(?:aoti_)?torch_[a-z0-9_]+$")


class Build(msgspec.Struct, frozen=True):
    """One published wheel: a release for a platform (x86_64), and the libraries it holds."""

    torch: str
    platform: str
    libraries: tuple[str, ...]


class _Head(msgspec.Struct, frozen=True):
    builds: tuple[Build, ...]
    # Symbols that the same builds export: which builds, as hexadecimal bits (the first build is
    # the lowest), and how many symbols.
    groups: tuple[tuple[str, int], ...]


def is_torchs(symbol: str) -> bool:
    """Whether torch has to export this symbol, if it is to be found at all."""
    return bool(_TORCH.match(symbol)) and not _PASSING.search(symbol)


def is_stable(symbol: str) -> bool:
    """Whether a symbol belongs to torch's stable ABI: a C function that later releases keep."""
    return bool(_C_FUNCTION.match(symbol))


class Exports:
    """What each of several builds exports.

    `marks` are hashes of names, each with a bit for every build that has it.
    """

    def __init__(self, builds: Sequence[Build], known: Mapping[int, int]) -> None:
        self.builds = tuple(builds)
        self.marks = known

    def and_of(self, exported: Mapping[Build, Iterable[str]]) -> Exports:
        """The same with further builds, by release; one that both know is joined."""
        at = {(item.torch, item.platform): item for item in self.builds}
        symbols = {_place(item): _marks(names) for item, names in exported.items()}
        for item in exported:
            old = at.get(_place(item))
            libraries = {*item.libraries, *(old.libraries if old else ())}
            at[_place(item)] = Build(item.torch, item.platform, tuple(sorted(libraries)))
        builds = tuple(sorted(at.values(), key=lambda item: (Version(item.torch), item.platform)))
        moved = {1 << self.builds.index(old): _place(old) for old in self.builds}
        known: dict[int, int] = {}
        for number, build in enumerate(builds):
            for mark in symbols.get(_place(build), ()):
                known[mark] = known.get(mark, 0) | 1 << number
        places = {_place(build): 1 << number for number, build in enumerate(builds)}
        for mark, bits in self.marks.items():
            for bit, place in moved.items():
                if bits & bit:
                    known[mark] = known.get(mark, 0) | places[place]
        return Exports(builds, known)

    def missing(self, symbols: Iterable[str], build: Build) -> tuple[str, ...]:
        """Those of torch's symbols that this build does not export, sorted."""
        bit = 1 << self.builds.index(build)
        return tuple(sorted(name for name in symbols if not self.marks.get(_mark(name), 0) & bit))


def _mark(symbol: str) -> int:
    return int.from_bytes(blake2b(symbol.encode(), digest_size=_HASH_BYTES).digest(), "big")


def _marks(symbols: Iterable[str]) -> set[int]:
    return set(map(_mark, filter(is_torchs, symbols)))


def _place(build: Build) -> tuple[str, str]:
    return build.torch, build.platform


def exports_of(exported: Mapping[Build, Iterable[str]]) -> Exports:
    """A table of builds whose symbols are at hand."""
    return Exports((), {}).and_of(exported)


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
    head = msgspec.json.encode(_Head(table.builds, counts))
    return zstandard.compress(len(head).to_bytes(4, "big") + head + bytes(body), 19)


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the last byte has no eighth bit."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def exports_in(content: bytes) -> Exports:
    """Read a table that `pack` wrote."""
    plain = zstandard.decompress(content)
    length = int.from_bytes(plain[:4], "big")
    head = msgspec.json.decode(plain[4 : 4 + length], type=_Head)
    numbers: list[int] = []
    value = shift = 0
    for byte in plain[4 + length :]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    known: dict[int, int] = {}
    place = 0
    for builds, count in head.groups:
        mark = 0
        for step in numbers[place : place + count]:
            mark += step
            known[mark] = int(builds, 16)
        place += count
    return Exports(head.builds, known)


@cache
def exports(file: Path = DATA / "exports.bin") -> Exports:
    """The shipped table."""
    return exports_in(file.read_bytes())
