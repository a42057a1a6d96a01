"""Output of several tasks as one stream of lines, for engines that hand it over piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchsmith.errors import UsageError
from torchsmith.jobs.client import Request, TaskStatus


class LineCutter:
    """Cuts the pieces of one task's output into lines; `taken` is how many bytes it was fed."""

    def __init__(self, name: str = "") -> None:
        self.taken = 0
        self._head = f"{name}: " if name else ""
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
        return self._head + line.rstrip(b"\r").decode(errors="replace")


def chosen(tasks: Iterable[TaskStatus], role: str, task: str) -> list[TaskStatus]:
    """The tasks a person asked for: by role, by number, or by name."""
    known = list(tasks)
    found = [
        one
        for one in known
        if role in ("", one.role) and task in ("", one.name, one.own_name, str(one.index))
    ]
    if known and not found:
        raise UsageError(
            f"the job has no task {'-'.join(word for word in (role, task) if word)}",
            f"It has: {', '.join(one.name for one in known)}.",
        )
    return found


def nothing_before(request: Request, engine: str) -> None:
    """Refuse a job that has to wait for another on an engine that starts every job at once."""
    if request.after:
        raise UsageError(
            f"job {request.job.name}: {engine} starts every job at once, and this one comes after "
            f"{', '.join(request.after)}",
            "Submit it once those are over: `torchsmith job status` says when.",
        )
