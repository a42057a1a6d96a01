"""What was run, when, and how it ended: one SQLite file beside the store.

Several processes write to it at once. A run that was killed could not say so itself: whoever
reads the journal sees that its process is gone, and calls it interrupted.

Of a store that several hosts build into each has a file of its own, and reads those of the others
(`journals.py`): a host that died in the middle of writing holds up nobody else, where on one
common file its lock would, until the file server lets it go.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torchsmith import __version__
from torchsmith.engine.database import Database, Mode
from torchsmith.engine.events import Event, StepLine, StepProgress, as_json, event_name
from torchsmith.errors import UsageError

RunStatus = Literal["running", "done", "failed", "interrupted"]
StepStatus = Literal["running", "waiting", "done", "cached", "skipped", "failed", "interrupted"]

_SCHEMA = 1
_TABLES = """
CREATE TABLE runs (
  id TEXT PRIMARY KEY, plan TEXT NOT NULL, recipe TEXT NOT NULL, host TEXT NOT NULL,
  torchsmith TEXT NOT NULL, started REAL NOT NULL, ended REAL, status TEXT NOT NULL,
  error TEXT NOT NULL DEFAULT '', node TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL
);
CREATE INDEX runs_started ON runs (started);
CREATE TABLE steps (
  run TEXT NOT NULL REFERENCES runs (id), step TEXT NOT NULL, key TEXT NOT NULL,
  title TEXT NOT NULL, status TEXT NOT NULL, started REAL, ended REAL, cpu_seconds REAL,
  peak_rss INTEGER, log TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, step)
);
CREATE TABLE events (
  number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs (id),
  at REAL NOT NULL, name TEXT NOT NULL, content TEXT NOT NULL
);
CREATE INDEX events_run ON events (run);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'append only'); END;
"""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as the journal tells it."""

    id: str
    plan: str
    recipe: str
    host: str
    torchsmith: str
    started: float
    ended: float | None
    status: str
    error: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a run; `peak_rss` in bytes, of its largest process."""

    run: str
    step: str
    key: str
    title: str
    status: str
    started: float | None
    ended: float | None
    cpu_seconds: float | None
    peak_rss: int | None
    log: str
    error: str


def born(pid: int) -> str:
    """When a process began, as the kernel counts: tells it from a later one of the same number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name in parentheses may hold spaces; the 22nd field is the 20th after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else f"{boot} {fields[19]}"
    except (OSError, IndexError):
        return ""


Row = Mapping[str, Any]
# What a file of another version may lack.
_RUN: Row = {
    **dict.fromkeys(("plan", "recipe", "host", "torchsmith", "error", "node", "born"), ""),
    "started": 0.0,
    "ended": None,
    "status": "interrupted",
    "pid": 0,
}
_STEP: Row = {
    **dict.fromkeys(("key", "title", "status", "log", "error"), ""),
    **dict.fromkeys(("started", "ended", "cpu_seconds", "peak_rss")),
}


def _step_record(found: sqlite3.Row, *, gone: bool) -> StepRecord:
    row: Row = {**_STEP, **dict(found)}
    record = StepRecord(**{name: row[name] for name in StepRecord.__slots__})
    lost = gone and record.status in ("running", "waiting")
    return replace(record, status="interrupted") if lost else record


class Journal:
    """The record of all runs; of those of one host where several build into a store."""

    def __init__(self, path: Path, mode: Mode = "one host") -> None:
        self.path = path
        self._database = Database(path, _SCHEMA, _TABLES, mode)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def begin(self, plan: str, recipe: str = "", host: str = "") -> str:
        """Open a run and return its id."""
        # Ids sort by time, so that a listing of the logs does.
        run = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + uuid.uuid4().hex[:6]
        pid = os.getpid()
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO runs (id, plan, recipe, host, torchsmith, started, status, node, pid,"
                " born) VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?)",
                (
                    *(run, plan, recipe, host, __version__, time.time()),
                    *(platform.node(), pid, born(pid)),
                ),
            )
        return run

    def end(self, run: str, status: RunStatus, error: str = "") -> None:
        """Close a run; steps that were under way end with it."""
        now = time.time()
        with self._database.transaction() as database:
            database.execute(
                "UPDATE runs SET ended = ?, status = ?, error = ? WHERE id = ?",
                (now, status, error, run),
            )
            database.execute(
                "UPDATE steps SET ended = ?, status = 'interrupted'"
                " WHERE run = ? AND status IN ('running', 'waiting')",
                (now, run),
            )

    def step(
        self,
        run: str,
        step: str,
        status: StepStatus,
        *,
        key: str = "",
        title: str = "",
        log: str = "",
        cpu_seconds: float | None = None,
        peak_rss: int | None = None,
        error: str = "",
    ) -> None:
        """Note where a step of a run is."""
        now = time.time()
        under_way = status in ("running", "waiting")
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO steps (run, step, key, title, status, started, ended, cpu_seconds,"
                " peak_rss, log, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (run, step) DO UPDATE SET status = excluded.status,"
                " started = coalesce(steps.started, excluded.started), ended = excluded.ended,"
                " cpu_seconds = coalesce(excluded.cpu_seconds, steps.cpu_seconds),"
                " peak_rss = coalesce(excluded.peak_rss, steps.peak_rss),"
                " log = CASE excluded.log WHEN '' THEN steps.log ELSE excluded.log END,"
                " error = excluded.error",
                (
                    *(run, step, key, title, status, now if under_way else None),
                    *(None if under_way else now, cpu_seconds, peak_rss, log, error),
                ),
            )

    def add(self, run: str, event: Event) -> None:
        """Keep an event. Lines are in the log and progress is of the moment: neither is kept."""
        if isinstance(event, StepLine | StepProgress):
            return
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO events (run, at, name, content) VALUES (?, ?, ?, ?)",
                (run, event.at, event_name(event), json.dumps(as_json(event))),
            )

    def _left(self, row: Row, status: str) -> bool:
        """Whether a run that never ended has no process any more (on this machine)."""
        here = status == "running" and row["node"] == platform.node()
        return bool(here and born(row["pid"]) != row["born"])

    def runs(self, limit: int = 50, start: int = 0) -> list[RunRecord]:
        """The latest runs, newest first; the first `start` of them left out."""
        rows = self._database.rows(
            "SELECT * FROM runs ORDER BY started DESC, rowid DESC LIMIT ? OFFSET ?", (limit, start)
        )
        return [self._run(row) for row in rows]

    def run(self, identity: str) -> RunRecord | None:
        """One run by its id."""
        rows = self._database.rows("SELECT * FROM runs WHERE id = ?", (identity,))
        return self._run(rows[0]) if rows else None

    def _run(self, found: sqlite3.Row) -> RunRecord:
        row: Row = {**_RUN, **dict(found)}
        record = RunRecord(**{name: row[name] for name in RunRecord.__slots__})
        return replace(record, status="interrupted") if self._left(row, record.status) else record

    def stop(self, run: str) -> None:
        """Ask a run of this machine to stop, as Ctrl-C does."""
        row = self._owner(run)
        if row["status"] != "running" or self._left(row, "running"):
            raise UsageError(f"{run} is not running", "There is nothing to stop.")
        if row["node"] != platform.node():
            raise UsageError(f"{run} runs on {row['node']}", "Stop it there.")
        os.kill(row["pid"], signal.SIGTERM)

    def _owner(self, run: str) -> Row:
        rows = self._database.rows("SELECT * FROM runs WHERE id = ?", (run,))
        return {**_RUN, **(dict(rows[0]) if rows else {})}

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run, in the order they were come to."""
        owner = self._owner(run)
        rows = self._rows("SELECT * FROM steps WHERE run = ? ORDER BY rowid", run)
        gone = self._left(owner, owner["status"])
        return [_step_record(row, gone=gone) for row in rows]

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        """What is known of a run; nothing where a file of another version has no such table."""
        try:
            return self._database.rows(query, (run,))
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            return []

    def earlier(self, plan: str, step: str, key: str, limit: int = 20) -> list[StepRecord]:
        """The times a step was begun: with this key, or by this name in this plan; newest first."""
        rows = self._database.rows(
            "SELECT steps.*, runs.status AS run_status, node, pid, born FROM steps"
            " JOIN runs ON runs.id = steps.run WHERE steps.started IS NOT NULL"
            " AND (steps.key = ? OR (steps.step = ? AND runs.plan = ?))"
            " ORDER BY steps.started DESC LIMIT ?",
            (key, step, plan, limit),
        )
        return [_step_record(row, gone=self._left(dict(row), row["run_status"])) for row in rows]

    def images(self, limit: int = 50) -> list[dict[str, object]]:
        """The latest images that were built, newest first."""
        rows = self._database.rows(
            "SELECT content FROM events WHERE name = 'image-built' ORDER BY number DESC LIMIT ?",
            (limit,),
        )
        return [json.loads(row["content"]) for row in rows]

    def events(self, run: str) -> list[dict[str, object]]:
        """What happened in a run, in order."""
        found: list[dict[str, object]] = []
        rows = self._rows("SELECT content FROM events WHERE run = ? ORDER BY number", run)
        for row in rows:
            # Half a record tells nothing, and hides none of the others.
            with contextlib.suppress(ValueError, TypeError):
                content = json.loads(row["content"])
                found += [content] if isinstance(content, dict) else []
        return found
