"""The cache folder: what is kept between attempts, and who may touch it now."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

# The variable that names the folder where downloads are kept.
DOWNLOADS = "TORCHSMITH_DOWNLOADS"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file or folder of the cache for this process alone; others wait.

    The lock goes with the process, so a crash leaves none behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def emptied(folder: Path) -> None:
    """Remove everything in a folder, so that what failed cannot pass for complete."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
