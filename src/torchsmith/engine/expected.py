"""How long what is left of a plan is expected to take, before any of it is run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from torchsmith.engine.events import Progress, StepExpectation
from torchsmith.engine.journal import Journal, StepRecord, past_journal
from torchsmith.engine.store import Store
from torchsmith.errors import StoreError
from torchsmith.owners import open_plain
from torchsmith.plan.models import Plan, Step

# The end of a log tells how far its compilation came.
_TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class Known:
    """Earlier runs of a step, newest first: with the `same` key, and `like` it in the same plan."""

    same: Sequence[StepRecord] = ()
    like: Sequence[StepRecord] = ()


def known_of(journal: Journal, plan: str, step: Step, but: str = "") -> Known:
    """What the journal has on a step of a plan, without the run `but`."""
    found = [item for item in journal.earlier(plan, step.id, step.key) if item.run != but]
    same = [item for item in found if item.key == step.key]
    return Known(same, [item for item in found if item.key != step.key])


def expectation(step: Step, cores: int, known: Known, share: float = 1.0) -> StepExpectation:
    """A step's expected time, from earlier runs or from the facts; `share` is left to do."""
    for records, basis in ((known.same, "as it took before"), (known.like, "as one like it took")):
        for record in records:
            if record.status != "done" or record.started is None or record.ended is None:
                continue
            if not _resumed(record, known.same):
                seconds = max(0.0, record.ended - record.started)
                return _expectation(step, seconds, basis, share)
    basis = step.cost.basis or "unknown"
    # Only compilations use every core.
    seconds = step.cost.core_seconds / (max(1, cores) if step.kind == "compile" else 1)
    return _expectation(step, seconds, basis, share)


def measured(plan: Plan, store: Store) -> Plan:
    """The plan with the time its steps took when the very same steps ran before."""
    try:
        journal = past_journal(store)
    except StoreError:
        # What was built is worth knowing, but no reason not to plan.
        return plan
    if journal is None:
        return plan
    with closing(journal):
        steps = tuple(_as_it_took(step, journal) for step in plan.steps)
    return replace(plan, steps=steps)


def _as_it_took(step: Step, journal: Journal) -> Step:
    records = journal.earlier("", "", step.key) if step.cost.core_seconds else []
    for record in records:
        if record.status == "done" and record.cpu_seconds and not _resumed(record, records):
            cost = replace(
                step.cost,
                core_seconds=record.cpu_seconds,
                apart_core_seconds=0.0,
                uncached_core_seconds=0.0,
                basis="as it took before",
            )
            return replace(step, cost=cost)
    return step


def _expectation(step: Step, seconds: float, basis: str, share: float) -> StepExpectation:
    if share < 1:
        basis = f"{basis}; {1 - share:.0%} is done"
    return StepExpectation(step=step.id, title=step.title, seconds=seconds * share, basis=basis)


def _resumed(record: StepRecord, same: Iterable[StepRecord]) -> bool:
    """Whether a run continued an earlier one: its time is only a part of the whole."""
    return any(
        other.status in ("interrupted", "failed")
        and other.key == record.key
        and (other.started or 0) < (record.started or 0)
        for other in same
    )


def share_left(same: Sequence[StepRecord]) -> float:
    """The share of a stopped compilation that is left, by the logs of its attempts.

    Ninja counts only what an attempt has to do: the first total is the whole, the last rest is what
    is left.
    """
    whole = 0
    rest: int | None = None
    for record in sorted(same, key=lambda item: item.started or 0):
        if record.status == "done" or not record.log:
            continue
        came = last_count(Path(record.log))
        if came is not None:
            done, total = came
            whole = max(whole, total)
            rest = total - done
    return rest / whole if rest is not None and whole else 1.0


def last_count(log: Path) -> tuple[int, int] | None:
    """The count of done files and of all files of a compilation, from the end of its log."""
    try:
        with os.fdopen(open_plain(log), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    progress = Progress("")
    for line in reversed(lines):
        if (found := progress.read(line)) is not None:
            return found.done, found.total
    return None
