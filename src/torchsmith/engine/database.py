"""A SQLite file that several processes write to at once, and that a killed one leaves whole.

SQLite's write-ahead log needs memory that all who open the file share, so it is for the processes
of one host (https://sqlite.org/wal.html). A file that several hosts open has a rollback journal.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from torchsmith.engine.disk import room
from torchsmith.errors import StoreError, TorchsmithError

# Seconds to wait for another torchsmith that writes.
_PATIENCE = 30.0
_DEFINITIONS = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
_COMPUTES = re.compile(r"\bAS\b", re.IGNORECASE)
Mode = Literal["one host", "several hosts", "read only"]


class Database:
    """One file of tables, made on first use."""

    def __init__(self, path: Path, schema: int, tables: str, mode: Mode = "one host") -> None:
        self.path = path
        self._lock = threading.Lock()
        # Without a write-ahead log less than all would not outlive a loss of power.
        self._level = "NORMAL" if mode == "one host" else "FULL"
        if mode == "read only":
            self._connect("?mode=ro")
            return
        try:
            with room(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._connect()
                self._log_as("WAL" if mode == "one host" else "TRUNCATE")
                self._prepare(schema, tables)
        except (OSError, sqlite3.DatabaseError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(path.parent, f"{path.name}: {reason}") from error

    def _connect(self, how: str = "") -> None:
        self._connection = sqlite3.connect(
            self.path.absolute().as_uri() + how,
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA trusted_schema = OFF")
        # Views and computed columns are programs, and may run for ever; ours has none.
        if any(_COMPUTES.search(row[0]) for row in self.rows(_DEFINITIONS)):
            raise sqlite3.DatabaseError("it computes what it holds")

    def _prepare(self, schema: int, tables: str) -> None:
        self._connection.execute(f"PRAGMA synchronous = {self._level}")
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

    def _log_as(self, mode: str) -> None:
        """Set the journal mode.

        With WAL, readers wait for no writer, and a killed one is no harm.
        """
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.execute(f"PRAGMA journal_mode = {mode}")
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
                self._connection.execute(f"PRAGMA synchronous = {self._level}")

    def rows(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock:
            return self._connection.execute(query, tuple(values)).fetchall()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
