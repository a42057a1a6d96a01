"""Reading shared libraries: what they need, where they look, what they were linked against."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

# pyelftools rather than lief: pure Python (nothing to build on an odd platform), typed, a
# seventh of the size, and as quick where only headers are read.
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from msgspec import Struct

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
    `dynamic` says that it is loaded by a loader, which object files and GPU code are not;
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
    return tuple(int(part) for part in text.split(".") if part.isdigit())


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
    dynamic = False
    stack: int | None = None
    ends = 0
    if elf.num_segments() > _MANY or elf.num_sections() > _MANY:
        raise ValueError("it counts more parts than it can have")
    for segment in elf.iter_segments():
        header = segment.header
        if header["p_type"] == "PT_LOAD":
            ends = max(ends, header["p_offset"] + header["p_filesz"])
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
