"""What can become of a job: one list for all engines, and each engine's words for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a job or one of its tasks is."""

    UNSENT = "unsent"
    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def over(self) -> bool:
        """Whether nothing comes after it."""
        return self not in (State.UNSENT, State.WAITING, State.RUNNING)

    @property
    def meaning(self) -> str:
        """What it says to a person."""
        return _MEANINGS[self]


_MEANINGS: Mapping[State, str] = {
    State.UNSENT: "noted here; the engine does not know it (yet)",
    State.WAITING: "accepted; it waits for machines, or for another job",
    State.RUNNING: "it runs",
    State.SUCCEEDED: "ended well",
    State.FAILED: "ended badly",
    State.TIMEOUT: "stopped when its time was up",
    State.CANCELLED: "stopped by somebody, or never begun since what it waited for failed",
    State.LOST: "gone: its machine died, or the engine forgot it before its end was seen",
}

# `scontrol show job`'s JobState. Anything that may still begin or go on is not over.
SLURM: Mapping[str, State] = {
    "PENDING": State.WAITING,
    "CONFIGURING": State.WAITING,
    "REQUEUED": State.WAITING,
    "REQUEUE_HOLD": State.WAITING,
    "REQUEUE_FED": State.WAITING,
    "RESV_DEL_HOLD": State.WAITING,
    "SPECIAL_EXIT": State.WAITING,
    "RUNNING": State.RUNNING,
    "COMPLETING": State.RUNNING,
    "SUSPENDED": State.RUNNING,
    "STOPPED": State.RUNNING,
    "SIGNALING": State.RUNNING,
    "RESIZING": State.RUNNING,
    "STAGE_OUT": State.RUNNING,
    "COMPLETED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "OUT_OF_MEMORY": State.FAILED,
    "LAUNCH_FAILED": State.FAILED,
    "RECONFIG_FAIL": State.FAILED,
    "DEADLINE": State.TIMEOUT,
    "TIMEOUT": State.TIMEOUT,
    "CANCELLED": State.CANCELLED,
    "PREEMPTED": State.CANCELLED,
    "REVOKED": State.CANCELLED,
    "NODE_FAIL": State.LOST,
    "BOOT_FAIL": State.LOST,
}

# The phase of a Pod, and the conditions and reasons of a Job.
KUBERNETES: Mapping[str, State] = {
    "Pending": State.WAITING,
    "Suspended": State.WAITING,
    "Created": State.WAITING,
    "Running": State.RUNNING,
    "Restarting": State.RUNNING,
    "Succeeded": State.SUCCEEDED,
    "Complete": State.SUCCEEDED,
    "Completed": State.SUCCEEDED,
    "Failed": State.FAILED,
    "BackoffLimitExceeded": State.FAILED,
    "PodFailurePolicy": State.FAILED,
    "DeadlineExceeded": State.TIMEOUT,
    "Deleted": State.CANCELLED,
    "Unknown": State.LOST,
}

# Of a job and of its tasks.
OPENPAI: Mapping[str, State] = {
    "WAITING": State.WAITING,
    "RUNNING": State.RUNNING,
    "STOPPING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "STOPPED": State.CANCELLED,
    # Of a job nothing is known of yet.
    "UNKNOWN": State.WAITING,
}

# The words of an engine that are its own.
WORDS: Mapping[str, Mapping[str, State]] = {
    "slurm": SLURM,
    "kubernetes": KUBERNETES,
    "openpai": OPENPAI,
}

# `timeout` ends with this when it had to step in.
TIMED_OUT = 124


def state_of(engine: str, word: str) -> State:
    """What an engine's word stands for; one it was never heard to say means nothing is known."""
    return WORDS[engine].get(word, State.LOST)


def of_exit(code: int) -> State:
    """What an exit code of a task says."""
    if code == 0:
        return State.SUCCEEDED
    return State.TIMEOUT if code == TIMED_OUT else State.FAILED


def together(states: Iterable[State]) -> State:
    """The state of the whole, from those of its parts: what is not over yet outweighs."""
    found = set(states)
    if not found:
        return State.LOST
    if State.RUNNING in found or (State.WAITING in found and any(one.over for one in found)):
        return State.RUNNING
    order = (
        *(State.UNSENT, State.WAITING, State.FAILED, State.TIMEOUT),
        *(State.LOST, State.CANCELLED, State.SUCCEEDED),
    )
    return next(one for one in order if one in found)
