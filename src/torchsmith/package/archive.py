"""Writing a zip archive whose members were compressed elsewhere; Python's own cannot.

The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

_LIMIT_32 = 0xFFFFFFFF
_LIMIT_16 = 0xFFFF
_STORED, _DEFLATED = 0, 8
_UNIX = 3 << 8
_UTF8 = 0x800
# What a reader has to know: deflate, or sizes of 64 bits.
_PLAIN_VERSION, _LARGE_VERSION = 20, 45
_LARGE_EXTRA = 1

DosDate = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Packed:
    """A member as it will lie in the archive."""

    name: str
    mode: int
    crc: int
    size: int
    data: bytes | bytearray
    deflated: bool


class ZipWriter:
    """Appends members to a file, all of one date, and closes it with their list."""

    def __init__(self, file: BinaryIO, date: DosDate) -> None:
        self._file = file
        year, month, day, hour, minute, second = date
        self._day = (year - 1980) << 9 | month << 5 | day
        self._time = hour << 11 | minute << 5 | second // 2
        self._offset = 0
        self._list: list[bytes] = []

    def add(self, member: Packed) -> None:
        """Write a member, and keep its line of the list."""
        name = member.name.encode()
        large = max(member.size, len(member.data)) >= _LIMIT_32
        sizes = (_LIMIT_32, _LIMIT_32) if large else (len(member.data), member.size)
        extra = _large_extra(member.size, len(member.data)) if large else b""
        common = struct.pack(
            "<HHHHH",
            _LARGE_VERSION if large else _PLAIN_VERSION,
            0 if member.name.isascii() else _UTF8,
            _DEFLATED if member.deflated else _STORED,
            self._time,
            self._day,
        )
        head = struct.pack("<4s", b"PK\3\4") + common
        head += struct.pack("<IIIHH", member.crc, *sizes, len(name), len(extra)) + name + extra
        self._list.append(self._line(member, name, common))
        for part in (head, member.data):
            self._file.write(part)
            self._offset += len(part)

    def _line(self, member: Packed, name: bytes, common: bytes) -> bytes:
        values = (member.size, len(member.data), self._offset)
        # Each value that is too large is left out there, and said here, in this order.
        extra = _large_extra(*(value for value in values if value >= _LIMIT_32))
        size, packed, offset = (min(value, _LIMIT_32) for value in values)
        version = _LARGE_VERSION if extra else _PLAIN_VERSION
        head = struct.pack("<4sH", b"PK\1\2", _UNIX | version) + common
        sizes = struct.pack("<III", member.crc, packed, size)
        rest = struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, member.mode << 16, offset)
        return head + sizes + rest + name + extra

    def close(self) -> None:
        """Write the list of members, which ends an archive."""
        lines = b"".join(self._list)
        count, size, start = len(self._list), len(lines), self._offset
        self._file.write(lines)
        if count >= _LIMIT_16 or size >= _LIMIT_32 or start >= _LIMIT_32:
            version = (_UNIX | _LARGE_VERSION, _LARGE_VERSION)
            self._file.write(
                struct.pack("<4sQHHII", b"PK\6\6", 44, *version, 0, 0)
                + struct.pack("<QQQQ", count, count, size, start)
                + struct.pack("<4sIQI", b"PK\6\7", 0, start + size, 1)
            )
        counts = (min(count, _LIMIT_16),) * 2
        places = (min(size, _LIMIT_32), min(start, _LIMIT_32))
        self._file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, *counts, *places, 0))


def _large_extra(*values: int) -> bytes:
    if not values:
        return b""
    return struct.pack(f"<HH{len(values)}Q", _LARGE_EXTRA, 8 * len(values), *values)
