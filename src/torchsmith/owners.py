"""Who besides us could have written a file: other users of the machine are strangers.

Root is trusted: nothing can be kept from it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def who_else_writes(path: Path, *, members: bool = False) -> str:
    """How others can change a file or folder, in words; empty if only we and root can.

    A group is trusted if it is the one we ourselves belong to first, which on most systems is
    ours alone. With `members`, the owner and the group are those of a folder that is shared on
    purpose, and only what is open to everybody counts.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write to {path}"
    if members:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to another user (uid {status.st_uid})"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (os.getegid(), 0):
        return f"another group (gid {status.st_gid}) may write to {path}"
    return ""


def open_plain(path: str | Path) -> int:
    """Open a file for reading; not through a link, and nothing that could block, as a pipe does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, most: int) -> bytes:
    """The content of a small file, opened with the same care; larger ones are refused."""
    with os.fdopen(open_plain(path), "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes", str(path))
    return content


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, writable for nobody else whatever the umask is."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o755, exist_ok=True)
