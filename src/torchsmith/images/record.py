"""Keeping in the journal what went to a registry and came from one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torchsmith.engine.journals import journal_of
from torchsmith.engine.store import Store
from torchsmith.errors import InterruptedRunError, TorchsmithError
from torchsmith.images.reference import reference
from torchsmith.images.stopping import heeding_signals


class Record:
    """A run of the journal; each image in it is a step whose key is the registry's digest."""

    def __init__(self, store: Path | None, what: str, recipe: str = "") -> None:
        self._journal = journal_of(Store(store))
        self._run = self._journal.begin(what, recipe)

    def add(self, name: str, digest: str, title: str) -> None:
        """Note an image by the name that means just it."""
        pinned = str(reference(name).at(digest))
        self._journal.step(self._run, pinned, "done", key=digest, title=title)

    def end(self, error: BaseException | None) -> None:
        """Note how it ended."""
        if error is None:
            self._journal.end(self._run, "done")
        elif isinstance(error, TorchsmithError) and not isinstance(error, InterruptedRunError):
            self._journal.end(self._run, "failed", error.message)
        else:
            self._journal.end(self._run, "interrupted")
        self._journal.close()


@contextlib.contextmanager
def recorded(store: Path | None, what: str, recipe: str = "") -> Iterator[Record]:
    """A run of the journal around pushing or pulling."""
    record = Record(store, what, recipe)
    try:
        with heeding_signals():
            yield record
    except BaseException as error:
        record.end(error)
        raise
    record.end(None)
