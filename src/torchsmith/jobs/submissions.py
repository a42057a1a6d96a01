"""What was submitted: written down before a target is asked, so that no answer can be lost.

An intent carries a token nobody else has. It goes to the target with the job; an intent that has
no id of the target yet is looked up there by its token, so a connection or a torchsmith that died
in between neither loses a job nor submits it twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from torchsmith.engine.database import Database, Mode
from torchsmith.engine.journal import born
from torchsmith.engine.store import default_root, is_shared
from torchsmith.errors import ClusterError, TorchsmithError, UnansweredError, UsageError
from torchsmith.foreign import decode
from torchsmith.jobs.client import Client, Output, Request, Status, Submitted, TargetId, TaskStatus
from torchsmith.jobs.clients import client_for, render
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job
from torchsmith.jobs.record import last_of_script
from torchsmith.jobs.slurm import in_order
from torchsmith.jobs.states import State

_SCHEMA = 1
_TABLES = """
CREATE TABLE submissions (
  id TEXT PRIMARY KEY, token TEXT NOT NULL UNIQUE, name TEXT NOT NULL, engine TEXT NOT NULL,
  place TEXT NOT NULL, digest TEXT NOT NULL, folder TEXT NOT NULL, roles TEXT NOT NULL,
  at REAL NOT NULL, engine_id TEXT NOT NULL DEFAULT '', state TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT '', node TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL
);
CREATE INDEX submissions_at ON submissions (at);
"""
_OVER = tuple(state for state in State if state.over)
# No letters that are taken for another one.
_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


@dataclass(frozen=True)
class Intent:
    """A job about to be submitted; `digest` is that of its request: two of the same are equal."""

    name: str
    engine: str
    place: str
    digest: str
    folder: Path
    roles: Mapping[str, int]


@dataclass(frozen=True)
class Submission:
    """One job as the journal tells it; `engine_id` is empty until the target's answer is known."""

    id: str
    token: str
    intent: Intent
    at: float
    engine_id: str
    status: Status
    kept: Path
    # Whether whoever submits it is at it right now.
    under_way: bool = field(default=False, compare=False)

    @property
    def submitted(self) -> Submitted:
        """What its target has to be told to find it."""
        return Submitted(TargetId(self.engine_id), self.kept, self.intent.roles)


class _Row(msgspec.Struct, frozen=True):
    """A job as the table has it; its id names a folder."""

    id: Annotated[str, msgspec.Meta(pattern=f"^[{_LETTERS}]{{6}}\\Z")]
    token: str
    name: str
    engine: str
    place: str
    digest: str
    folder: str
    roles: str
    at: float
    engine_id: str
    state: str
    status: str
    node: str
    pid: int
    born: str


class Submissions:
    """The record of all jobs that were submitted from here."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root or default_root()).absolute()
        mode: Mode = "several hosts" if is_shared(self.root) else "one host"
        self._database = Database(self.root / "jobs.db", _SCHEMA, _TABLES, mode)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def intend(self, intent: Intent) -> Submission:
        """Write down that a job is about to be submitted; on the disk when this returns."""
        pid = os.getpid()
        while True:
            short = "".join(secrets.choice(_LETTERS) for _ in range(6))
            # The short id in front: whoever meets the token at the target knows which job it is.
            token = f"{short}-{secrets.token_hex(8)}"
            values = (
                *(short, token, intent.name, intent.engine, intent.place, intent.digest),
                *(str(intent.folder), json.dumps(dict(intent.roles)), time.time(), State.UNSENT),
                *(platform.node(), pid, born(pid)),
            )
            try:
                with self._database.transaction(durable=True) as database:
                    database.execute(
                        "INSERT INTO submissions (id, token, name, engine, place, digest, folder,"
                        " roles, at, state, node, pid, born)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        values,
                    )
            except sqlite3.IntegrityError:
                continue
            return self.get(short)

    def accepted(self, job: str, engine_id: TargetId) -> Submission:
        """Write down what the target calls a job."""
        with self._database.transaction(durable=True) as database:
            database.execute(
                "UPDATE submissions SET engine_id = ?, state = ? WHERE id = ? AND engine_id = ''",
                (engine_id, State.WAITING, job),
            )
        return self.get(job)

    def taken_over(self, job: str) -> Submission:
        """Take over an intent that another process left behind."""
        pid = os.getpid()
        with self._database.transaction(durable=True) as database:
            database.execute(
                "UPDATE submissions SET node = ?, pid = ?, born = ? WHERE id = ?",
                (platform.node(), pid, born(pid), job),
            )
        return self.get(job)

    def unanswered(self, job: str) -> None:
        """Release an intent that got no answer, so that others may look it up."""
        with self._database.transaction() as database:
            database.execute("UPDATE submissions SET pid = 0, born = '' WHERE id = ?", (job,))

    def withdraw(self, job: str) -> None:
        """Forget an intent the target refused."""
        with self._database.transaction() as database:
            database.execute("DELETE FROM submissions WHERE id = ? AND engine_id = ''", (job,))

    def seen(self, job: str, status: Status) -> Submission:
        """Keep the last that is known of a job; what was over stays as it ended."""
        with self._database.transaction() as database:
            database.execute(
                "UPDATE submissions SET state = ?, status = ? WHERE id = ?"
                f" AND state NOT IN ({', '.join('?' for _ in _OVER)})",
                (status.state, json.dumps(asdict(status)), job, *_OVER),
            )
        return self.get(job)

    def get(self, job: str) -> Submission:
        """One job by its id, or by the beginning of it."""
        rows = self._database.rows(
            "SELECT * FROM submissions WHERE substr(id, 1, ?) = ? ORDER BY at", (len(job), job)
        )
        found = self._submissions(rows)
        if len(found) == 1 and job:
            return found[0]
        if not found or not job:
            raise UsageError(f"there is no job {job!r}", "`torchsmith job list` lists them.")
        known = ", ".join(one.id for one in found)
        raise UsageError(f"{job!r} begins several jobs", f"Say which: {known}.")

    def all(self, limit: int = 50, start: int = 0) -> list[Submission]:
        """The latest jobs, newest first; the first `start` of them left out."""
        rows = self._database.rows(
            "SELECT * FROM submissions ORDER BY at DESC, rowid DESC LIMIT ? OFFSET ?",
            (limit, start),
        )
        return self._submissions(rows)

    def open(self) -> list[Submission]:
        """The jobs whose end was not seen, newest first."""
        rows = self._database.rows("SELECT * FROM submissions ORDER BY at DESC, rowid DESC")
        return [one for one in self._submissions(rows) if not one.status.state.over]

    def _submissions(self, rows: Sequence[sqlite3.Row]) -> list[Submission]:
        """The jobs in rows; a row that somebody else filled with anything is none."""
        found = []
        for row in rows:
            with contextlib.suppress(msgspec.ValidationError):
                found.append(self._submission(msgspec.convert(dict(row), _Row)))
        return found

    def _submission(self, row: _Row) -> Submission:
        intent = Intent(
            *(row.name, row.engine, row.place, row.digest),
            *(Path(row.folder), _roles(row.roles)),
        )
        # Of another machine nothing is known: it may be at it. Of nobody, it is not.
        elsewhere = row.born and row.node != platform.node()
        at_it = elsewhere or (row.born and born(row.pid) == row.born)
        return Submission(
            *(row.id, row.token, intent, row.at, row.engine_id),
            replace(_status(row.status), state=_state(row.state)),
            self.root / "jobs" / row.id,
            under_way=bool(not row.engine_id and at_it),
        )


def _state(text: str) -> State:
    try:
        return State(text)
    except ValueError:
        # A later torchsmith may know more of them.
        return State.LOST


def _roles(text: str) -> dict[str, int]:
    try:
        return decode(text, dict[str, int])
    except msgspec.MsgspecError:
        return {}


def _status(text: str) -> Status:
    """What was last known; nothing where that is half a record, or of another version."""
    try:
        return decode(text, Status)
    except msgspec.MsgspecError:
        return Status(State.UNSENT)


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
    """Stop a job, and wait a while for its end."""
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
    """The last lines of a failed task, or of the job's script where no task failed."""

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
        Failure(task.name, task.exit_code, tuple(_last_lines(submission, task.name)))
        for task in blamed[:_SHOWN_TASKS]
    ]
    found = [one for one in found if one.lines]
    if not found and (own := last_of_script(job, _SHOWN_LINES)):
        found.append(Failure("", status.exit_code, tuple(own)))
    return found


def _last_lines(submission: Submission, task: str) -> list[str]:
    try:
        written = client_of(submission).logs(submission.submitted, Output(task=task, recent=True))
        return list(deque(written, _SHOWN_LINES))
    except TorchsmithError:
        # That it failed is worth saying where its output cannot be had.
        return []
