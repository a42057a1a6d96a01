"""Packing a wheel: compressed by every core, and the same bytes on however many.

`wheel` compresses with zlib on one core. Here libdeflate does it, which needs half the time and
leaves a little less, the largest files first; what RECORD says of a file is found in the same
pass. Order, dates and modes are normal, so that one tree is one wheel.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import errno
import hashlib
import io
import stat
import struct
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from torchsmith.errors import DiskFullError, OutputError, UsageError
from torchsmith.files import whole_file
from torchsmith.host.limits import read_cores

# A zip archive whose members were compressed elsewhere, which Python's own writer cannot do:
# https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
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

    def __init__(self, file: IO[bytes], date: DosDate) -> None:
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


# Where a wheel's bill of materials lies, below its .dist-info: https://peps.python.org/pep-0770/
BILL = "sboms/torchsmith.cdx.json"
# The earliest a zip archive can say.
EARLIEST: DosDate = (1980, 1, 1, 0, 0, 0)
_LEVEL = 6
_MODES = (stat.S_IFREG | 0o644, stat.S_IFREG | 0o755)
# Files held in memory at once, unless one alone is larger.
_HELD = 1 << 30
_SIGNATURES = (".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive, and how to get its content."""

    name: str
    size: int
    executable: bool
    read: Callable[[], bytes]


def member_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """A file of an archive as it is."""
    executable = bool(info.external_attr >> 16 & stat.S_IXUSR)
    return Member(info.filename, info.file_size, executable, partial(archive.read, info))


def pack_folder(folder: Path, wheel: Path, *, threads: int | None = None) -> None:
    """Pack an unpacked wheel."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    members = [
        Member(
            path.relative_to(folder).as_posix(),
            path.stat().st_size,
            bool(path.stat().st_mode & stat.S_IXUSR),
            path.read_bytes,
        )
        for path in paths
    ]
    write_wheel(members, wheel, threads=threads)


def compress_wheel(
    wheel: Path,
    *,
    latest: DosDate | None = None,
    threads: int | None = None,
    bill: bytes = b"",
) -> bool:
    """Compress a wheel that was packed without, and put its bill of materials into it.

    With `latest`, the date of its source, also pack anew one that tells when and by whom it was
    packed: not every build system heeds SOURCE_DATE_EPOCH, and few give files normal modes.
    False if it stays as it is, or is no archive: that is for others to say.
    """
    if not zipfile.is_zipfile(wheel):
        return False
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        date = max((info.date_time for info in infos), default=EARLIEST)
        date = date if latest is None else min(date, latest)
        compressed = any(info.compress_type != zipfile.ZIP_STORED for info in infos)
        normal = all(
            info.date_time == date and info.external_attr >> 16 in _MODES for info in infos
        )
        if compressed and (latest is None or normal) and not bill:
            return False
        file = wheel.stat()
        records = [info.filename for info in infos if _is_record(info.filename)]
        place = f"{records[0].rpartition('/')[0]}/{BILL}" if bill and records else ""
        members = [member_of(archive, info) for info in infos if info.filename != place]
        if place:
            members.append(Member(place, len(bill), False, lambda: bill))
        write_wheel(members, wheel, date=date, threads=threads)
    wheel.chmod(stat.S_IMODE(file.st_mode))
    return True


def write_wheel(
    members: Iterable[Member],
    wheel: Path,
    *,
    date: DosDate = EARLIEST,
    threads: int | None = None,
) -> None:
    """Write a wheel whole or not at all; its RECORD is made anew."""
    listed = list(members)
    records = [member.name for member in listed if _is_record(member.name)]
    if len(records) != 1:
        raise UsageError(
            f"{wheel.name}: {len(records)} files named *.dist-info/RECORD, and a wheel has one",
            "Give a folder that `wheel unpack` or pip made.",
        )
    # The largest first, so that no core is left with one at the end; metadata last, where
    # installers look first.
    ordered = sorted(
        (member for member in listed if not _is_record(member.name)),
        key=lambda member: (".dist-info/" in member.name, -member.size, member.name),
    )
    rows: list[tuple[str, str, str]] = []
    with whole_file(wheel, sync=False) as file:
        writer = ZipWriter(file, date)
        for packed, digest in packed_members(ordered, threads or read_cores()):
            writer.add(packed)
            signed = packed.name.endswith(_SIGNATURES)
            rows.append((packed.name, *(("", "") if signed else (digest, str(packed.size)))))
        rows.append((records[0], "", ""))
        writer.add(_pack(records[0], partial(_table, rows), executable=False)[0])
        writer.close()


def _is_record(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return file == "RECORD" and folder.endswith(".dist-info") and "/" not in folder


def _table(rows: Iterable[tuple[str, str, str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def packed_members(members: Iterable[Member], threads: int) -> Iterator[tuple[Packed, str]]:
    """Compress members side by side, and give them back in their order, each with its hash."""
    queue = deque(members)
    running: deque[tuple[Member, Future[tuple[Packed, str]]]] = deque()
    in_memory = 0
    with ThreadPoolExecutor(threads) as pool:
        while queue or running:
            while queue and (not running or in_memory + queue[0].size <= _HELD):
                member = queue.popleft()
                in_memory += member.size
                future = pool.submit(_pack, member.name, member.read, executable=member.executable)
                running.append((member, future))
            member, future = running.popleft()
            in_memory -= member.size
            yield future.result()


def _pack(name: str, read: Callable[[], bytes], *, executable: bool) -> tuple[Packed, str]:
    import deflate

    data = read()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    mode = _MODES[executable]
    smaller = deflate.deflate_compress(data, _LEVEL) if data else b""
    deflated = len(smaller) < len(data)
    packed = Packed(
        name, mode, deflate.crc32(data), len(data), smaller if deflated else data, deflated
    )
    return packed, f"sha256={digest}"


@contextlib.contextmanager
def writing(folder: Path, hint: str = "Name another folder, or mend its rights.") -> Iterator[None]:
    """Say in words why nothing can be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(str(folder)) from error
        raise OutputError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}", hint
        ) from error
