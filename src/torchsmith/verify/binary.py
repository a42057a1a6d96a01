"""Reading shared libraries: what they need, where they look, what they define and take."""

from __future__ import annotations

import ctypes
import io
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any

from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import Section, SymbolTableSection
from msgspec import Struct

from torchsmith.foreign import whole
from torchsmith.verify.fatbin import gpu_code

MAGIC = b"\x7fELF"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_ARM": "armv7l", "EM_386": "i686"}
_FAMILIES = ("GLIBC", "GLIBCXX", "CXXABI")
_EXECUTABLE = 1
# A count in a damaged file may be four milliards, each of them read from the same place.
_MANY = 1 << 20


class Library(Struct, frozen=True):
    """One shared library; `path` is relative to what holds it, with forward slashes.

    `versions` has the newest symbol version it needs of each family, `required` all of them.
    `dynamic` says that it is loaded by a loader, which object files and GPU code are not, and
    `program` that it is started, never loaded by another;
    `strippable` counts the bytes of symbols and debug information that no loader reads. `gpu`
    names the GPUs it has code for; `gpu_unread` says why that cannot be told.
    """

    path: str
    machine: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}
    required: tuple[str, ...] = ()
    dynamic: bool = False
    program: bool = False
    strippable: int = 0
    executable_stack: bool = False
    debug_bytes: int = 0
    size: int = 0
    broken: str = ""
    gpu: tuple[str, ...] = ()
    gpu_unread: str = ""

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.rpartition("/")[2]


def looks_shared(name: str) -> bool:
    """Whether a file's name is one of a shared library: libc10.so, libcudart-1a2b.so.12."""
    last = name.rpartition("/")[2]
    return last.endswith(".so") or ".so." in last


def version_key(text: str) -> tuple[int, ...]:
    """2.17 -> (2, 17), for comparing."""
    return tuple(part for part in map(whole, text.split(".")) if part is not None)


def read_library(path: str, stream: IO[bytes], size: int) -> Library | None:
    """Say what a library is; `None` for what is not ELF (a linker script, a Git LFS pointer)."""
    if stream.read(4) != MAGIC:
        return None
    stream.seek(0)
    try:
        return _read(path, ELFFile(stream), size)
    except Exception as error:
        # Cut short, or not what its first bytes promise: pyelftools then ends as it happens to,
        # with an OverflowError say.
        return Library(path, size=size, broken=str(error) or type(error).__name__)


def _read(path: str, elf: ELFFile, size: int) -> Library:
    needed: list[str] = []
    search: list[str] = []
    soname = ""
    dynamic = interpreted = False
    stack: int | None = None
    ends = 0
    if elf.num_segments() > _MANY or elf.num_sections() > _MANY:
        raise ValueError("it counts more parts than it can have")
    for segment in elf.iter_segments():
        header = segment.header
        if header["p_type"] == "PT_LOAD":
            ends = max(ends, header["p_offset"] + header["p_filesz"])
        elif header["p_type"] == "PT_INTERP":
            interpreted = True
        elif header["p_type"] == "PT_GNU_STACK":
            stack = header["p_flags"]
        elif isinstance(segment, DynamicSegment):
            dynamic = True
            tag: Any  # its attributes are named after what it holds
            for tag in segment.iter_tags():
                kind = tag.entry.d_tag
                if kind == "DT_NEEDED":
                    needed.append(tag.needed)
                elif kind == "DT_SONAME":
                    soname = tag.soname
                elif kind in ("DT_RPATH", "DT_RUNPATH"):
                    text = tag.rpath if kind == "DT_RPATH" else tag.runpath
                    search += [entry for entry in text.split(":") if entry]
    if ends > size:
        raise ValueError(f"its segments reach to byte {ends} and it has {size}")
    machine = MACHINES.get(elf.header["e_machine"], str(elf.header["e_machine"]))
    versions, debug, unread = _sections(elf)
    gpu: tuple[str, ...] = ()
    gpu_unread = ""
    try:
        gpu = gpu_code(elf)
    except ValueError as error:
        gpu_unread = str(error)
    # Without the header the kernel gives x86 an executable stack, and ARM none.
    executable = bool(stack & _EXECUTABLE) if stack is not None else machine == "x86_64"
    return Library(
        path=path,
        machine=machine,
        soname=soname,
        needed=tuple(needed),
        search=tuple(search),
        versions=newest_versions(versions),
        required=versions,
        dynamic=dynamic,
        # Some libraries can be started, too: libc.so.6 tells its version then.
        program=interpreted and not looks_shared(path),
        strippable=debug + unread,
        executable_stack=executable,
        debug_bytes=debug,
        size=size,
        gpu=gpu,
        gpu_unread=gpu_unread,
    )


def _sections(elf: ELFFile) -> tuple[tuple[str, ...], int, int]:
    """Every symbol version needed; the sizes of debug information and of symbols nobody reads."""
    required: set[str] = set()
    debug = symbols = 0
    for section in elf.iter_sections():
        if section.name.startswith((".debug", ".zdebug")):
            debug += int(section.header["sh_size"])
        elif section.name in (".symtab", ".strtab"):
            symbols += int(section.header["sh_size"])
        if not isinstance(section, GNUVerNeedSection):
            continue
        if section.num_versions() > _MANY:
            raise ValueError("it needs more versions than there can be")
        for library, needs in section.iter_versions():
            # The loader is of one piece with the libc that is there.
            if not str(library.name).startswith(("ld-", "ld64.")):
                required.update(need.name for need in needs)
    return tuple(sorted(required)), debug, symbols


def newest_versions(required: Iterable[str]) -> dict[str, str]:
    """The newest version of each family that decides where a library can be loaded."""
    newest: dict[str, str] = {}
    for name in required:
        family, _, version = name.partition("_")
        if family in _FAMILIES and version_key(version) > version_key(newest.get(family, "")):
            newest[family] = version
    return newest


def read_bytes(path: str, content: bytes) -> Library | None:
    """Read a library held in memory."""
    return read_library(path, io.BytesIO(content), len(content))


def read_files(root: Path, paths: Iterable[str]) -> tuple[Library, ...]:
    """Read the libraries among these files below a folder; links are read once."""

    def one(path: str) -> Library | None:
        file = root / path
        try:
            with file.open("rb") as stream:
                return read_library(path, stream, file.stat().st_size)
        except OSError:
            return None

    real = {os.path.realpath(root / path): path for path in sorted(paths, reverse=True)}
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(one, sorted(real.values()))
    return tuple(library for library in found if library is not None)


def below(root: Path, folder: str) -> Iterator[str]:
    """Files below a folder that look like libraries, relative to the root."""
    for base, _, names in os.walk(root / folder):
        for name in names:
            if looks_shared(name):
                yield Path(base, name).relative_to(root).as_posix()


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
