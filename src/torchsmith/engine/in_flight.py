"""The compiles of a run as they are now, and how many cores and how much memory they had."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchsmith.engine.compile_log import MEMORY, MemoryRecord
from torchsmith.foreign import decode


@dataclass(frozen=True, slots=True)
class Moment:
    """So many compiles run from `at` on, expected to take `memory` bytes together."""

    at: float
    running: int
    memory: int


class InFlight:
    """Reads on in what a run writes about its compiles."""

    def __init__(self, logs: Path, run: str) -> None:
        self._path = logs / run / MEMORY
        self._offset = 0
        self.cores = 0
        self.budget = 0
        self.running: dict[int, MemoryRecord] = {}
        self.waiting: dict[int, MemoryRecord] = {}
        self.moments: list[Moment] = []

    def look(self) -> None:
        """Read what came since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except (OSError, ValueError):
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                self._heed(decode(line, MemoryRecord))

    def _heed(self, record: MemoryRecord) -> None:
        if record.kind == "limits":
            # A run that goes on begins anew.
            self.cores, self.budget = record.cores, record.budget
            self.running.clear()
            self.waiting.clear()
        elif record.kind == "waits":
            self.waiting[record.job] = record
            return
        elif record.kind == "runs":
            self.waiting.pop(record.job, None)
            self.running[record.job] = record
        else:
            self.waiting.pop(record.job, None)
            self.running.pop(record.job, None)
        memory = sum(item.estimate for item in self.running.values())
        self.moments.append(Moment(record.at, len(self.running), memory))

    def now(self) -> InFlight:
        """The same at this moment, which reading on leaves as it is."""
        made = copy.copy(self)
        made.running, made.waiting = dict(self.running), dict(self.waiting)
        made.moments = list(self.moments)
        return made

    def over_time(self, most: int = 240) -> Iterator[Moment]:
        """The moments, of many the highest of each stretch."""
        if len(self.moments) <= most:
            yield from self.moments
            return
        first, last = self.moments[0].at, self.moments[-1].at
        stretch = (last - first) / most or 1.0
        highest: dict[int, Moment] = {}
        for item in self.moments:
            place = int((item.at - first) / stretch)
            known = highest.get(place, item)
            highest[place] = Moment(
                known.at, max(known.running, item.running), max(known.memory, item.memory)
            )
        yield from highest.values()
