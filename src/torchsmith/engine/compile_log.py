"""What every compile of a run took, kept beside the run's logs: for its timeline and the portal.

compiles.jsonl   a line for each compile that ended
memory.jsonl     a line for each that waits for memory, begins or ends: what runs at this moment
jobs.json        what ninja knows of its jobs: read from its build folder when a compile step ends,
                 since the folder may go, and at no cost to the compilers
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import BinaryIO, Literal

import msgspec

from torchsmith.engine import events
from torchsmith.engine.disk import write_whole
from torchsmith.engine.events import Event, RunStarted
from torchsmith.engine.tail import new_lines
from torchsmith.foreign import decode
from torchsmith.owners import read_plain
from torchsmith.toolchain.accel.accelerate import FILE, FOLDER
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.governor_events import (
    Finished,
    GaveUp,
    Retried,
    Started,
    WaitingForMemory,
)
from torchsmith.toolchain.ninja_log import Edge, read_dependencies, read_graph, read_log

_COMPILES = "compiles.jsonl"
_MEMORY = "memory.jsonl"
# A build of torch writes some megabytes.
_MOST_BYTES = 1 << 30
_JOBS = "jobs.json"
# Of thousands of headers the first few hundred are nearly all the text.
_HEADERS = 500
# A chart is no wider.
_MOST_MOMENTS = 240


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
    """Writes lines about compiles; `logs` is the store's folder of logs, `budget` in bytes."""

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
            # A build must not fail because its timeline cannot be written.
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                self._file = (folder / _COMPILES).open("ab", buffering=0)
                self._memory = (folder / _MEMORY).open("ab", buffering=0)
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
        # One write for each line: only the last line of a killed run can be cut.
        with contextlib.suppress(OSError):
            if file is not None:
                file.write(msgspec.json.encode(record) + b"\n")


def read_compiles(logs: Path, run: str) -> list[CompileRecord]:
    """What a run wrote down, in the order in which compiles ended."""
    try:
        lines = read_plain(logs / run / _COMPILES, _MOST_BYTES).splitlines()
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
    """From `at` on `running` compiles run, expected to take `memory` bytes together."""

    at: float
    running: int
    memory: int


class InFlight:
    """Reads on in what a run writes about its compiles."""

    def __init__(self, logs: Path, run: str) -> None:
        self._path = logs / run / _MEMORY
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
            # A resumed run starts its counts again.
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
        """A copy of this moment, which later reading does not change."""
        made = copy.copy(self)
        made.running, made.waiting = dict(self.running), dict(self.waiting)
        made.moments = list(self.moments)
        return made

    def over_time(self) -> Iterator[Moment]:
        """The moments; if there are many, the highest of each stretch of time."""
        if len(self.moments) <= _MOST_MOMENTS:
            yield from self.moments
            return
        first, last = self.moments[0].at, self.moments[-1].at
        stretch = (last - first) / _MOST_MOMENTS or 1.0
        highest: dict[int, Moment] = {}
        for item in self.moments:
            place = int((item.at - first) / stretch)
            known = highest.get(place, item)
            highest[place] = Moment(
                known.at, max(known.running, item.running), max(known.memory, item.memory)
            )
        yield from highest.values()


class Job(msgspec.Struct, frozen=True):
    """A command that ninja ran, or a name for others.

    `key` is what `job_of` gives for its compiles; `file` is the first of its `files`; `seconds` is
    0 if this run did not run it; `after` are indexes of the jobs it waits for.
    """

    key: str
    kind: Literal["compile", "link", "command"]
    file: str
    files: int
    seconds: float
    cpu_seconds: float
    after: tuple[int, ...]


class Header(msgspec.Struct, frozen=True):
    """A file that compiles included: in how many jobs, and what CPU time those took."""

    path: str
    bytes: int
    compiles: int
    cpu_seconds: float


class BuildFolder(msgspec.Struct, frozen=True):
    """The jobs of a build folder, and its largest headers; `compiles` of them read `text` bytes."""

    folder: str
    jobs: tuple[Job, ...]
    headers: tuple[Header, ...]
    compiles: int
    text: int


class JobLog:
    """Keeps what ninja knows when a compile step ends; `logs` is the store's folder of logs."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._run = ""
        self._since = 0.0
        self._compiling: set[str] = set()

    def heed(self, event: events.Event) -> None:
        """Gather at the end of a compile step, however it ended."""
        match event:
            case events.RunStarted():
                self._run, self._since = event.run, event.at
            case events.StepStarted(kind="compile"):
                self._compiling.add(event.step)
            case events.StepFinished() | events.StepFailed() | events.StepInterrupted():
                if event.step in self._compiling:
                    # A build must not fail because its timeline cannot be written.
                    with contextlib.suppress(OSError, ValueError):
                        gather(self._logs, self._run, self._since)


def job_of(output: str) -> str:
    """The job that a compile belongs to: one for each object, or one for a whole batch."""
    path = PurePath(os.path.normpath(output))
    if path.parent.name == FOLDER:
        # A batch, NAME.json, that clashes is compiled in parts: NAME-PART.o.part.
        path = path.with_name(path.name.partition(".")[0].partition("-")[0])
    return str(path)


def gather(logs: Path, run: str, since: float) -> None:
    """Keep what ninja knows of a run that began at `since`, seconds since 1970."""
    records = [record for record in read_compiles(logs, run) if record.output]
    kept: list[BuildFolder] = []
    for folder in _build_folders(records):
        # A folder that is gone or half written is left out.
        with contextlib.suppress(OSError):
            found = _read(folder, records, since)
            if any(job.seconds for job in found.jobs):
                kept.append(found)
    if kept:
        write_whole(logs / run / _JOBS, msgspec.json.encode(kept))


def read_jobs(logs: Path, run: str) -> tuple[BuildFolder, ...]:
    """What was kept of a run; nothing if it was not gathered."""
    try:
        data = read_plain(logs / run / _JOBS, _MOST_BYTES)
        return decode(data, tuple[BuildFolder, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def _build_folders(records: Iterable[CompileRecord]) -> list[Path]:
    """The folders in which ninja ran the compiles."""
    found: dict[Path, None] = {}
    for folder in dict.fromkeys(Path(record.output).parent for record in records):
        for place in (folder, *folder.parents):
            if place in found:
                break
            if (place / ".ninja_log").is_file():
                found[place] = None
                break
    return list(found)


def _read(folder: Path, records: Sequence[CompileRecord], since: float) -> BuildFolder:
    cpu: dict[str, float] = defaultdict(float)
    for record in records:
        cpu[job_of(record.output)] += record.cpu_seconds
    batches = folder / FOLDER
    batched = any(PurePath(record.output).parent == batches for record in records)
    text = (folder / (FILE if batched else "build.ninja")).read_text(
        encoding="utf-8", errors="replace"
    )
    edges = read_graph(text)
    jobs = _jobs(folder, edges, since, cpu)
    ran = {
        edge.outputs[0]: job.cpu_seconds
        for edge, job in zip(edges, jobs, strict=True)
        if job.seconds
    }
    headers, compiles, total = _headers(folder, edges, ran)
    return BuildFolder(str(folder), jobs, headers, compiles, total)


def _jobs(
    folder: Path, edges: Sequence[Edge], since: float, cpu: Mapping[str, float]
) -> tuple[Job, ...]:
    log = read_log(folder)
    makers = {
        name: number for number, edge in enumerate(edges) for name in (*edge.outputs, *edge.also)
    }
    jobs: list[Job] = []
    for number, edge in enumerate(edges):
        line = log.get(edge.outputs[0])
        batch = [name for name in edge.waits_for if PurePath(name).parent == folder / FOLDER]
        key = job_of(str(folder / (batch or edge.outputs)[0]))
        kind = "compile" if batch else _kind(edge.rule)
        names = edge.inputs if kind == "compile" and edge.inputs else edge.outputs
        after = {makers[name] for name in (*edge.inputs, *edge.waits_for) if name in makers}
        jobs.append(
            Job(
                key=key,
                kind=kind,
                file=names[0],
                files=len(names),
                seconds=line.seconds if line is not None and line.at >= since else 0.0,
                cpu_seconds=cpu.get(key, 0.0),
                after=tuple(sorted(after - {number})),
            )
        )
    return tuple(jobs)


def _kind(rule: str) -> Literal["compile", "link", "command"]:
    # CMake's are CXX_COMPILER__target, CXX_SHARED_LIBRARY_LINKER__target, CUSTOM_COMMAND; those
    # of torch's extensions compile, cuda_compile, link.
    word = rule.partition("__")[0].lower()
    if "compile" in word:
        return "compile"
    return "link" if "link" in word else "command"


def _headers(
    folder: Path, edges: Iterable[Edge], ran: Mapping[str, float]
) -> tuple[tuple[Header, ...], int, int]:
    """The headers with most text, how many jobs have known headers, and all bytes they read."""
    lists = read_dependencies(folder, ran)
    texts = _Texts(folder)
    for output, names in lists.items():
        for text in {id(text): text for name in names if (text := texts.of(name))}.values():
            text.compiles += 1
            text.cpu_seconds += ran[output]
    for edge in edges:
        if edge.outputs[0] in lists:
            for name in edge.inputs:
                if text := texts.of(name):
                    text.source = True
    found = sorted(texts.all(), key=lambda text: (-text.bytes * text.compiles, text.path))
    headers = [text for text in found if not text.source][:_HEADERS]
    return (
        tuple(Header(text.path, text.bytes, text.compiles, text.cpu_seconds) for text in headers),
        len(lists),
        sum(text.bytes * text.compiles for text in found),
    )


@dataclass(slots=True)
class _Text:
    path: str
    bytes: int
    compiles: int = 0
    cpu_seconds: float = 0.0
    source: bool = False


class _Texts:
    """The files that compiles read, each once, since one header has many names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, _Text | None] = {}
        self._files: dict[tuple[int, int], _Text] = {}

    def of(self, name: str) -> _Text | None:
        """The file of a name; None if it is no longer there."""
        if name not in self._names:
            path = self._folder / name
            try:
                known = path.stat()
            except OSError:
                self._names[name] = None
            else:
                text = _Text(os.path.normpath(path), known.st_size)
                key = (known.st_dev, known.st_ino)
                self._names[name] = self._files.setdefault(key, text)
        return self._names[name]

    def all(self) -> Iterable[_Text]:
        return self._files.values()
