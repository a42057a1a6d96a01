"""Which symbols the libraries of each published torch export.

The table is ``data/exports.bin``, made by ``tools/refresh_symbols.py`` from the wheels on PyPI.
It holds no names, only the first 40 bits of each name's hash: a name that torch never had is
taken for one of its own with a chance of one in two million.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path

import msgspec
import zstandard

from torchsmith.facts.files import DATA

_HASH_BYTES = 5
# What extensions take from torch: its own namespaces, those of two libraries within it, the Python
# binding's functions and the C functions of the stable ABI. MKL's or oneDNN's they do not.
_TORCH = re.compile(
    r"_Z(?:T[IVT])?N[VKRO]*(?:2at|3c10|4c10d|5torch|6caffe2|6fbgemm|4gloo)"
    r"|_Z[0-9]+THP|THP|(?:aoti_)?torch_[a-z]"
)
# Lambdas and names local to a file: their users have them compiled in, and their names change
# with the compiler.
_PASSING = re.compile(r"U[lt](?:(?!U[lt])[A-Za-z0-9_])*?E[0-9]*_|__nv_|_GLOBAL__N_")
_C_FUNCTION = re.compile(r"(?:aoti_)?torch_[a-z0-9_]+$")


class Build(msgspec.Struct, frozen=True):
    """One published wheel: a release for a platform (x86_64), and the libraries it holds."""

    torch: str
    platform: str
    libraries: tuple[str, ...]


class Head(msgspec.Struct, frozen=True):
    """What the file begins with."""

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

    def missing(self, symbols: Iterable[str], build: Build) -> tuple[str, ...]:
        """Those of torch's symbols that this build does not export, sorted."""
        bit = 1 << self.builds.index(build)
        return tuple(sorted(name for name in symbols if not self.marks.get(mark_of(name), 0) & bit))


def mark_of(symbol: str) -> int:
    """The first bits of a name's hash."""
    return int.from_bytes(blake2b(symbol.encode(), digest_size=_HASH_BYTES).digest(), "big")


def exports_of(exported: Mapping[Build, Iterable[str]]) -> Exports:
    """A table of builds whose symbols are at hand."""
    known: dict[int, int] = {}
    for number, names in enumerate(exported.values()):
        for mark in map(mark_of, filter(is_torchs, names)):
            known[mark] = known.get(mark, 0) | 1 << number
    return Exports(tuple(exported), known)


def exports_in(content: bytes) -> Exports:
    """Read a table that `tools/refresh_symbols.py` wrote."""
    plain = zstandard.decompress(content)
    length = int.from_bytes(plain[:4], "big")
    head = msgspec.json.decode(plain[4 : 4 + length], type=Head)
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
