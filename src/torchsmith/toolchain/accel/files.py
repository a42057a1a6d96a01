"""Writing files that another process may read at any moment, and ninja goes by the dates of."""

from __future__ import annotations

from pathlib import Path

from torchsmith.files import write_whole


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_whole(path, text.encode(errors="surrogateescape"), sync=False)


def write_if_changed(path: Path, text: str) -> None:
    """Write a file whole or not at all, and leave one alone that says the same."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except OSError:
        pass
    write_text(path, text)
