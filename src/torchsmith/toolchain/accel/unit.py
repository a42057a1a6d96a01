"""A batch as one C++ or CUDA file that includes its members."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from torchsmith.toolchain.accel.files import read_source

_DEFINE = re.compile(r"^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)", re.MULTILINE)
INCLUDED_SOURCE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+\.(?:cpp|cc|cxx))[">]', re.M)


def included_sources(path: Path) -> tuple[str, ...]:
    """The C++ files that a C++ file includes: PyTorch's for one CPU capability do only that."""
    return tuple(
        str(found)
        for name in INCLUDED_SOURCE.findall(read_source(path))
        for found in (path.parent / name,)
        if found.is_file()
    )


def macros_of(path: Path) -> tuple[str, ...]:
    """The macros a file defines itself, also where it only includes another C++ file."""
    files = [path, *(Path(name) for name in included_sources(path))]
    return tuple(
        dict.fromkeys(name for file in files for name in _DEFINE.findall(read_source(file)))
    )


def unit_text(files: Iterable[Path], folder: Path) -> str:
    """The C++ file of a batch, which lies in a folder.

    It names its files relative to that, so that two checkouts have the same unit, and share what
    a compiler cache has of it.

    What a file defines for itself is put back to what it was before: a macro such as
    TORCH_ASSERT_NO_OPERATORS, set at the top of one file, means something to the next.
    """
    lines: list[str] = []
    here = os.path.realpath(folder)
    for path in files:
        macros = macros_of(path)
        lines += [f'#pragma push_macro("{name}")' for name in macros]
        lines.append(f'#include "{os.path.relpath(os.path.realpath(path), here)}"')
        lines += [f'#pragma pop_macro("{name}")' for name in macros]
    return "\n".join(lines) + "\n"
