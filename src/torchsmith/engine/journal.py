"""What was run, when, and how it ended: one SQLite file beside the store.

Several processes write to it at once. A run that was killed could not say so itself: whoever
reads the journal sees that its process is gone, and calls it interrupted.

    journal.db           of a store that one host builds into
    journals/HOST.db     one for each of several hosts; only that host writes to it, all read it

So a host that died in the middle of writing holds up nobody else; on one common file its lock
would, until the file server lets it go. Whether several hosts build into a store cannot be seen
from one of them: the file server has as a disk of its own what is a network folder for the others.
So a person says it, and the store remembers.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import re
import shutil
import signal
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import ValidationError, convert

from torchsmith import __version__
from torchsmith.engine.database import Database, Mode
from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.events import Event, StepLine, StepProgress, as_json, event_name
from torchsmith.engine.locks import boot
from torchsmith.engine.store import SHARED, Store
from torchsmith.errors import UsageError
from torchsmith.temporary import temporary_folder

T = TypeVar("T")
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
    """When a process began, by the kernel's count; a later one of the same number began later."""
    try:
        # The name in parentheses may hold spaces; the 22nd field is the 20th after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else f"{boot()} {fields[19]}"
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


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that a run says it has; `born` is empty if it was gone from the start."""

    node: str
    pid: int
    born: str

    @property
    def lives(self) -> bool:
        """Whether that process is still here. A number below 1 would mean many of them."""
        return self.pid > 0 and bool(self.born) and born(self.pid) == self.born


def _read(found: sqlite3.Row, defaults: Row, kind: type[T]) -> T | None:
    """A row as what it should be; none if it is not: SQLite keeps any value in any column."""
    try:
        return convert({**defaults, **dict(found)}, kind)
    except ValidationError:
        return None


def _step_record(found: sqlite3.Row, *, gone: bool) -> StepRecord | None:
    record = _read(found, _STEP, StepRecord)
    lost = record is not None and gone and record.status in ("running", "waiting")
    return replace(record, status="interrupted") if record and lost else record


def _run_id(started: float) -> str:
    """A new id: ids sort by time, also within a second, so that a listing of the logs does."""
    seconds = time.strftime("%Y%m%d-%H%M%S", time.gmtime(started))
    return f"{seconds}-{int(started % 1 * 0x1000):03x}{uuid.uuid4().hex[:5]}"


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
        started = time.time()
        run = _run_id(started)
        pid = os.getpid()
        with self._database.transaction() as database:
            database.execute(
                "INSERT INTO runs (id, plan, recipe, host, torchsmith, started, status, node, pid,"
                " born) VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?)",
                (
                    *(run, plan, recipe, host, __version__, started),
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
        """Write down the status of a step."""
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

    def _left(self, row: sqlite3.Row, status: str) -> bool:
        """Whether a run of this machine was killed: it has no end, and no process."""
        owner = _read(row, _RUN, _Owner)
        if status != "running" or owner is None:
            return status == "running"
        return owner.node == platform.node() and not owner.lives

    def runs(self, limit: int = 50, start: int = 0) -> list[RunRecord]:
        """The latest runs, newest first; the first `start` of them left out."""
        rows = self._database.rows(
            "SELECT * FROM runs ORDER BY started DESC, rowid DESC LIMIT ? OFFSET ?", (limit, start)
        )
        return [run for row in rows if (run := self._run(row)) is not None]

    def run(self, identity: str) -> RunRecord | None:
        """One run by its id."""
        rows = self._database.rows("SELECT * FROM runs WHERE id = ?", (identity,))
        return self._run(rows[0]) if rows else None

    def _run(self, row: sqlite3.Row) -> RunRecord | None:
        record = _read(row, _RUN, RunRecord)
        if record is None or not self._left(row, record.status):
            return record
        return replace(record, status="interrupted")

    def stop(self, run: str) -> None:
        """Ask a run of this machine to stop, as Ctrl-C does."""
        rows = self._database.rows("SELECT * FROM runs WHERE id = ?", (run,))
        record = self._run(rows[0]) if rows else None
        owner = _read(rows[0], _RUN, _Owner) if rows else None
        if record is None or owner is None or record.status != "running":
            raise UsageError(f"{run} is not running", "There is nothing to stop.")
        if owner.node != platform.node():
            raise UsageError(f"{run} runs on {owner.node}", "Stop it there.")
        os.kill(owner.pid, signal.SIGTERM)

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run, in the order in which the runner reached them."""
        owners = self._database.rows("SELECT * FROM runs WHERE id = ?", (run,))
        records = [self._run(row) for row in owners]
        gone = any(record is None or record.status == "interrupted" for record in records)
        rows = self._rows("SELECT * FROM steps WHERE run = ? ORDER BY rowid", run)
        return [step for row in rows if (step := _step_record(row, gone=gone)) is not None]

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        """The rows on a run; none if the file, of another version, has no such table."""
        try:
            return self._database.rows(query, (run,))
        except sqlite3.OperationalError as error:
            if "no such" not in str(error):
                raise
            return []

    def earlier(self, plan: str, step: str, key: str, limit: int = 20) -> list[StepRecord]:
        """Earlier runs of a step with this key, or of this name in this plan; newest first."""
        rows = self._database.rows(
            "SELECT steps.*, runs.status AS run_status, node, pid, born FROM steps"
            " JOIN runs ON runs.id = steps.run WHERE steps.started IS NOT NULL"
            " AND (steps.key = ? OR (steps.step = ? AND runs.plan = ?))"
            " ORDER BY steps.started DESC LIMIT ?",
            (key, step, plan, limit),
        )
        found = (_step_record(row, gone=self._left(row, row["run_status"])) for row in rows)
        return [step for step in found if step is not None]

    def events(self, run: str) -> list[dict[str, object]]:
        """What happened in a run, in order."""
        found: list[dict[str, object]] = []
        rows = self._rows("SELECT content FROM events WHERE run = ? ORDER BY number", run)
        for row in rows:
            # A cut record is skipped.
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                content = json.loads(row["content"])
                found += [content] if isinstance(content, dict) else []
        return found


ONE_HOST = "journal.db"
_ALL = 1_000_000
# Older pulses count as dead. Only for the status that a run is shown with; no lock rests on it.
_SILENT_S = 60.0


def own_file(root: Path, kind: str) -> Path:
    """The database of a kind that only this host writes to."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node()) or "_"
    return root / kind / f"{host}.db"


def journal_of(store: Store) -> Journal:
    """The journal of a store."""
    if store.shared:
        return _SharedJournal(own_file(store.root, "journals"), store.root)
    return Journal(store.root / ONE_HOST)


def past_journal(store: Store) -> Journal | None:
    """The journal for reading only; None if nothing was built yet."""
    return journal_of(store) if store.shared or (store.root / ONE_HOST).exists() else None


def find_run(journal: Journal | None, name: str) -> RunRecord:
    """A run by its id, by the beginning of the id or of its last part; `last` is the newest."""
    runs = journal.runs(_ALL) if journal is not None else []
    if name == "last" and runs:
        return runs[0]
    found = [
        run
        for run in runs
        if name and (run.id.startswith(name) or run.id.rpartition("-")[2].startswith(name))
    ]
    if len(found) == 1:
        return found[0]
    if not runs:
        raise UsageError("nothing was built yet", "`torchsmith build` builds something.")
    if not found:
        raise UsageError(f"there is no run {name!r}", "`torchsmith log` lists them.")
    known = ", ".join(run.id for run in found[:5])
    more = ", …" if len(found) > 5 else ""
    raise UsageError(f"{name!r} begins {len(found)} runs", f"Say which: {known}{more}")


class _SharedJournal(Journal):
    """Writes to this host's own file, reads everybody's."""

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__(path, "several hosts")
        self._root = root

    def _others(self) -> Iterator[Path]:
        yield from (path for path in (self._root / ONE_HOST,) if path.exists())
        yield from (path for path in sorted(self.path.parent.glob("*.db")) if path != self.path)

    def _elsewhere(self, question: Callable[[Journal], T]) -> Iterator[T]:
        """The answers of all other hosts' journals that can be read."""
        for path in self._others():
            for reading in (self._as_it_is, self._as_it_was, self._as_it_is):
                try:
                    with reading(path) as journal:
                        yield question(journal)
                    break
                except (sqlite3.DatabaseError, OSError):
                    # The other host is writing, and locks do not reach between hosts.
                    time.sleep(0.1)

    @contextlib.contextmanager
    def _as_it_is(self, path: Path) -> Iterator[Journal]:
        with contextlib.closing(_Foreign(path, self._root / "alive")) as journal:
            yield journal

    @contextlib.contextmanager
    def _as_it_was(self, path: Path) -> Iterator[Journal]:
        """A copy of a journal whose host died writing, rolled back to before.

        Only that host may repair the file itself: a reader cannot know that the host is dead.
        """
        with temporary_folder("journal") as folder:
            for name in (f"{path.name}-journal", path.name):
                shutil.copyfile(path.with_name(name), folder / name)
            with contextlib.closing(sqlite3.connect(folder / path.name)) as copied:
                copied.execute("SELECT count(*) FROM runs").fetchone()
            with self._as_it_is(folder / path.name) as journal:
                yield journal

    def runs(self, limit: int = 50, start: int = 0) -> list[RunRecord]:
        """The latest runs of every host, newest first; the first `start` of them left out."""
        most = start + limit
        found = _joined(super().runs(most), self._elsewhere(lambda journal: journal.runs(most)))
        return sorted(found, key=lambda run: run.started, reverse=True)[start:most]

    def run(self, identity: str) -> RunRecord | None:
        """One run by its id, wherever it ran."""
        mine = super().run(identity)
        return mine or next(
            filter(None, self._elsewhere(lambda journal: journal.run(identity))), None
        )

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run, wherever it ran."""
        mine = super().steps(run)
        return mine or next(filter(None, self._elsewhere(lambda journal: journal.steps(run))), [])

    def earlier(self, plan: str, step: str, key: str, limit: int = 20) -> list[StepRecord]:
        """Earlier runs of a step on any host, newest first."""
        mine = super().earlier(plan, step, key, limit)
        found = _joined(
            mine, self._elsewhere(lambda journal: journal.earlier(plan, step, key, limit))
        )
        return sorted(found, key=lambda item: item.started or 0.0, reverse=True)[:limit]

    def events(self, run: str) -> list[dict[str, object]]:
        """What happened in a run, wherever it ran."""
        mine = super().events(run)
        return mine or next(filter(None, self._elsewhere(lambda journal: journal.events(run))), [])


class _Foreign(Journal):
    """Another host's file, which is only read."""

    def __init__(self, path: Path, alive: Path) -> None:
        super().__init__(path, "read only")
        self._alive = alive

    def _left(self, row: sqlite3.Row, status: str) -> bool:
        owner = _read(row, _RUN, _Owner)
        if status != "running" or owner is None or owner.node == platform.node():
            return super()._left(row, status)
        for sign in self._alive.glob(f"{glob.escape(owner.node)}-{owner.pid}-*"):
            with contextlib.suppress(OSError):
                if time.time() - sign.stat().st_mtime < _SILENT_S:
                    return False
        return True


def _joined(mine: list[T], others: Iterable[list[T]]) -> list[T]:
    return [*mine, *(item for found in others for item in found)]


# The journals of what was built, and of the jobs that were submitted.
_DATABASES = (ONE_HOST, "jobs.db")


def share(store: Store) -> Store:
    """Mark a store as one that several hosts build into."""
    if store.shared:
        return store
    with room(store.root):
        store.root.mkdir(parents=True, exist_ok=True)
        for name in _DATABASES:
            if (store.root / name).exists():
                _leave_write_ahead(store.root / name)
        write_whole(store.root / SHARED, b"Several hosts build into this store.\n")
    return Store(store.root)


def _leave_write_ahead(path: Path) -> None:
    """End the write-ahead log, which other hosts cannot read; nobody else may use the file then."""
    with contextlib.closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as file:
        try:
            mode = file.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
        except sqlite3.OperationalError:
            mode = "locked"
    if mode != "delete":
        raise UsageError(
            f"{path} is in use by a torchsmith on this machine",
            "Share the store when that one is over.",
        )
