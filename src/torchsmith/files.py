"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from torchsmith.errors import OutputError


@contextlib.contextmanager
def whole_file(
    path: Path, *, mode: int | None = None, sync: bool = True, replace: bool = True
) -> Iterator[IO[bytes]]:
    """A file that gets its name once all of it is on the disk.

    By default it has the rights that new files have here; with `mode` it is its owner's alone until
    it is complete. Without `replace`, a file of that name raises FileExistsError. `sync=False` is
    for files that are as easily made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    # A new file: whatever another user put there, a link above all, is not written to.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(part, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())
        if replace:
            part.replace(path)
        else:
            # Unlike renaming, linking refuses to take another's place.
            path.hardlink_to(part)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def write_whole(
    path: Path, content: bytes, *, mode: int | None = None, sync: bool = True, replace: bool = True
) -> None:
    """Write a file at once, as `whole_file` does."""
    with whole_file(path, mode=mode, sync=sync, replace=replace) as file:
        file.write(content)


def check_result(path: Path) -> None:
    """Refuse a place that `write_result` could not write to, before the work and not after it."""
    import tempfile  # Most commands write no result, and start without it.

    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None


def write_result(path: Path, content: bytes, *, mode: int = 0o644, replace: bool = True) -> None:
    """Write a file that a person asked for; without `replace`, an older one stays."""
    try:
        write_whole(path, content, mode=mode, replace=replace)
    except (OSError, ValueError) as error:
        if not replace and path.exists():
            return
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError | ValueError) -> OutputError:
    # `.` and `/` have no name that could be written.
    reason = getattr(error, "strerror", None) or "not the path of a file"
    return OutputError(
        f"{path} cannot be written: {reason}",
        "Check the room left there and the rights on the folder, or name another place.",
    )
