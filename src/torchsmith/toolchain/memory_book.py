"""The memory that compiling each file took before: the governor learns from this book.

One SQLite file, written by every build of this machine at once. It is only a hint: a book that
cannot be read is put aside and a new one begun, and one that cannot be written stops no build.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import OutputError
from torchsmith.toolchain.compiles import Compile, Language

MIB = 1 << 20

# For a file never seen, in a project never seen. Measured on torch 2.6 and its companions: a
# C++ file mostly stays under 1 GiB, CUDA files for several architectures go to 3 and beyond.
GUESSES: Mapping[Language, int] = {
    "c": 128 * MIB,
    "c++": 1024 * MIB,
    "cuda": 3072 * MIB,
    "link": 1024 * MIB,
    "other": 256 * MIB,
}
# Below this many files a percentile says little.
_LEAST_OF_FOLDER = 3
_LEAST_OF_PROJECT = 10
_PERCENTILE = 0.9
# A peak grows at once and shrinks slowly: too little asked for costs a compile.
_SHRINK = 0.25

_SCHEMA = """
CREATE TABLE IF NOT EXISTS compile (
  project TEXT NOT NULL, file TEXT NOT NULL, flags TEXT NOT NULL, folder TEXT NOT NULL,
  language TEXT NOT NULL, peak INTEGER NOT NULL, cpu_seconds REAL NOT NULL,
  wall_seconds REAL NOT NULL, runs INTEGER NOT NULL, seen REAL NOT NULL,
  PRIMARY KEY (project, file, flags)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_folder ON compile (project, folder, language, peak);
CREATE INDEX IF NOT EXISTS by_language ON compile (project, language, peak);
"""
_RECORD = f"""
INSERT INTO compile VALUES
  (:project, :file, :flags, :folder, :language, :peak, :cpu, :wall, 1, :now)
ON CONFLICT DO UPDATE SET
  peak = CASE WHEN excluded.peak >= peak THEN excluded.peak
         ELSE CAST(peak + (excluded.peak - peak) * {_SHRINK} AS INTEGER) END,
  cpu_seconds = excluded.cpu_seconds, wall_seconds = excluded.wall_seconds,
  runs = runs + 1, seen = excluded.seen
"""
_RECORD_KILLED = """
INSERT INTO compile VALUES (:project, :file, :flags, :folder, :language, :peak, 0, 0, 0, :now)
ON CONFLICT DO UPDATE SET peak = max(peak, excluded.peak), seen = excluded.seen
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The peak of memory that a compile is expected to reach, and what that rests on."""

    bytes: int
    basis: str


class MemoryBook:
    """The book; ``MemoryBook()`` without a path is kept in memory and forgotten."""

    def __init__(self, path: Path | None = None, project: str = "") -> None:
        self.path = path
        self.project = project
        self._lock = threading.Lock()
        self._link = self._opened()

    def _opened(self) -> sqlite3.Connection:
        if self.path is None:
            return _connect(":memory:")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return _connect(str(self.path))
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self.path.replace(self.path.with_name(self.path.name + ".broken"))
                return _connect(str(self.path))
        except (OSError, sqlite3.Error) as error:
            raise OutputError(
                f"{self.path}: cannot be opened as the book of compile memory: {error}",
                "Make its folder writable, or name another one.",
            ) from error

    def __enter__(self) -> MemoryBook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._link.close()

    def record(self, unit: Compile, peak: int, cpu_seconds: float, wall_seconds: float) -> None:
        """Write down what a compile that succeeded took."""
        self._write(_RECORD, unit, peak, cpu_seconds, wall_seconds)

    def record_killed(self, unit: Compile, peak: int) -> None:
        """Write down the memory that a compile had when it was killed for wanting more."""
        self._write(_RECORD_KILLED, unit, peak, 0.0, 0.0)

    def _write(self, sql: str, unit: Compile, peak: int, cpu: float, wall: float) -> None:
        values = {
            "project": self.project,
            "file": unit.file,
            "flags": unit.flags,
            "folder": unit.folder,
            "language": unit.language,
            "peak": peak,
            "cpu": cpu,
            "wall": wall,
            "now": time.time(),
        }
        # A full disk or a lock held too long loses one lesson, not the build.
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._link.execute(sql, values)

    def known(self, unit: Compile) -> int | None:
        """Return the peak written down for exactly this compile."""
        return self._number(
            "SELECT peak FROM compile WHERE project = ? AND file = ? AND flags = ?",
            self.project,
            unit.file,
            unit.flags,
        )

    def estimate(self, unit: Compile) -> Estimate:
        """Return the best estimate: from this file, else from similar ones, else a guess."""
        exact = self.known(unit)
        if exact is not None:
            return Estimate(exact, "this file")
        other = self._number(
            "SELECT max(peak) FROM compile WHERE project = ? AND file = ? AND language = ?",
            self.project,
            unit.file,
            unit.language,
        )
        if other is not None:
            return Estimate(other, "this file with other flags")
        beside = self.percentile(
            _PERCENTILE, unit.language, folder=unit.folder, least=_LEAST_OF_FOLDER
        )
        if beside is not None:
            return Estimate(beside, f"{unit.language} files in {unit.folder}")
        like = self.percentile(_PERCENTILE, unit.language, least=_LEAST_OF_PROJECT)
        if like is not None:
            return Estimate(like, f"{unit.language} files of this project")
        return Estimate(GUESSES[unit.language], "a guess")

    def percentile(
        self, share: float, language: Language, *, folder: str | None = None, least: int = 1
    ) -> int | None:
        """Return the peak that this share of the files stay within; `None` if too few are known."""
        where = "WHERE project = ? AND language = ?"
        values: list[str | int] = [self.project, language]
        if folder is not None:
            where += " AND folder = ?"
            values.append(folder)
        count = self._number(f"SELECT count(*) FROM compile {where}", *values) or 0
        if count < max(1, least):
            return None
        place = min(count - 1, int(share * count))
        return self._number(
            f"SELECT peak FROM compile {where} ORDER BY peak LIMIT 1 OFFSET ?", *values, place
        )

    def _number(self, sql: str, *values: str | int) -> int | None:
        with self._lock:
            try:
                row = self._link.execute(sql, values).fetchone()
            except sqlite3.Error:
                return None
        return None if row is None or row[0] is None else int(row[0])


def _connect(place: str) -> sqlite3.Connection:
    link = sqlite3.connect(place, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        link.execute("PRAGMA journal_mode=WAL")
        link.execute("PRAGMA synchronous=NORMAL")
        link.executescript(_SCHEMA)
    except sqlite3.Error:
        link.close()
        raise
    return link
