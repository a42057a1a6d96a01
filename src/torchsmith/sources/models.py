"""The result of fetching a source, and how progress is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from torchsmith.errors import SourceError

# What is being done, bytes so far, bytes in all; None where not known.
Progress = Callable[[str, int | None, int | None], None]


def quiet(what: str, done: int | None, total: int | None) -> None:
    """Report nothing."""


class Shared:
    """A progress that several threads may report to, and that can tell them to stop."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let every thread that reports from now on end with an error."""
        self._stopped.set()

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        """Report, one thread at a time."""
        if self._stopped.is_set():
            raise SourceError(f"{what}: stopped")
        with self._lock:
            self._progress(what, done, total)


@dataclass(frozen=True, slots=True)
class FetchedSource:
    """A source tree that was brought whole.

    `location` is where it really came from, `evidence` what proves which source it is
    (commit, file hashes, signing key, tree hash), `notes` what a person should know.
    """

    kind: str
    location: str
    evidence: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
