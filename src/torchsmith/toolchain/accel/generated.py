"""Generated files that name others by where this build happens to lie.

Of each of its kernels PyTorch has CMake write a file for each kind of CPU, which includes the
kernel by its absolute name. A compiler cache goes by what a file says: in a second build, for
another Python or in another folder, it would know none of them. Here they say the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from torchsmith.toolchain.accel.files import write_text
from torchsmith.toolchain.accel.unit import INCLUDED_SOURCE


def include_relatively(files: Iterable[Path], folder: Path) -> None:
    """Have those of the files that lie in a build folder include others by relative names."""
    for path in files:
        if path.is_relative_to(folder) and path.is_file():
            _include_relatively(path, folder.parent)


def _include_relatively(path: Path, source: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    absolute = [
        name
        for name in INCLUDED_SOURCE.findall(text)
        if Path(name).is_absolute() and Path(name).is_relative_to(source) and Path(name).is_file()
    ]
    if not absolute:
        return
    for name in absolute:
        text = text.replace(name, os.path.relpath(name, path.parent))
    write_text(path, text)
    # When CMake runs again it writes them again. With a date of now, ninja would have all of them
    # compiled again; that of what they include does not change, and if it does they are.
    newest = max(Path(name).stat().st_mtime_ns for name in absolute)
    os.utime(path, ns=(newest, newest))
