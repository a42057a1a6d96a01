"""What has become of the jobs that were submitted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchsmith.errors import ClusterError, TorchsmithError
from torchsmith.jobs.client import Client, TaskStatus
from torchsmith.jobs.clients import client_for
from torchsmith.jobs.record import last_of_script
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Submission, Submissions

_FIRST_S = 0.2
_SLOWEST_S = 5.0
_SHOWN_TASKS = 3
_SHOWN_LINES = 20


def client_of(submission: Submission) -> Client:
    """The client that reaches the engine a job was submitted to."""
    return client_for(submission.intent.engine, submission.intent.place)


def look_up(submission: Submission, client: Client, submissions: Submissions) -> Submission:
    """A job whose answer was lost, with the id its engine has for it, if it has it."""
    if submission.engine_id or submission.under_way:
        return submission
    found = client.find(submission.token, submission.kept)
    return submission if found is None else submissions.accepted(submission.id, found)


def refreshed(submission: Submission, submissions: Submissions) -> Submission:
    """A job as its engine knows it now; raises `ClusterError` if the engine cannot be asked."""
    if submission.status.state.over:
        return submission
    client = client_of(submission)
    submission = look_up(submission, client, submissions)
    if not submission.engine_id:
        return submission
    status = client.status(submission.submitted)
    if status is None:
        last = submission.status
        status = replace(
            last,
            state=State.LOST,
            reason=f"{client.engine} knows it no more; it was last seen {last.state}",
            ended=time.time(),
            tasks=tuple(
                task if task.state.over else replace(task, state=State.LOST) for task in last.tasks
            ),
        )
    return submissions.seen(submission.id, status)


def all_refreshed(
    submissions: Submissions, limit: int, warn: Callable[[str], None], *, start: int = 0
) -> list[Submission]:
    """The latest jobs behind `start`; those of a silent engine as they were last known."""
    silent: set[tuple[str, str]] = set()
    found = []
    for one in submissions.all(limit, start):
        engine = (one.intent.engine, one.intent.place)
        current = one
        if engine not in silent:
            try:
                current = refreshed(one, submissions)
            except TorchsmithError as error:
                silent.add(engine)
                warn(f"{error.message}; its jobs are shown as they were last known")
        found.append(current)
    return found


def waited(submission: Submission, submissions: Submissions) -> Submission:
    """A job when it is over."""
    pause = _FIRST_S
    while True:
        submission = refreshed(submission, submissions)
        if submission.status.state.over:
            return submission
        if not submission.engine_id and not submission.under_way:
            raise ClusterError(
                f"{submission.id} never reached {submission.intent.engine}",
                "Submit it again: it is not submitted twice.",
            )
        time.sleep(pause)
        pause = min(pause * 1.3, _SLOWEST_S)


def stopped(submission: Submission, submissions: Submissions, patience: float) -> Submission:
    """A job after it was told to stop, and had some time to."""
    submission = refreshed(submission, submissions)
    if submission.status.state.over:
        return submission
    if not submission.engine_id:
        never = replace(submission.status, state=State.CANCELLED, reason="it was never sent")
        return submissions.seen(submission.id, never)
    client_of(submission).cancel(submission.submitted)
    end = time.monotonic() + patience
    while not submission.status.state.over and time.monotonic() < end:
        time.sleep(_FIRST_S)
        submission = refreshed(submission, submissions)
    return submission


@dataclass(frozen=True)
class Failure:
    """The end of what a failed task said, or of the job itself where no task did."""

    task: str
    exit_code: int | None
    lines: tuple[str, ...]


def failures(submission: Submission) -> list[Failure]:
    """Why a job that did not end well did not, as far as its output tells."""
    job, status = submission.submitted, submission.status
    blamed: list[TaskStatus] = [
        task
        for task in status.tasks
        if task.state in (State.FAILED, State.TIMEOUT) and task.exit_code != 0
    ]
    found = [
        Failure(task.name, task.exit_code, tuple(_said(submission, task.name)))
        for task in blamed[:_SHOWN_TASKS]
    ]
    found = [one for one in found if one.lines]
    if not found and (own := last_of_script(job, _SHOWN_LINES)):
        found.append(Failure("", status.exit_code, tuple(own)))
    return found


def _said(submission: Submission, task: str) -> list[str]:
    try:
        said = client_of(submission).logs(submission.submitted, task=task, recent=True)
        return list(deque(said, _SHOWN_LINES))
    except TorchsmithError:
        # That it failed is worth saying where its output cannot be had.
        return []
