"""Submitting jobs so that each reaches its target once, and what has become of them."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchsmith.errors import ClusterError, TorchsmithError, UnansweredError, UsageError
from torchsmith.jobs.client import Client, Output, Request, TargetId, TaskStatus
from torchsmith.jobs.clients import client_for, render
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job
from torchsmith.jobs.record import last_of_script
from torchsmith.jobs.slurm import in_order
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Intent, Submission, Submissions


def submit(
    jobs: Sequence[Job],
    client: Client,
    submissions: Submissions,
    folder: Path,
    *,
    after: Sequence[Submission] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Submission]:
    """Check all jobs, then submit them in the order they wait for each other."""
    ordered = in_order(jobs)
    check(ordered, client, folder, after=after, note=note)
    earlier = tuple(TargetId(one.engine_id) for one in after)
    known: dict[str, TargetId] = {}
    for job in ordered:
        before = (*earlier, *(known[name] for name in job.after))
        made = _submit(replace(job, after=()), client, submissions, folder, before, note)
        known[job.name] = TargetId(made.engine_id)
        yield made


def check(
    jobs: Sequence[Job],
    client: Client,
    folder: Path,
    *,
    after: Sequence[Submission] = (),
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Refuse what could not be submitted; nothing is written and no target is asked for it."""
    for one in after:
        if (one.intent.engine, one.intent.place) != (client.engine, client.place):
            raise UsageError(
                f"{one.id} is a job of {one.intent.engine}, and this one goes to {client.engine}",
                "A job can wait for others of its own engine only.",
            )
        if not one.engine_id:
            raise UsageError(f"{one.id} never reached {client.engine}: nothing can wait for it")
    for job in jobs:
        if client.engine != "local" and (unfit := unfit_images(job)):
            raise UsageError(f"job {job.name}: {unfit[0]}")
        # Its folder and what those submitted with it will be called are not known yet.
        before = (*(TargetId(one.engine_id) for one in after), *map(TargetId, job.after))
        request = Request(replace(job, after=()), folder, folder, before)
        for line in client.check(request):
            note(line)


def _submit(
    job: Job,
    client: Client,
    submissions: Submissions,
    folder: Path,
    after: tuple[TargetId, ...],
    note: Callable[[str], None],
) -> Submission:
    intent = Intent(
        *(job.name, client.engine, client.place, _digest(job, client, folder, after)),
        *(folder, {role.name: role.tasks for role in job.roles}),
    )
    mine = _left_behind(intent, client, submissions)
    if mine is not None and mine.engine_id:
        note(f"{job.name}: {client.engine} has it already, from a submission that was cut short")
        return mine
    mine = submissions.taken_over(mine.id) if mine else submissions.intend(intent)
    try:
        answer = client.submit(Request(job, folder, mine.kept, after), mine.token)
    except UnansweredError:
        submissions.unanswered(mine.id)
        raise
    except ClusterError:
        submissions.withdraw(mine.id)
        raise
    return submissions.accepted(mine.id, answer)


def _left_behind(intent: Intent, client: Client, submissions: Submissions) -> Submission | None:
    """The same job, intended before by somebody who died or got no answer."""
    for one in submissions.open():
        if one.intent == intent and not one.engine_id and not one.under_way:
            return look_up(one, client, submissions)
    return None


def _digest(job: Job, client: Client, folder: Path, after: tuple[TargetId, ...]) -> str:
    engine = hashlib.sha256()
    for name, content in sorted(render([job], client.engine).files.items()):
        engine.update(f"{name}\0{len(content)}\0".encode() + content)
    engine.update("\0".join((str(folder), *after)).encode())
    return engine.hexdigest()


_FIRST_S = 0.2
_SLOWEST_S = 5.0
_SHOWN_TASKS = 3
_SHOWN_LINES = 20


def client_of(submission: Submission) -> Client:
    """The client that reaches the target a job was submitted to."""
    return client_for(submission.intent.engine, submission.intent.place)


def look_up(submission: Submission, client: Client, submissions: Submissions) -> Submission:
    """A job whose answer was lost, with its id if its target has it."""
    if submission.engine_id or submission.under_way:
        return submission
    found = client.find(submission.token, submission.kept)
    return submission if found is None else submissions.accepted(submission.id, found)


def refreshed(submission: Submission, submissions: Submissions) -> Submission:
    """A job as its target knows it now; raises `ClusterError` if the target cannot be asked."""
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
            reason=f"{client.engine} no longer knows it; it was last seen {last.state}",
            ended=time.time(),
            tasks=tuple(
                task if task.state.over else replace(task, state=State.LOST) for task in last.tasks
            ),
        )
    return submissions.seen(submission.id, status)


def all_refreshed(
    submissions: Submissions, limit: int, warn: Callable[[str], None], *, start: int = 0
) -> list[Submission]:
    """The latest jobs behind `start`; those of a silent target as they were last known."""
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
        written = client_of(submission).logs(submission.submitted, Output(task=task, recent=True))
        return list(deque(written, _SHOWN_LINES))
    except TorchsmithError:
        # That it failed is worth saying where its output cannot be had.
        return []
