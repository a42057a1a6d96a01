"""The symbols of a shared library: what it defines for others, what it takes from others."""

from __future__ import annotations

import ctypes
import struct
from functools import cache
from typing import IO

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import Section, SymbolTableSection
from msgspec import Struct

_ENTRY = {64: "IBBHQQ", 32: "IIIBBH"}
_LOCAL, _WEAK = 0, 2
_HIDDEN = (1, 2)
_UNDEFINED = 0


class Symbols(Struct, frozen=True):
    """Names as the loader compares them, C++ ones mangled.

    `needed` are those without which the library is not loaded and that no versioned library
    promises: a weak reference may stay open, and a versioned one (memcpy@GLIBC_2.17) names
    the library it is looked up in.
    """

    defined: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()


def read_symbols(stream: IO[bytes]) -> Symbols:
    """Read the dynamic symbol table; a damaged file ends in an exception of any kind."""
    elf = ELFFile(stream)
    table = elf.get_section_by_name(".dynsym")
    if not isinstance(table, SymbolTableSection):
        return Symbols()
    # Not by pyelftools' objects: a library of torch has 200,000 symbols, which takes it a minute.
    names = table.stringtable.data()
    entries = table.data()
    layout = struct.Struct((">", "<")[elf.little_endian] + _ENTRY[elf.elfclass])
    versioned = _versioned(elf)
    defined: set[str] = set()
    needed: set[str] = set()
    for index, entry in enumerate(
        layout.iter_unpack(entries[: len(entries) // layout.size * layout.size])
    ):
        name, info, other, section = entry[:4] if elf.elfclass == 64 else (entry[0], *entry[3:6])
        bind = info >> 4
        if bind == _LOCAL or not name:
            continue
        text = names[name : names.index(b"\0", name)].decode("utf-8", "replace")
        if section != _UNDEFINED:
            if other & 3 not in _HIDDEN:
                defined.add(text)
        elif bind != _WEAK and index not in versioned:
            needed.add(text)
    return Symbols(frozenset(defined), frozenset(needed))


def _versioned(elf: ELFFile) -> frozenset[int]:
    """Which entries of the symbol table name the version, and so the library, they need."""
    versions: Section | None = elf.get_section_by_name(".gnu.version")
    needs = elf.get_section_by_name(".gnu.version_r")
    if not isinstance(versions, GNUVerSymSection) or not isinstance(needs, GNUVerNeedSection):
        return frozenset()
    numbers = {entry["vna_other"] for _, parts in needs.iter_versions() for entry in parts}
    content = versions.data()
    order = (">", "<")[elf.little_endian]
    found = struct.unpack(f"{order}{len(content) // 2}H", content[: len(content) // 2 * 2])
    return frozenset(index for index, number in enumerate(found) if number in numbers)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        # The result has to be freed, so it must not become bytes on the way.
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.free.argtypes = [ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library


def demangled(symbol: str) -> str:
    """`_ZN3c105Error…` -> `c10::Error…`; empty for a C name, or where there is no C++ library."""
    library = _library() if symbol.startswith("_Z") else None
    if library is None:
        return ""
    status = ctypes.c_int()
    found = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not found:
        return ""
    text = ctypes.string_at(found).decode("utf-8", "replace")
    library.free(found)
    return text
