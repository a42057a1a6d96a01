"""What every target can do with a job: take it, find it again, report on it, stop it.

Here are also what clients share: choosing tasks, cutting output into lines, asking again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol, TypeVar

from torchsmith.errors import ClusterError, UnansweredError, UsageError
from torchsmith.jobs.models import Job
from torchsmith.jobs.states import State

# What the target itself calls a job: a number of Slurm, a name of Kubernetes.
TargetId = NewType("TargetId", str)


@dataclass(frozen=True)
class Request:
    """A job to be submitted from `folder`; `kept` is where its request and output are written."""

    job: Job
    folder: Path
    kept: Path
    after: tuple[TargetId, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """A job a target has taken; `roles` are the tasks of each role."""

    id: TargetId
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
    """Where a job is; `said` is the target's own word, `reason` its explanation."""

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
    """Which output of a job; with `follow` until its end, with `recent` only the last of it."""

    role: str = ""
    task: str = ""
    follow: bool = False
    recent: bool = False


@dataclass(frozen=True)
class Listed:
    """A job the target knows and torchsmith submitted: by its token, or without one."""

    id: TargetId
    token: str
    state: State


class Client(Protocol):
    """One target, through its own tools.

    `submit` hands over a token of ours with the job, so that `find` can tell later whether a lost
    answer was a yes. `kept` is the folder of the request.
    """

    engine: str
    # Which one of its kind, as it has to be told again to reach the same: a server, a context.
    place: str

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse what this target would refuse, before anything is written; else notes."""

    def submit(self, request: Request, token: str) -> TargetId:
        """Hand the job over, at most once for a token.

        Raises `ClusterError` where it surely was not taken, `UnansweredError` where it may have
        been.
        """

    def find(self, token: str, kept: Path) -> TargetId | None:
        """The job of this token, if the target has it; raises `ClusterError` if it cannot say."""

    def status(self, job: Submitted) -> Status | None:
        """Where a job is; `None` if the target knows it no more and its end was not seen."""

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """Its output, line by line; where several tasks are left, each line names its own."""

    def cancel(self, job: Submitted) -> None:
        """Stop a job and everything it started; one that is over is left as it is."""

    def list(self) -> tuple[Listed, ...]:
        """The jobs of torchsmith the target knows now."""


def chooser(job: Submitted, wanted: Output) -> Callable[[TaskStatus], bool]:
    """Whether a task is one a person asked for: by role, by number, or by name."""
    role, task = wanted.role, wanted.task

    def is_wanted(one: TaskStatus) -> bool:
        names = (one.name, one.own_name, str(one.index))
        return role in ("", one.role) and (not task or task in names)

    if role and role not in job.roles:
        raise UsageError(f"the job has no role {role!r}", f"It has {', '.join(job.roles)}.")
    # Which elements an array has is not known here.
    element = task.rpartition("/")[0]
    known = [
        TaskStatus(name, index, State.WAITING, element=element)
        for name, count in job.roles.items()
        for index in range(count)
    ]
    if not any(map(is_wanted, known)):
        raise UsageError(
            f"the job has no task {' '.join(word for word in (role, task) if word)!r}",
            f"Its roles are {', '.join(job.roles)}; tasks are called {known[0].own_name}.",
        )
    return is_wanted


def nothing_before(request: Request, engine: str) -> None:
    """Refuse a job that has to wait for another on a target that starts every job at once."""
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
        # A progress bar overwrites its line: the last state is what a terminal shows.
        seen = line.rstrip(b"\r").rpartition(b"\r")[2]
        return self._head + seen.decode(errors="replace")


T = TypeVar("T")
_ATTEMPTS = 4
# Each pause is twice as long as the one before.
_FIRST_PAUSE_S = 1.0
# A longer wait is left to the person who asked.
_LONGEST_WAIT_S = 60.0


class NoAnswerError(UnansweredError):
    """No answer, or none now.

    `unheard`: the request surely reached no server. `lasting`: repeating it cannot help.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        wait_s: float = 0.0,
        unheard: bool = False,
        lasting: bool = False,
    ) -> None:
        super().__init__(message, hint)
        self.wait_s = wait_s
        self.unheard = unheard or lasting
        self.lasting = lasting


def patiently(do: Callable[[], T]) -> T:
    """Repeat a request that is safe to repeat while no answer comes."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return do()
        except NoAnswerError as error:
            pause = max(_FIRST_PAUSE_S * 2**attempt, error.wait_s)
            if error.lasting or pause > _LONGEST_WAIT_S:
                raise
            time.sleep(pause)
    return do()


def handed_over(do: Callable[[], T]) -> T:
    """Send what must not be sent twice; `UnansweredError` if the server may have taken it."""
    heard = False

    def attempt() -> T:
        nonlocal heard
        try:
            return do()
        except NoAnswerError as error:
            heard = heard or not error.unheard
            raise

    try:
        return patiently(attempt)
    except ClusterError as error:
        if isinstance(error, UnansweredError) == heard:
            raise
        raise (UnansweredError if heard else ClusterError)(error.message, error.hint) from None
