"""What ninja knows of the jobs of a run, kept beside the run's logs: for its timeline.

Compilers are not asked for anything more: when a compile step is over, what ninja left in its
build folder is read once, and what is kept of it outlives the folder.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import msgspec

from torchsmith.engine import events
from torchsmith.engine.compile_log import CompileRecord, read_compiles
from torchsmith.engine.disk import write_whole
from torchsmith.foreign import decode
from torchsmith.toolchain.accel.accelerate import FILE, FOLDER
from torchsmith.toolchain.ninja_log import Edge, read_dependencies, read_graph, read_log

NAME = "jobs.json"
# Of thousands of headers the first few hundred are nearly all the text.
_HEADERS = 500


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
                    # A build must not fail for want of its timeline.
                    with contextlib.suppress(OSError, ValueError):
                        gather(self._logs, self._run, self._since)


def job_of(output: str) -> str:
    """The job a compile is of: one for each object, or one for all of a batch."""
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
        # One that ninja never finished writing, or that is gone, tells nothing of the others.
        with contextlib.suppress(OSError):
            found = _read(folder, records, since)
            if any(job.seconds for job in found.jobs):
                kept.append(found)
    if kept:
        write_whole(logs / run / NAME, msgspec.json.encode(kept))


def read_jobs(logs: Path, run: str) -> tuple[BuildFolder, ...]:
    """What was kept of a run; nothing if it was not gathered."""
    try:
        data = (logs / run / NAME).read_bytes()
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
    """The headers with most text in all, how many jobs told of theirs, and all they read."""
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
    """The files that compiles read, each once: one header has many names."""

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
