"""Making a store one that several hosts build into.

Whether they do cannot be seen from one of them: what the file server has as a disk of its own is
a network folder for the others. So it is said once, and the store remembers.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.journals import ONE_HOST
from torchsmith.engine.store import SHARED, Store
from torchsmith.errors import UsageError

# The journals of what was built, and of the jobs that were submitted.
_DATABASES = (ONE_HOST, "jobs.db")


def share(store: Store) -> Store:
    """Have every torchsmith that opens the store reckon with other hosts."""
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
