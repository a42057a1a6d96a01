"""Running out of disk, and making sure that what was written is really there."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from torchsmith.errors import DiskFullError
from torchsmith.files import write_whole as write_whole

# EFBIG is what a limit on file sizes (`ulimit -f`) gives.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Errors of writing down something whose loss is no reason to fail.
UNTELLABLE = (DiskFullError, OSError, sqlite3.Error)
# With fewer free, a step is likely to have failed for want of them.
_FEW_INODES = 1000


def is_no_room(error: BaseException) -> bool:
    """Whether an error means that there was no room left."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return isinstance(error, sqlite3.OperationalError) and "disk is full" in str(error)


def free_bytes(path: Path) -> int | None:
    """The bytes free at a path; None if unknown."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def disk_full(where: Path, needed: int | None = None) -> DiskFullError:
    """The error that says what a place lacks: bytes, or inodes for more files."""
    inodes = None
    for folder in (where, *where.parents):
        with contextlib.suppress(OSError):
            state = os.statvfs(folder)
            # Some filesystems (btrfs) have no fixed number of them.
            if state.f_files and state.f_favail < _FEW_INODES:
                inodes = state.f_favail
            break
    return DiskFullError(str(where), needed, free_bytes(where), inodes)


@contextlib.contextmanager
def room(where: Path, needed: int | Callable[[], int] | None = None) -> Iterator[None]:
    """Turn "no space left" into an error that names the place and the bytes needed."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if not is_no_room(error):
            raise
        amount = needed() if callable(needed) else needed
        raise disk_full(where, amount) from error


def check_room(where: Path, needed: int) -> None:
    """Refuse what cannot fit before its first byte is written."""
    free = free_bytes(where)
    if free is not None and free < needed:
        raise DiskFullError(str(where), needed, free)


def sync_file(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(path: Path) -> None:
    """Wait until everything written so far is on the disk: one call for a tree of many files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
