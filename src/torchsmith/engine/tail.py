"""Reading a log in pieces: its end, what came since, and what stands before a place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torchsmith.owners import open_plain
from torchsmith.printable import printable_lines

PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of a log without control characters, and the bytes they stand in."""

    text: str
    start: int
    end: int
    size: int


def piece_between(log: Path, start: int, end: int) -> Piece:
    """The first whole lines between two places, at most a piece of them; at its end half a line."""
    content, start, size = _bytes(log, start, min(PIECE, end - start))
    # A line longer than a piece: as it is.
    count = len(content) if start + len(content) >= end else content.rfind(b"\n") + 1
    count = count or len(content)
    return Piece(_text(content[:count]), start, start + count, size)


def last_line_end(log: Path) -> int:
    """The place behind the last whole line; what follows is still being written."""
    size = _bytes(log, 0, 0)[2]
    content, start, _ = _bytes(log, max(0, size - PIECE))
    found = content.rfind(b"\n") + 1
    # A line longer than a piece: as it is.
    return start + found if found or len(content) < PIECE else start + len(content)


def piece_before(log: Path, end: int) -> Piece:
    """The lines before a place; -1: the end of the log."""
    size = _bytes(log, 0, 0)[2]
    end = size if end < 0 else min(end, size)
    start = max(0, end - PIECE)
    content = _bytes(log, start, end - start)[0]
    skipped = content.find(b"\n") + 1 if start else 0
    return Piece(_text(content[skipped:]), start + skipped, end, size)


def _bytes(log: Path, start: int, count: int = PIECE) -> tuple[bytes, int, int]:
    try:
        with os.fdopen(open_plain(log), "rb") as file:
            size = file.seek(0, 2)
            # A shorter file is another one: from its beginning.
            start = start if 0 <= start <= size else 0
            file.seek(start)
            return file.read(count), start, size
    except (OSError, ValueError):
        return b"", 0, 0


def _text(content: bytes) -> str:
    return printable_lines(content.decode("utf-8", "replace"))
