"""Output of several tasks as one stream of lines, for engines that hand it over piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchsmith.errors import UsageError
from torchsmith.jobs.client import EngineError, Request, Submitted, TaskStatus
from torchsmith.jobs.states import State


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


def chooser(job: Submitted, role: str, task: str) -> Callable[[TaskStatus], bool]:
    """Whether a task is one a person asked for: by role, by number, or by name."""

    def wanted(one: TaskStatus) -> bool:
        named = (one.name, one.own_name, str(one.index))
        return role in ("", one.role) and (not task or task in named)

    known = [
        TaskStatus(name, index, State.WAITING)
        for name, count in job.roles.items()
        for index in range(count)
    ]
    if not any(map(wanted, known)):
        raise UsageError(
            f"the job has no task {' '.join(word for word in (role, task) if word)!r}",
            f"Its roles are {', '.join(job.roles)}; tasks are called {known[0].name}.",
        )
    return wanted


def nothing_before(request: Request, engine: str) -> None:
    """Refuse a job that has to wait for another on an engine that starts every job at once."""
    if request.after:
        raise EngineError(
            f"job {request.job.name}: {engine} starts every job at once, and this one comes after "
            f"{', '.join(request.after)}",
            "Submit it once those are over: `torchsmith job status` says when.",
        )
