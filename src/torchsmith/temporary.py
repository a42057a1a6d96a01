"""Temporary folders: for one user alone, and removed also after a kill.

A folder is locked for as long as its process lives. Whoever makes the next one removes those of
this user that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "torchsmith-tmp-"
# What a killed process started may still write there for a while.
_LEFT_SECONDS = 600.0
# Open for as long as the folders are in use: closing one gives up its lock.
_locks: dict[Path, int] = {}


def make_temporary(kind: str, base: Path | None = None) -> Path:
    """Make a folder that lasts until `remove_temporary`, or until this process has ended."""
    base = base or Path(tempfile.gettempdir())
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=base))
    _locks[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(_locks[folder], fcntl.LOCK_SH)
    return folder


def remove_temporary(folder: Path) -> None:
    """Remove a folder and all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if (descriptor := _locks.pop(folder, None)) is not None:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A folder for as long as the block lasts."""
    folder = make_temporary(kind)
    try:
        yield folder
    finally:
        remove_temporary(folder)


def _sweep(base: Path) -> None:
    """Remove what killed processes of this user left; anything odd is left alone."""
    for folder in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            old = time.time() - status.st_mtime > _LEFT_SECONDS
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or not old:
                continue
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(folder, flags)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
