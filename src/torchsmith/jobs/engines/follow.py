"""Which tasks of a job a person asks for, and which jobs an engine can start."""

from __future__ import annotations

from collections.abc import Callable

from torchsmith.errors import ClusterError, UsageError
from torchsmith.jobs.client import Request, Submitted, TaskStatus
from torchsmith.jobs.states import State


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
        raise ClusterError(
            f"job {request.job.name}: {engine} starts every job at once, and this one comes after "
            f"{', '.join(request.after)}",
            "Submit it once those are over: `torchsmith job status` says when.",
        )
