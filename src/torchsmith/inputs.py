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
        # O_NONBLOCK: a named pipe given by mistake must not hang us before fstat tells.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return not_opened(error)
    try:
        mode = os.fstat(handle).st_mode
    finally:
        os.close(handle)
    if stat.S_ISREG(mode):
        return ""
    return "is a folder, not a file" if stat.S_ISDIR(mode) else "is not a file"


def not_opened(error: OSError | ValueError) -> str:
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
