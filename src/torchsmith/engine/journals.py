"""Several hosts that build into one store: their journals, read as one.

journal.db           of the time before the store was shared
journals/HOST.db     one for each host; only that host writes to it

Whether several hosts build into a store cannot be seen from one of them: the file server has as a
disk of its own what is a network folder for the others. So a person says it, and the store
remembers.
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.journal import Journal, Row, RunRecord, StepRecord
from torchsmith.engine.store import SHARED, Store
from torchsmith.errors import UsageError
from torchsmith.temporary import temporary_folder

T = TypeVar("T")
ONE_HOST = "journal.db"
_ALL = 1_000_000
# A sign of life this old is none. Only for saying what became of a run; locks do not rest on it.
_SILENT_S = 60.0


def own_file(root: Path, kind: str) -> Path:
    """The database of a kind that only this host writes to."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node()) or "_"
    return root / kind / f"{host}.db"


def journal_of(store: Store) -> Journal:
    """The record of what was built into a store."""
    return shared_journal(store.root) if store.shared else Journal(store.root / ONE_HOST)


def past_journal(store: Store) -> Journal | None:
    """The record for those who only read; None where nothing was built yet."""
    return journal_of(store) if store.shared or (store.root / ONE_HOST).exists() else None


def find_run(journal: Journal | None, name: str) -> RunRecord:
    """A run by its id, the beginning of it or of its last part; `last` is the newest."""
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


def shared_journal(root: Path) -> SharedJournal:
    """The journal of a store that several hosts build into."""
    return SharedJournal(own_file(root, "journals"), root)


class SharedJournal(Journal):
    """Writes to this host's own file, reads everybody's."""

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__(path, "several hosts")
        self._root = root

    def _others(self) -> Iterator[Path]:
        yield from (path for path in (self._root / ONE_HOST,) if path.exists())
        yield from (path for path in sorted(self.path.parent.glob("*.db")) if path != self.path)

    def _asked(self, question: Callable[[Journal], T]) -> Iterator[T]:
        """The answer of every other host's journal that can be read."""
        for path in self._others():
            for reading in (self._as_it_is, self._as_it_was, self._as_it_is):
                try:
                    with reading(path) as journal:
                        yield question(journal)
                    break
                except (sqlite3.DatabaseError, OSError):
                    # Caught while it is written to, where locks do not reach between hosts.
                    time.sleep(0.1)

    @contextlib.contextmanager
    def _as_it_is(self, path: Path) -> Iterator[Journal]:
        with contextlib.closing(_Foreign(path, self._root / "alive")) as journal:
            yield journal

    @contextlib.contextmanager
    def _as_it_was(self, path: Path) -> Iterator[Journal]:
        """A copy of a journal whose host died writing, rolled back to before.

        The file itself is for that host to mend: a reader cannot know that it is dead.
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
        found = _joined(super().runs(most), self._asked(lambda journal: journal.runs(most)))
        return sorted(found, key=lambda run: run.started, reverse=True)[start:most]

    def run(self, identity: str) -> RunRecord | None:
        """One run by its id, wherever it ran."""
        mine = super().run(identity)
        return mine or next(filter(None, self._asked(lambda journal: journal.run(identity))), None)

    def steps(self, run: str) -> list[StepRecord]:
        """The steps of a run, wherever it ran."""
        mine = super().steps(run)
        return mine or next(filter(None, self._asked(lambda journal: journal.steps(run))), [])

    def earlier(self, plan: str, step: str, key: str, limit: int = 20) -> list[StepRecord]:
        """The times a step was begun on any host, newest first."""
        mine = super().earlier(plan, step, key, limit)
        found = _joined(mine, self._asked(lambda journal: journal.earlier(plan, step, key, limit)))
        return sorted(found, key=lambda item: item.started or 0.0, reverse=True)[:limit]

    def events(self, run: str) -> list[dict[str, object]]:
        """What happened in a run, wherever it ran."""
        mine = super().events(run)
        return mine or next(filter(None, self._asked(lambda journal: journal.events(run))), [])


class _Foreign(Journal):
    """Another host's file, which is only read."""

    def __init__(self, path: Path, alive: Path) -> None:
        super().__init__(path, "read only")
        self._alive = alive

    def _left(self, row: Row, status: str) -> bool:
        if status != "running":
            return False
        if row["node"] == platform.node():
            return super()._left(row, status)
        for sign in self._alive.glob(f"{row['node']}-{row['pid']}-*"):
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
    """Other hosts cannot read a write-ahead log; leaving it needs the file for oneself."""
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
