"""Reading a file that may be anything: a folder, a pipe, a device, a disk of zeros."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from torchsmith.inputs import not_opened


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a plain file; `ValueError` says why it cannot be had."""
    try:
        # O_NONBLOCK: a named pipe given by mistake must not hang us before fstat tells.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ValueError(not_opened(error)) from None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("is a folder, not a file" if stat.S_ISDIR(mode) else "is not a file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(not_opened(error)) from None
    finally:
        os.close(handle)
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
