"""A SQLite file that several processes write to at once, and that a killed one leaves whole."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.errors import TorchsmithError

# Seconds to wait for another torchsmith that writes.
_PATIENCE = 30.0


class Database:
    """One file of tables, made on first use."""

    def __init__(self, path: Path, schema: int, tables: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        with room(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            self._prepare(schema, tables)

    def _prepare(self, schema: int, tables: str) -> None:
        self._write_ahead()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        with self.transaction() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in tables.strip().split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {schema}")
            elif version > schema:
                raise TorchsmithError(
                    f"{self.path} was written by a newer torchsmith",
                    "Use that torchsmith, or name another store in TORCHSMITH_STORE.",
                )

    def _write_ahead(self) -> None:
        """Have readers not wait for writers, and a killed writer leave nothing to mend."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                # For this one SQLite does not wait itself while another does the same.
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Write all of it or nothing; `durable`: on the disk before this returns."""
        with self._lock, room(self.path.parent):
            if durable:
                self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                # A full disk has rolled back by itself.
                with contextlib.suppress(sqlite3.OperationalError):
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            if durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    def rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock:
            return self._connection.execute(query, tuple(values)).fetchall()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
