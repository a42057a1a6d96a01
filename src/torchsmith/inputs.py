"""Files that a person or a plan names: the same words everywhere for one that cannot be read."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import Path

from torchsmith.errors import UsageError


def why_unreadable(path: Path) -> str:
    """Why this is no file that can be read, as the end of a sentence; empty if it is one."""
    try:
        os.close(_opened(path))
    except ValueError as error:
        return str(error)
    return ""


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a plain file; `ValueError` says why it cannot be had."""
    with os.fdopen(_opened(path), "rb") as file:
        try:
            data = file.read(most + 1)
        except OSError as error:
            raise ValueError(_not_opened(error)) from None
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 20} MiB")
    return data


def read_inside(folder: Path, name: str, most: int) -> bytes:
    """Return a file below a folder; a link that leads out of it is refused."""
    try:
        root = folder.resolve()
        path = (root / name).resolve()
    except (OSError, RuntimeError):  # RuntimeError: links in a circle, until Python 3.13
        raise ValueError("cannot be read: its path leads nowhere") from None
    if not path.is_relative_to(root):
        raise ValueError("is a link that leads out of the recipe's folder")
    return read_file(path, most)


def _opened(path: Path) -> int:
    """A descriptor of a plain file; a folder, a pipe or a device is refused by `ValueError`."""
    try:
        # O_NONBLOCK: a named pipe given by mistake must not hang us before fstat tells.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ValueError(_not_opened(error)) from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ValueError("is a folder, not a file" if stat.S_ISDIR(mode) else "is not a file")
    return handle


def _not_opened(error: OSError | ValueError) -> str:
    """What an error of opening a file means."""
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    return f"cannot be read: {getattr(error, 'strerror', None) or 'not a usable path'}"


def check_file(path: Path, hint: str = "Check the path.") -> None:
    """Refuse what is no file that can be read."""
    if reason := why_unreadable(path):
        raise UsageError(f"{path} {reason}", hint)


def one_file(pattern: str) -> Path:
    """Return the one file that a path, or a pattern for one, stands for."""
    path = Path(pattern)
    # Not Path.glob, which takes no absolute pattern.
    matches = [path] if path.is_file() else sorted(map(Path, glob.glob(pattern)))  # noqa: PTH207
    if len(matches) != 1:
        found = ", ".join(map(str, matches)) or "none"
        raise UsageError(
            f"{pattern} must match one file, but matches {found}",
            "Remove what does not belong there, then run the same command again.",
        )
    return matches[0]
