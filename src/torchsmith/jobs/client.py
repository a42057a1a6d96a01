"""What every target can do with a job: take it, find it again, report on it, stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from torchsmith.errors import ClusterError, UsageError
from torchsmith.jobs.models import Job
from torchsmith.jobs.states import State

# What the engine itself calls a job: a number of Slurm, a name of Kubernetes.
EngineId = NewType("EngineId", str)


@dataclass(frozen=True)
class Request:
    """A job to be submitted.

    `folder` is where it is submitted from: relative paths of the job start there. `kept` is the
    job's own folder, where its request, its output and its ends are written.
    """

    job: Job
    folder: Path
    kept: Path
    after: tuple[EngineId, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """A job an engine has taken; `roles` are the tasks of each role."""

    id: EngineId
    kept: Path
    roles: Mapping[str, int]


@dataclass(frozen=True)
class TaskStatus:
    """One task; `element` is its index in an array of jobs, where there is one."""

    role: str
    index: int
    state: State
    exit_code: int | None = None
    node: str = ""
    element: str = ""

    @property
    def name(self) -> str:
        """What a person calls it: main-0, or 3/main-0 in an array."""
        return f"{self.element}/{self.role}-{self.index}" if self.element else self.own_name

    @property
    def own_name(self) -> str:
        """Its name in its job."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class Status:
    """Where a job is; `said` is the engine's own word, `reason` its explanation."""

    state: State
    said: str = ""
    reason: str = ""
    exit_code: int | None = None
    nodes: tuple[str, ...] = ()
    started: float | None = None
    ended: float | None = None
    tasks: tuple[TaskStatus, ...] = ()


@dataclass(frozen=True)
class Output:
    """Which output of a job: of a role, of a task, or all of it.

    Until now, or with `follow` until its end. `recent`: the last of it is enough.
    """

    role: str = ""
    task: str = ""
    follow: bool = False
    recent: bool = False


@dataclass(frozen=True)
class Listed:
    """A job the engine knows and torchsmith submitted: by its token, or without one."""

    id: EngineId
    token: str
    state: State


class Client(Protocol):
    """One engine, through its own tools.

    A job is known here by its token before the engine has a name for it: `submit` hands the token
    over with the job, in the same call, so that `find` can tell whether an answer that was lost
    was a yes. `kept` is the folder of the request (see `Request`).
    """

    engine: str
    # Which one of its kind, as it has to be told again to reach the same: a server, a context.
    place: str

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse what this engine would refuse, before anything is written; else notes."""

    def submit(self, request: Request, token: str) -> EngineId:
        """Hand the job over.

        Raises `ClusterError` where it surely was not taken, `UnansweredError` where it may have
        been. Handing the same token over twice makes one job at most, as far as the engine can
        tell.
        """

    def find(self, token: str, kept: Path) -> EngineId | None:
        """The job of this token, if the engine has it; raises `ClusterError` if it cannot say."""

    def status(self, job: Submitted) -> Status | None:
        """Where a job is; `None` if the engine knows it no more and its end was not seen."""

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """Its output, line by line; where several tasks are left, each line names its own."""

    def cancel(self, job: Submitted) -> None:
        """Stop a job and everything it started; one that is over is left as it is."""

    def list(self) -> tuple[Listed, ...]:
        """The jobs of torchsmith the engine knows now."""


def chooser(job: Submitted, wanted: Output) -> Callable[[TaskStatus], bool]:
    """Whether a task is one a person asked for: by role, by number, or by name."""
    role, task = wanted.role, wanted.task

    def is_wanted(one: TaskStatus) -> bool:
        named = (one.name, one.own_name, str(one.index))
        return role in ("", one.role) and (not task or task in named)

    known = [
        TaskStatus(name, index, State.WAITING)
        for name, count in job.roles.items()
        for index in range(count)
    ]
    if not any(map(is_wanted, known)):
        raise UsageError(
            f"the job has no task {' '.join(word for word in (role, task) if word)!r}",
            f"Its roles are {', '.join(job.roles)}; tasks are called {known[0].name}.",
        )
    return is_wanted


def nothing_before(request: Request, engine: str) -> None:
    """Refuse a job that has to wait for another on an engine that starts every job at once."""
    if request.after:
        raise ClusterError(
            f"job {request.job.name}: {engine} starts every job at once, and this one comes after "
            f"{', '.join(request.after)}",
            "Submit it once those are over: `torchsmith job status` says when.",
        )


class LineCutter:
    """Cuts the pieces of one task's output into lines; `taken` is how many bytes it was fed."""

    def __init__(self, name: str = "") -> None:
        self.taken = 0
        self._head = f"{name} | " if name else ""
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[str]:
        """The lines a piece completes."""
        self.taken += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from map(self._line, lines)

    def finish(self) -> Iterator[str]:
        """What is left at the end."""
        if self._rest:
            yield self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> str:
        # A progress bar writes over itself: what it said last is what is seen.
        seen = line.rstrip(b"\r").rpartition(b"\r")[2]
        return self._head + seen.decode(errors="replace")
