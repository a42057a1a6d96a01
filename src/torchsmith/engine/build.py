"""A whole build: a plan run with the store, the journal and the memory governor in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchsmith.engine.events import OnEvent
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import RunResult, default_work, run_plan
from torchsmith.engine.shell import inherited_environment
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.memory_book import MemoryBook


def journal_of(store: Store) -> Journal:
    """The record of what was built into a store."""
    return Journal(store.root / "journal.db")


def build(
    plan: Plan,
    store: Store,
    *,
    project: Path,
    work: Path | None = None,
    only: Sequence[str] | None = None,
    fresh: bool = False,
    jobs: int | None = None,
    memory: int | None = None,
    recipe: str = "",
    host: str = "",
    on_event: OnEvent = lambda _: None,
    on_memory: Callable[[MemoryEvent], None] = lambda _: None,
) -> RunResult:
    """Do what is left to do of a plan, its compilers held to a memory budget.

    `project` is the recipe's folder, which some steps read; `jobs` and `memory` bound the
    compilers, by default every core and the memory there is.
    """
    place = work or default_work(store, plan)
    journal = journal_of(store)
    book = MemoryBook(store.root / "memory.db", plan.name)
    try:
        with Governor(
            budget=memory, cores=jobs, book=book, roots=[place], listener=on_memory
        ) as governor:
            environment = {
                **inherited_environment(),
                **governor.environment(),
                "PROJECT": str(project.resolve()),
            }
            # A fixed number of jobs ends the sharing of slots between files that wait for
            # memory and files that do not.
            environment.pop("MAX_JOBS", None)
            return run_plan(
                plan,
                store,
                journal,
                work=place,
                only=only,
                on_event=on_event,
                environment=environment,
                fresh=fresh,
                recipe=recipe,
                host=host,
            )
    finally:
        journal.close()
