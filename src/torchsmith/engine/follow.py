"""Watching a run from another process: what its steps write, until it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from torchsmith.engine.journal import Journal
from torchsmith.errors import UsageError

_PAUSE_S = 0.5


def follow_run(
    journal: Journal, run: str, step: str | None = None, pause: float = _PAUSE_S
) -> Iterator[str]:
    """The lines of a run's steps, or of one step, as they are written; ends with the run.

    A line of torchsmith's own before each step says which it is, and how it ended.
    """
    read: dict[str, int] = {}
    told: dict[str, str] = {}
    while True:
        # Asked first: what is written before the answer is then read below.
        record = journal.run(run)
        over = record is None or record.status != "running"
        steps = [item for item in journal.steps(run) if step in (None, item.step)]
        if over and step is not None and not steps:
            raise UsageError(f"run {run} has no step {step!r}", f"`torchsmith log {run}` lists it.")
        for item in steps:
            if step is None and item.step not in told:
                yield f"== {item.step}"
                told[item.step] = "running"
            if item.log:
                lines, read[item.step] = _new_lines(Path(item.log), read.get(item.step, 0))
                yield from lines
            if step is None and item.status not in ("waiting", told[item.step]):
                told[item.step] = item.status
                yield f"== {item.step}: {item.status}"
        if over or (step is not None and steps and steps[0].status not in ("running", "waiting")):
            return
        time.sleep(pause)


def _new_lines(log: Path, start: int) -> tuple[list[str], int]:
    """The whole lines behind a place of a file, and the place behind them."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            content = file.read()
    except OSError:
        return [], start
    end = content.rfind(b"\n") + 1
    return content[:end].decode("utf-8", "replace").splitlines(), start + end
