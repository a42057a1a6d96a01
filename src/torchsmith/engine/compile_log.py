"""What every compile of a run took, kept beside the run's logs: for its timeline."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from torchsmith.engine.events import Event, RunStarted
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.governor_events import Finished

NAME = "compiles.jsonl"


class CompileRecord(msgspec.Struct, frozen=True):
    """One compile or link, of a run on so many `cores`.

    `began` and `ended` are seconds since 1970, `peak` is bytes; `output` is the path of what it
    makes.
    """

    file: str
    began: float
    ended: float
    cpu_seconds: float
    peak: int
    status: int
    cores: int
    output: str = ""


class CompileLog:
    """Writes a line for each compile that ended; `logs` is the store's folder of logs."""

    def __init__(self, logs: Path, cores: int) -> None:
        self._logs = logs
        self._cores = cores
        self._file: BinaryIO | None = None

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            self._file.close()

    def heed(self, event: Event) -> None:
        """Begin where a run begins."""
        if isinstance(event, RunStarted) and event.to_run:
            folder = self._logs / event.run
            # A build must not fail for want of its timeline.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = (folder / NAME).open("ab", buffering=0)

    def add(self, event: MemoryEvent) -> None:
        """Write down what a compile took, once it has ended."""
        if self._file is None or not isinstance(event, Finished):
            return
        now = time.time()
        record = CompileRecord(
            event.file,
            now - event.wall_seconds,
            now,
            event.cpu_seconds,
            event.peak,
            event.status,
            self._cores,
            event.output,
        )
        # One write a line: a run that is killed leaves whole lines, or a last one cut short.
        with contextlib.suppress(OSError):
            self._file.write(msgspec.json.encode(record) + b"\n")


def read_compiles(logs: Path, run: str) -> list[CompileRecord]:
    """What a run wrote down, in the order in which compiles ended."""
    try:
        lines = (logs / run / NAME).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=CompileRecord))
        except msgspec.DecodeError:
            continue
    return found
