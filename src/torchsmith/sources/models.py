"""What bringing a source gives, and how its progress is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

# What is being done, bytes so far, bytes in all; None where not known.
Progress = Callable[[str, int | None, int | None], None]


def quiet(what: str, done: int | None, total: int | None) -> None:
    """Tell nobody."""


def in_turn(progress: Progress) -> Progress:
    """The same progress, callable from several threads."""
    lock = threading.Lock()

    def report(what: str, done: int | None, total: int | None) -> None:
        with lock:
            progress(what, done, total)

    return report


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
