"""Reading logs: in pieces, and as they grow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchsmith.engine.journal import Journal
from torchsmith.errors import UsageError
from torchsmith.owners import open_plain
from torchsmith.printable import printable, printable_lines

PIECE = 1 << 16


def kept_log(root: Path, log: str) -> Path | None:
    """The log that a journal names, if it lies in this store, links followed.

    A journal is a file that others may have written: it must not choose what is read.
    """
    try:
        inside = bool(log) and Path(log).resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):
        return None
    return Path(log) if inside else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of a log without control characters, and the bytes they stand in."""

    text: str
    start: int
    end: int
    size: int


def piece_between(log: Path, start: int, end: int) -> Piece:
    """The first whole lines between two offsets, at most a piece; half a line at the very end."""
    content, start, size = _bytes(log, start, min(PIECE, end - start))
    # A line longer than a piece: as it is.
    count = len(content) if start + len(content) >= end else content.rfind(b"\n") + 1
    count = count or len(content)
    return Piece(_text(content[:count]), start, start + count, size)


def last_line_end(log: Path) -> int:
    """The offset behind the last whole line; what follows is still being written."""
    size = _bytes(log, 0, 0)[2]
    content, start, _ = _bytes(log, max(0, size - PIECE))
    found = content.rfind(b"\n") + 1
    # A line longer than a piece: as it is.
    return start + found if found or len(content) < PIECE else start + len(content)


def piece_before(log: Path, end: int) -> Piece:
    """The lines before an offset; -1 is the end of the log."""
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
            # A file that became shorter is another one: read it from its beginning.
            start = start if 0 <= start <= size else 0
            file.seek(start)
            return file.read(count), start, size
    except (OSError, ValueError):
        return b"", 0, 0


def _text(content: bytes) -> str:
    return printable_lines(content.decode("utf-8", "replace"))


_PAUSE_S = 0.5


def follow_run(
    journal: Journal, root: Path, run: str, step: str | None = None, pause: float = _PAUSE_S
) -> Iterator[str]:
    """The lines of a run's steps, or of one, as they are written, until the run ends.

    A line `== STEP` says which step follows, and how it ended.
    """
    read: dict[str, int] = {}
    shown: dict[str, str] = {}
    while True:
        # The status comes first: lines written before it are then read below.
        record = journal.run(run)
        over = record is None or record.status != "running"
        steps = [item for item in journal.steps(run) if step in (None, item.step)]
        if over and step is not None and not steps:
            raise UsageError(f"run {run} has no step {step!r}", f"`torchsmith log {run}` lists it.")
        for item in steps:
            if step is None and item.step not in shown:
                yield f"== {printable(item.step)}"
                shown[item.step] = "running"
            if (log := kept_log(root, item.log)) is not None:
                lines, read[item.step] = new_lines(log, read.get(item.step, 0))
                yield from (line.decode("utf-8", "replace") for line in lines)
            if step is None and item.status not in ("waiting", shown[item.step]):
                shown[item.step] = item.status
                yield f"== {printable(item.step)}: {printable(item.status)}"
        if over or (step is not None and steps and steps[0].status not in ("running", "waiting")):
            return
        time.sleep(pause)


def new_lines(log: Path, start: int) -> tuple[list[bytes], int]:
    """The whole lines behind an offset of a file, and the offset behind them."""
    try:
        with os.fdopen(open_plain(log), "rb") as file:
            file.seek(start)
            content = file.read()
    except (OSError, ValueError):
        return [], start
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines(), start + end
