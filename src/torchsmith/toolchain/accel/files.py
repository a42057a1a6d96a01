"""Writing files that another process may read at any moment, and ninja goes by the dates of."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8", errors="surrogateescape")
    part.replace(path)


def write_if_changed(path: Path, text: str) -> None:
    """Write a file whole or not at all, and leave one alone that says the same."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except OSError:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
