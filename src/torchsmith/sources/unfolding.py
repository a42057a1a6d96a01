"""How far an archive may unfold before it is taken for a bomb.

Source text packs 4 to 20 times, code and its symbols 3 to 10 times; a kilobyte of zeros packed
twice unfolds to a terabyte.
"""

from __future__ import annotations

import tarfile
import zipfile
from typing import IO, Self

# Below this size a ratio proves nothing: a small archive of zeros harms nobody.
_FREE_BYTES = 64 << 20
_TIMES = 200
_PIECE = 1 << 20
# Long names, and extended attributes.
_ABOUT_THE_NEXT = frozenset(
    (
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    )
)
_LONGEST_ABOUT = 1 << 20
# Metadata, and lists of the files of an artifact: torch's RECORD has 1 to 2 MB.
LONGEST_TEXT = 64 << 20


class BombError(ValueError):
    """An artifact that claims to unfold, or unfolds, to far more than any honest one does."""

    def __init__(self) -> None:
        super().__init__("it unpacks to far more than any package does")


def most_bytes(packed: int) -> int:
    """The bytes an artifact of a size may hold."""
    return _TIMES * packed + _FREE_BYTES


class Metered:
    """A stream that counts what comes out of a decompressor and stops at a limit."""

    def __init__(self, stream: IO[bytes], most: int, refusal: Exception) -> None:
        self.stream, self.left, self.refusal = stream, most, refusal

    def read(self, size: int = -1) -> bytes:
        """Read on; one byte past the limit is refused, however many are asked for."""
        most = self.left + 1
        piece = self.stream.read(most if size < 0 else min(size, most))
        self.left -= len(piece)
        if self.left < 0:
            raise self.refusal
        return piece


class Member(tarfile.TarInfo):
    """A member of a tar: what is said about one in front of it is read whole, and has a limit."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header."""
        made = super().frombuf(buf, encoding, errors)
        if made.type in _ABOUT_THE_NEXT and made.size > _LONGEST_ABOUT:
            raise tarfile.ReadError(f"it has a name or an attribute of {made.size} bytes")
        return made


def exhaust(stream: IO[bytes]) -> None:
    """Read to the end: only there does an archive show that it is whole."""
    while stream.read(_PIECE):
        pass


def check_zip(archive: zipfile.ZipFile, packed: int) -> None:
    """Refuse a zip by what its members claim to be; zipfile reads no more of any than that."""
    claimed = sum(info.file_size for info in archive.infolist())
    if claimed > most_bytes(packed):
        raise BombError


def check_member(member: tarfile.TarInfo) -> None:
    """Refuse a file with holes: it may claim any size, and no package has one."""
    if member.issparse():
        raise ValueError(f"{member.name!r} is a sparse file")
