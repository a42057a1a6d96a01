"""What can become of a job: one list for all targets, and each target's words for it."""

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


def _words(of_states: Mapping[State, str]) -> Mapping[str, State]:
    return {word: state for state, words in of_states.items() for word in words.split()}


# The phase of a Pod, and the conditions and reasons of a Job.
KUBERNETES = _words(
    {
        State.WAITING: "Pending Suspended Created",
        State.RUNNING: "Running Restarting",
        State.SUCCEEDED: "Succeeded Complete Completed",
        State.FAILED: "Failed BackoffLimitExceeded PodFailurePolicy",
        State.TIMEOUT: "DeadlineExceeded",
        State.CANCELLED: "Deleted",
        State.LOST: "Unknown",
    }
)
# Each cluster's own words.
WORDS: Mapping[str, Mapping[str, State]] = {
    # `scontrol show job`'s JobState. Anything that may still begin or go on is not over.
    "slurm": _words(
        {
            State.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED RESV_DEL_HOLD "
            "SPECIAL_EXIT",
            State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING RESIZING STAGE_OUT",
            State.SUCCEEDED: "COMPLETED",
            State.FAILED: "FAILED OUT_OF_MEMORY LAUNCH_FAILED RECONFIG_FAIL",
            State.TIMEOUT: "DEADLINE TIMEOUT",
            State.CANCELLED: "CANCELLED PREEMPTED REVOKED",
            State.LOST: "NODE_FAIL BOOT_FAIL",
        }
    ),
    "kubernetes": KUBERNETES,
    # Of a job and of its tasks. UNKNOWN: of a job nothing is known of yet.
    "openpai": _words(
        {
            State.WAITING: "WAITING UNKNOWN",
            State.RUNNING: "RUNNING STOPPING",
            State.SUCCEEDED: "SUCCEEDED",
            State.FAILED: "FAILED",
            State.CANCELLED: "STOPPED",
        }
    ),
}

# `timeout` ends with this when it had to step in.
TIMED_OUT = 124


def state_of(engine: str, word: str) -> State:
    """What a target's word stands for; one it was never heard to say means nothing is known."""
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
