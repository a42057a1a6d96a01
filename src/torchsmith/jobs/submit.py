"""Submitting jobs so that each reaches its engine once, whatever dies on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchsmith.errors import ClusterError, UnansweredError, UsageError
from torchsmith.jobs.client import Client, EngineId, Request
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job
from torchsmith.jobs.render import render
from torchsmith.jobs.slurm import in_order
from torchsmith.jobs.submissions import Intent, Submission, Submissions
from torchsmith.jobs.watch import look_up


def submit(
    jobs: Sequence[Job],
    client: Client,
    submissions: Submissions,
    folder: Path,
    *,
    after: Sequence[Submission] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Submission]:
    """Submit jobs in the order they wait for each other; each is given as soon as it is known.

    All of them are checked before the first is submitted.
    """
    ordered = in_order(tuple(jobs))
    check(ordered, client, folder, after=after, note=note)
    earlier = tuple(EngineId(one.engine_id) for one in after)
    known: dict[str, EngineId] = {}
    for job in ordered:
        before = (*earlier, *(known[name] for name in job.after))
        made = _submit(replace(job, after=()), client, submissions, folder, before, note)
        known[job.name] = EngineId(made.engine_id)
        yield made


def check(
    jobs: Sequence[Job],
    client: Client,
    folder: Path,
    *,
    after: Sequence[Submission] = (),
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Refuse what could not be submitted; nothing is written and no engine is asked for it."""
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
        before = (*(EngineId(one.engine_id) for one in after), *map(EngineId, job.after))
        request = Request(replace(job, after=()), folder, folder, before)
        for line in client.check(request):
            note(line)


def _submit(
    job: Job,
    client: Client,
    submissions: Submissions,
    folder: Path,
    after: tuple[EngineId, ...],
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


def _digest(job: Job, client: Client, folder: Path, after: tuple[EngineId, ...]) -> str:
    engine = hashlib.sha256()
    for name, content in sorted(render((job,), client.engine).files.items()):
        engine.update(f"{name}\0{len(content)}\0".encode() + content)
    engine.update("\0".join((str(folder), *after)).encode())
    return engine.hexdigest()
