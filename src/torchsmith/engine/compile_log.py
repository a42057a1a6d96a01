"""What every compile of a run took, kept beside the run's logs: for its timeline and the portal.

compiles.jsonl   a line for each compile that ended
memory.jsonl     a line for each that waits for memory, begins or ends: what runs at this moment
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from torchsmith.engine.events import Event, RunStarted
from torchsmith.engine.tail import new_lines
from torchsmith.foreign import decode
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.governor_events import (
    Finished,
    GaveUp,
    Retried,
    Started,
    WaitingForMemory,
)

NAME = "compiles.jsonl"
MEMORY = "memory.jsonl"


class CompileRecord(msgspec.Struct, frozen=True):
    """A compile or link on so many `cores`; times are seconds since 1970, `peak` is bytes."""

    file: str
    began: float
    ended: float
    cpu_seconds: float
    peak: int
    status: int
    cores: int
    output: str = ""


class MemoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened to a compile, and when; "limits" says what all of them may use."""

    kind: Literal["limits", "waits", "runs", "ended"]
    at: float
    job: int = 0
    file: str = ""
    estimate: int = 0
    cores: int = 0
    budget: int = 0


class CompileLog:
    """Writes lines about compiles; `logs` is the store's folder of logs, `budget` their memory."""

    def __init__(self, logs: Path, cores: int) -> None:
        self._logs = logs
        self._cores = cores
        self._file: BinaryIO | None = None
        self._memory: BinaryIO | None = None
        self.budget = 0

    def close(self) -> None:
        """Write nothing more."""
        for file in (self._file, self._memory):
            if file is not None:
                file.close()

    def heed(self, event: Event) -> None:
        """Begin where a run begins."""
        if isinstance(event, RunStarted) and event.to_run:
            folder = self._logs / event.run
            # A build must not fail for want of its timeline.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = (folder / NAME).open("ab", buffering=0)
                self._memory = (folder / MEMORY).open("ab", buffering=0)
            limits = MemoryRecord("limits", time.time(), cores=self._cores, budget=self.budget)
            self._write(self._memory, limits)

    def add(self, event: MemoryEvent) -> None:
        """Write down what a compile took, once it has ended."""
        now = time.time()
        match event:
            case WaitingForMemory() | Started():
                kind: Literal["waits", "runs"] = "runs" if isinstance(event, Started) else "waits"
                record = MemoryRecord(kind, now, event.job, event.file, event.estimate)
                self._write(self._memory, record)
                return
            case Finished() | Retried() | GaveUp():
                self._write(self._memory, MemoryRecord("ended", now, event.job))
        if not isinstance(event, Finished):
            return
        compiled = CompileRecord(
            event.file,
            now - event.wall_seconds,
            now,
            event.cpu_seconds,
            event.peak,
            event.status,
            self._cores,
            event.output,
        )
        self._write(self._file, compiled)

    def _write(self, file: BinaryIO | None, record: msgspec.Struct) -> None:
        # One write a line: a run that is killed leaves whole lines, or a last one cut short.
        with contextlib.suppress(OSError):
            if file is not None:
                file.write(msgspec.json.encode(record) + b"\n")


def read_compiles(logs: Path, run: str) -> list[CompileRecord]:
    """What a run wrote down, in the order in which compiles ended."""
    try:
        lines = (logs / run / NAME).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decode(line, CompileRecord))
        except msgspec.DecodeError:
            continue
    return found


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
        lines, self._offset = new_lines(self._path, self._offset)
        for line in lines:
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
