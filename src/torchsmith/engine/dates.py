"""The date a compilation stamps its results with: its source's, whenever it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.entry import OUTPUTS
from torchsmith.engine.schedule import closures
from torchsmith.engine.store import Store
from torchsmith.engine.work import WorkFolder
from torchsmith.plan.models import Step
from torchsmith.sources.dates import EARLIEST, source_date


def origins(steps: Sequence[Step]) -> dict[str, Step]:
    """The fetch that brought what each step compiles; `steps` are ordered."""
    needs = closures(steps)
    found: dict[str, Step] = {}
    for step in steps:
        for other in steps:
            brought = other.kind == "fetch" and other.project == step.project
            if step.kind == "compile" and brought and other.id in needs[step.id]:
                found[step.id] = other
    return found


def build_date(step: Step, fetches: Mapping[str, Step], store: Store, work: WorkFolder) -> int:
    """Seconds since 1970 for SOURCE_DATE_EPOCH.

    It is read off the source once and kept by the source's key: the tree may be dropped from
    the store before the compilation is gone on with, and its bytes must not depend on that.
    """
    fetch = fetches.get(step.id)
    if fetch is None:
        return EARLIEST
    note = store.root / "dates" / fetch.key
    with contextlib.suppress(OSError, ValueError):
        return int(note.read_text(encoding="ascii"))
    entry = store.get(fetch.key, work.path, fetch.variant)
    if entry is None or not entry.outputs:
        return EARLIEST
    date = source_date(entry.folder / OUTPUTS / entry.outputs[0])
    with room(store.root):
        write_whole(note, str(date).encode())
    return date
