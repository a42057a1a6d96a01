"""What was submitted: written down before a target is asked, so that no answer can be lost.

An intent carries a token nobody else has. It goes to the target with the job; an intent that has
no id of the target yet is looked up there by its token, so a connection or a torchsmith that died
in between neither loses a job nor submits it twice.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from torchsmith.engine.database import Database, Mode
from torchsmith.engine.journal import born
from torchsmith.engine.store import default_root, is_shared
from torchsmith.errors import UsageError
from torchsmith.foreign import decode
from torchsmith.jobs.client import Status, Submitted, TargetId
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
        """Submit an intent that somebody else left; it is ours from now on."""
        pid = os.getpid()
        with self._database.transaction(durable=True) as database:
            database.execute(
                "UPDATE submissions SET node = ?, pid = ?, born = ? WHERE id = ?",
                (platform.node(), pid, born(pid), job),
            )
        return self.get(job)

    def unanswered(self, job: str) -> None:
        """Leave an intent without an answer to whoever looks it up next."""
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
        if len(rows) == 1 and job:
            return self._submission(rows[0])
        if not rows or not job:
            raise UsageError(f"there is no job {job!r}", "`torchsmith job list` lists them.")
        known = ", ".join(row["id"] for row in rows)
        raise UsageError(f"{job!r} begins several jobs", f"Say which: {known}.")

    def all(self, limit: int = 50, start: int = 0) -> list[Submission]:
        """The latest jobs, newest first; the first `start` of them left out."""
        rows = self._database.rows(
            "SELECT * FROM submissions ORDER BY at DESC, rowid DESC LIMIT ? OFFSET ?",
            (limit, start),
        )
        return [self._submission(row) for row in rows]

    def open(self) -> list[Submission]:
        """The jobs whose end was not seen, newest first."""
        rows = self._database.rows("SELECT * FROM submissions ORDER BY at DESC, rowid DESC")
        found = (self._submission(row) for row in rows if not _state(row["state"]).over)
        return list(found)

    def _submission(self, row: sqlite3.Row) -> Submission:
        intent = Intent(
            *(row["name"], row["engine"], row["place"], row["digest"]),
            *(Path(row["folder"]), _roles(row["roles"])),
        )
        # Of another machine nothing is known: it may be at it. Of nobody, it is not.
        elsewhere = row["born"] and row["node"] != platform.node()
        at_it = elsewhere or (row["born"] and born(row["pid"]) == row["born"])
        state = _state(row["state"])
        return Submission(
            *(row["id"], row["token"], intent, row["at"], row["engine_id"]),
            replace(_status(row["status"]), state=state),
            self.root / "jobs" / row["id"],
            under_way=bool(not row["engine_id"] and at_it),
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
