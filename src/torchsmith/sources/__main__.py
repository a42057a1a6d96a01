"""`python -m torchsmith.sources < FETCH.json`: bring one source tree, as a program.

A fetch of a plan is run by it, so that bringing a source can be stopped, logged and timed like
everything else. Paths of the source are relative to $PROJECT; $TORCHSMITH_DOWNLOADS is where
downloads are kept.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from msgspec.structs import replace

from torchsmith.errors import SourceError
from torchsmith.plan.models import Fetch
from torchsmith.sources.bundle import from_bundle
from torchsmith.sources.download import DOWNLOADS, emptied
from torchsmith.sources.fetch import fetch
from torchsmith.sources.tree import tree_hash
from torchsmith.tasks import run_task

# A log wants to know that it goes on, not every packet.
_EVERY_SECONDS = 5.0


class _Log:
    """Progress as a line now and then."""

    def __init__(self) -> None:
        self._told = 0.0

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told < _EVERY_SECONDS:
            return
        self._told = now
        size = "" if done is None else f" {done / 1e6:.0f} MB"
        whole = "" if total is None else f" of {total / 1e6:.0f} MB"
        print(f"{what}{size}{whole}", flush=True)


def _hold_to_lock(wanted: Fetch, tree: Path) -> None:
    found = tree_hash(tree)
    if found != wanted.tree:
        emptied(tree)
        raise SourceError(
            f"{wanted.into} is not what the lock names: expected the tree {wanted.tree}, "
            f"found {found}",
            "Find out who changed it. If the change is meant, run `torchsmith lock` again.",
        )


def bring(wanted: Fetch) -> None:
    """Bring a source; tell what proves which one it is."""
    choice, into = wanted.source, Path(wanted.into)
    cache = Path(os.environ[DOWNLOADS])
    if choice.path:
        project = Path(os.environ.get("PROJECT", "."))
        choice = replace(choice, path=str(project / choice.path))
    shutil.rmtree(into, ignore_errors=True)
    if wanted.bundle:
        choice = from_bundle(Path(wanted.bundle), choice, cache)
    brought = fetch(choice, into, cache=cache, progress=_Log())
    if wanted.tree:
        _hold_to_lock(wanted, into)
    print(f"{brought.kind} from {brought.location}")
    for name, value in brought.evidence.items():
        print(f"  {name}: {value}")
    for note in brought.notes:
        print(f"warning: {note}")


if __name__ == "__main__":
    run_task(Fetch, bring)
