"""Reading which GPU code a shared library holds, where no CUDA is installed.

nvcc puts fat binaries into the section .nv_fatbin, or __nv_relfatbin for code that is linked
apart: one after the other, each a header and entries, an entry for each architecture. Only the
headers are read: libtorch_cuda.so has a gigabyte of them and what they describe.

NVIDIA describes the tools and not the format. The magic number is in its fatbinary_section.h, the
rest was read from what nvcc 13.0 writes; tests/integration/test_fatbin.py holds it against that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

from elftools.elf.elffile import ELFFile

from torchsmith.foreign import whole

MAGIC = 0xBA55ED50
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
# What an entry's kind is called on nvcc's command line: -gencode arch=compute_90,code=sm_90.
KINDS = {1: "compute", 2: "sm", 8: "lto"}
# sm_90a runs on that GPU alone, sm_100f on its family.
_SUFFIXES = {0x10_0000: "a", 0x20_0000: "f"}

# The magic number, a version, the size of this header, the size of what follows.
_HEADER = struct.Struct("<IHHQ")
# Kind, version, the size of this header, the size of what follows; the size before padding,
# the place of options; minor and major version, architecture; the name's place and length; flags.
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_ALIGNMENT = 8


def gpu_code(elf: ELFFile) -> tuple[str, ...]:
    """The architectures there is code for, as nvcc names them: sm_90, compute_80 for PTX.

    Raises ValueError where the section is none that can be read.
    """
    found: set[str] = set()
    for name in SECTIONS:
        section = elf.get_section_by_name(name)
        if section is None or section.header["sh_type"] == "SHT_NOBITS":
            continue
        start = int(section.header["sh_offset"])
        found.update(_entries(elf.stream, start, start + int(section.header["sh_size"]), name))
    return tuple(sorted(found, key=order))


def order(name: str) -> tuple[int, str]:
    """By number, not by letter: sm_90 before sm_100."""
    return whole("".join(filter(str.isdigit, name))) or 0, name


def _entries(stream: IO[bytes], at: int, end: int, name: str) -> Iterator[str]:
    while at + _HEADER.size <= end:
        stream.seek(at)
        magic, _, header, size = _HEADER.unpack(_read(stream, _HEADER.size, name))
        if magic == 0:
            at += _ALIGNMENT  # between two of them, where they came from different files
            continue
        if magic != MAGIC:
            raise ValueError(f"{name} holds something that is not a fat binary")
        if header < _HEADER.size or at + header + size > end:
            raise ValueError(f"{name} is cut short")
        place, at = at + header, at + header + size
        while place < at:
            stream.seek(place)
            kind, _, length, payload, *_, arch, _, _, flags = _ENTRY.unpack(
                _read(stream, _ENTRY.size, name)
            )
            if length < _ENTRY.size or place + length + payload > at:
                raise ValueError(f"an entry of {name} is cut short")
            suffix = "".join(letter for bit, letter in _SUFFIXES.items() if flags & bit)
            yield f"{KINDS.get(kind, f'kind{kind}')}_{arch}{suffix}"
            place += length + payload


def _read(stream: IO[bytes], size: int, name: str) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise ValueError(f"{name} is cut short")
    return content
