"""Looking into a static library: the functions it defines, and the GPUs it has code for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from torchsmith import __version__
from torchsmith.errors import VerificationError
from torchsmith.plan.expects import Expects
from torchsmith.verify.binary import MAGIC
from torchsmith.verify.checks import few, holds
from torchsmith.verify.fatbin import gpu_code, order
from torchsmith.verify.report import Report

_ARCHIVE = b"!<arch>\n"
_HEADER_BYTES = 60


def members(stream: IO[bytes]) -> Iterator[bytes]:
    """The object files of an archive, one after the other, as ar(5) has them."""
    if stream.read(len(_ARCHIVE)) != _ARCHIVE:
        raise ValueError("it is not an archive of object files")
    while header := stream.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES or header[58:60] != b"`\n":
            raise ValueError("it is cut short")
        size = int(header[48:58])
        content = stream.read(size)
        if len(content) < size:
            raise ValueError("it is cut short")
        if size % 2:
            stream.read(1)
        # The others are the archive's own tables.
        if content.startswith(MAGIC):
            yield content


def _defined(elf: ELFFile) -> Iterator[str]:
    table = elf.get_section_by_name(".symtab")
    if isinstance(table, SymbolTableSection):
        for symbol in table.iter_symbols():
            info = symbol.entry
            if info.st_shndx != "SHN_UNDEF" and info.st_info.bind != "STB_LOCAL":
                yield symbol.name


def verify_archive(library: Path, expects: Expects) -> Report:
    """Hold a static library against what is expected of it."""
    names: set[str] = set()
    code: set[str] = set()
    objects = 0
    try:
        with library.open("rb") as stream:
            for content in members(stream):
                elf = ELFFile(io.BytesIO(content))
                names.update(_defined(elf))
                code.update(gpu_code(elf))
                objects += 1
    except (OSError, ValueError) as error:
        raise VerificationError(
            f"{library} cannot be read: {error}", "Build it again: torchsmith build --fresh."
        ) from error
    missing = [name for name in expects.symbols if name not in names]
    found = sorted(code, key=order)
    checks = (
        holds("library", "objects", objects > 0, found=str(objects), wanted="some"),
        holds(
            "library",
            "functions",
            not missing,
            found=f"without {few(missing)}" if missing else f"{len(expects.symbols)} looked for",
            wanted="every function that PyTorch calls",
        ),
        holds(
            "GPU code",
            expects.package,
            set(expects.archs) <= code,
            found=" ".join(found) or "none",
            wanted=" ".join(expects.archs),
        ),
    )
    return Report((library.name,), __version__, checks, archs=tuple(found))
