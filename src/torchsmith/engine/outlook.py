"""What a run would do, and how long that would take, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.engine.events import StepExpectation
from torchsmith.engine.execute import usable_entry
from torchsmith.engine.expected import Known, expectation, known_of, share_left
from torchsmith.engine.journals import past_journal
from torchsmith.engine.runner import default_work
from torchsmith.engine.schedule import choose, final_steps, readings, steps_to_run
from torchsmith.engine.store import Store
from torchsmith.engine.work import WorkFolder
from torchsmith.errors import StoreError
from torchsmith.host.limits import read_cores
from torchsmith.plan.models import Plan, Step


@dataclass(frozen=True, slots=True)
class Outlook:
    """The steps of a run in order; `expected` has those that would be run, by their ids.

    A step that is neither stored nor expected is needed by nothing that would be run.
    """

    steps: tuple[Step, ...]
    stored: frozenset[str]
    expected: Mapping[str, StepExpectation]
    cores: int

    @property
    def seconds(self) -> float:
        """What all of it takes."""
        return sum(item.seconds for item in self.expected.values())


def outlook(
    plan: Plan,
    store: Store,
    *,
    project: Path,
    work: Path | None = None,
    only: Sequence[str] | None = None,
    cores: int | None = None,
    fresh: bool = False,
) -> Outlook:
    """Look ahead at the run that `build` with the same arguments would be."""
    steps = choose(plan, only)
    folder = WorkFolder(work or default_work(store, plan), store.lock)
    stored = frozenset(
        step.id
        for step in steps
        if usable_entry(step, store, folder.path, str(project.resolve())) is not None
    )
    chosen = steps_to_run(
        steps, readings(steps), final_steps(steps, only), lambda step: step.id in stored
    )
    cores = cores or read_cores()
    try:
        journal = past_journal(store)
    except StoreError:
        journal = None
    expected: dict[str, StepExpectation] = {}
    for step in steps:
        if step.id in chosen:
            known = known_of(journal, plan.name, step) if journal is not None else Known()
            resumes = step.kind == "compile" and not fresh and folder.was_started(step)
            share = share_left(known.same) if resumes else 1.0
            expected[step.id] = expectation(step, cores, known, share)
    if journal is not None:
        journal.close()
    return Outlook(tuple(steps), stored, expected, cores)
