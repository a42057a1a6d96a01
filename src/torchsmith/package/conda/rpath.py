"""Where libraries look for others once they lie in a prefix."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.verify.binary import Library
from torchsmith.verify.wheelfile import uses_torch

_ORIGIN = "$ORIGIN"


def search_path(library: Library, place: str, site: str) -> str:
    """The RPATH of a library at `place` of a prefix whose modules lie in `site`.

    torch's own are those of PyTorch's packages. Any other looks beside itself, where it looked
    before as far as that is in the prefix, for torch's libraries if it needs them, and then among
    the prefix's. Paths of the machine it was built on go.
    """
    folder = PurePosixPath(place).parent
    if folder == PurePosixPath(site, "torch"):
        first = MODULE_RPATH.split(":")
    elif folder == PurePosixPath(site, "torch/lib"):
        first = LIBRARY_RPATH.split(":")
    else:
        first = [_ORIGIN]
        last = [_towards(folder, PurePosixPath("lib"))]
        if uses_torch(library):
            last.insert(0, _towards(folder, PurePosixPath(site, "torch/lib")))
        return ":".join(dict.fromkeys([*first, *_kept(library, folder), *last]))
    return ":".join(dict.fromkeys([*first, *_kept(library, folder)]))


def _kept(library: Library, folder: PurePosixPath) -> list[str]:
    """Where it looked before, as far as that is below the prefix."""
    kept = []
    for entry in library.search:
        plain = entry.replace("${ORIGIN}", _ORIGIN).rstrip("/")
        if plain != _ORIGIN and not plain.startswith(f"{_ORIGIN}/"):
            continue
        inside = os.path.normpath(f"{folder}/{plain.removeprefix(_ORIGIN)}")
        if inside.split("/")[0] != "..":
            kept.append(plain)
    return kept


def _towards(folder: PurePosixPath, other: PurePosixPath) -> str:
    relative = os.path.relpath(other, folder)
    return _ORIGIN if relative == "." else f"{_ORIGIN}/{relative}"
