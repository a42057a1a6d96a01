"""A whole build: a plan run with the store, the journal and the memory governor in place."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from torchsmith.engine.compile_log import CompileLog
from torchsmith.engine.events import CompilerCacheUsed, Event, OnEvent, RunFinished
from torchsmith.engine.job_log import JobLog
from torchsmith.engine.journal import Journal
from torchsmith.engine.journals import ONE_HOST, own_file, shared_journal
from torchsmith.engine.runner import RunResult, default_work, run_plan
from torchsmith.engine.shell import inherited_environment
from torchsmith.engine.store import Store
from torchsmith.engine.wheels import TREE, gather, offline
from torchsmith.errors import UsageError
from torchsmith.host.limits import read_cores
from torchsmith.host.models import Host
from torchsmith.plan.build import with_keys
from torchsmith.plan.in_place import in_place
from torchsmith.plan.models import Cost, Plan, Step
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.bundle import Manifest, read_manifest, write_bundle
from torchsmith.sources.required import required
from torchsmith.sources.tree import tree_hash
from torchsmith.toolchain.accel import SAME, SWITCH, acceleration
from torchsmith.toolchain.build_paths import names_from_within
from torchsmith.toolchain.cache import CompilerCache, compiler_cache, without_a_cache
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.huge_pages import huge_pages
from torchsmith.toolchain.memory_book import MemoryBook

T = TypeVar("T")


def without_acceleration(plan: Plan) -> Plan:
    """The plan with every file compiled by itself; its compile steps get keys of their own."""
    steps = tuple(_apart(step) if step.kind == "compile" else step for step in plan.steps)
    return with_keys(replace(plan, steps=steps), {})


def _apart(step: Step) -> Step:
    seconds = step.cost.apart_core_seconds or step.cost.core_seconds
    cost = replace(step.cost, core_seconds=seconds)
    env = (*step.env, (SWITCH, "off"), ("CCACHE_NAMESPACE", "torchsmith-apart"))
    return replace(step, env=env, cost=cost)


def without_cache(plan: Plan) -> Plan:
    """The plan with what it costs where no compiler cache keeps what one variant compiled."""

    def uncached(cost: Cost) -> Cost:
        return replace(cost, core_seconds=cost.uncached_core_seconds or cost.core_seconds)

    return replace(
        plan, steps=tuple(replace(step, cost=uncached(step.cost)) for step in plan.steps)
    )


def with_same_batches(plan: Plan) -> Plan:
    """The plan with batches that no number of cores and no earlier build has a say in."""
    steps = tuple(
        replace(step, env=(*step.env, (SWITCH, SAME))) if step.kind == "compile" else step
        for step in plan.steps
    )
    return with_keys(replace(plan, steps=steps), {})


def journal_of(store: Store) -> Journal:
    """The record of what was built into a store."""
    return shared_journal(store.root) if store.shared else Journal(store.root / ONE_HOST)


def keyed(plan: Plan, project: Path) -> Plan:
    """The plan with keys that know what lies in the recipe's own folder.

    What is built of a folder there is built in the tree of the time before.
    """
    read: dict[str, str] = {}
    for name in sorted({name for step in plan.steps for name in step.reads}):
        path = project / name
        if path.is_dir():
            read[name] = tree_hash(path)
        elif path.is_file():
            read[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            raise UsageError(
                f"{name} is not there", f"The recipe names it: it should lie in {project}."
            )
    return in_place(plan, read) if read else plan


def waiting(plan: Plan, store: Store, work: Path | None = None) -> frozenset[str]:
    """The ids of the steps whose results are not in the store."""
    place = work or default_work(store, plan)
    return frozenset(
        step.id for step in plan.steps if store.get(step.key, place, step.variant) is None
    )


def _tree_name(step: Step) -> str:
    return step.outputs[0].removeprefix("sources/").replace("/", "-")


def from_bundle(plan: Plan, bundle: Path) -> Plan:
    """The plan with every source taken out of a bundle; its keys stay as they are."""
    if not bundle.is_file():
        raise UsageError(f"{bundle} is not there", "`torchsmith bundle` writes one.")
    held = read_manifest(bundle).trees
    steps: list[Step] = []
    for step in plan.steps:
        if step.source is None:
            steps.append(step)
            continue
        name = _tree_name(step)
        if name not in held:
            raise UsageError(
                f"{bundle} does not hold {name}", f"It holds {', '.join(sorted(held))}."
            )
        source = SourceChoice("bundle", path=str(bundle.absolute()), package=name)
        steps.append(replace(step, source=source))
    return replace(plan, steps=tuple(steps))


def bundle(
    plan: Plan,
    store: Store,
    destination: Path,
    *,
    project: Path,
    elsewhere: Host | None = None,
    on_event: OnEvent = lambda _: None,
) -> Manifest:
    """Bring every source and Python package of a plan; write them, with patches, into one file.

    `elsewhere` is the machine the packages are for, if it is not this one.
    """
    fetches = tuple(step for step in plan.steps if step.source is not None)
    entries: dict[str, Path] = {}
    if fetches:
        # Nothing else of the plan: it may read files that only the other machine has.
        sources = replace(plan, steps=fetches)
        brought = build(sources, store, project=project, on_event=on_event)
        entries = {_tree_name(step): brought.work / step.outputs[0] for step in fetches}
    more = [line for tree in entries.values() for line in required(tree)]
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".wheels-") as place:
        if gather(plan, Path(place), more, elsewhere):
            entries[TREE] = Path(place)
        if not entries:
            raise UsageError(
                "this plan fetches no source", "There is nothing to put into a bundle."
            )
        return write_bundle(entries, plan.files, destination, plan=plan.name)


def _each(first: Callable[[T], None], second: Callable[[T], None]) -> Callable[[T], None]:
    def told(event: T) -> None:
        first(event)
        second(event)

    return told


def _with_cache_report(cache: CompilerCache, on_event: OnEvent) -> OnEvent:
    """Tell what the compiler cache was worth before a run is over."""

    def told(event: Event) -> None:
        if isinstance(event, RunFinished):
            hits, misses = cache.used()
            if hits or misses:
                found, compiled = cache.parts_used()
                on_event(
                    CompilerCacheUsed(
                        hits=hits,
                        misses=misses,
                        cuda_parts_found=found,
                        cuda_parts_compiled=compiled,
                    )
                )
        on_event(event)

    return told


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """A folder with nothing in it before and after; what a killed run left there goes, too."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(
    plan: Plan,
    store: Store,
    *,
    project: Path,
    work: Path | None = None,
    only: Sequence[str] | None = None,
    fresh: bool = False,
    wheels: Path | None = None,
    jobs: int | None = None,
    memory: int | None = None,
    recipe: str = "",
    host: str = "",
    on_event: OnEvent = lambda _: None,
    on_memory: Callable[[MemoryEvent], None] = lambda _: None,
) -> RunResult:
    """Do what is left to do of a plan, its compilers held to a memory budget.

    `project` is the recipe's folder, which some steps read; `wheels` is a folder that is all
    pip may take packages from; `jobs` and `memory` bound the compilers, by default every core
    and the memory there is.
    """
    plan = keyed(plan, project)
    place = work or default_work(store, plan)
    journal = journal_of(store)
    cache = compiler_cache(store.root, place, shared=store.shared)
    learned = own_file(store.root, "memory") if store.shared else store.root / "memory.db"
    book = MemoryBook(learned, plan.name)
    cores = jobs or read_cores()
    headers = place.absolute() / ".torchsmith" / "headers"
    off = [(SWITCH, "off") in step.env for step in plan.steps if step.kind == "compile"]
    try:
        with (
            _emptied(headers),
            closing(CompileLog(store.root / "logs", cores)) as compiles,
            Governor(
                budget=memory,
                cores=cores,
                book=book,
                roots=[place],
                listener=_each(compiles.add, on_memory),
                late_collection=not all(off),
                options=names_from_within(place.resolve()),
            ) as governor,
        ):
            environment = {
                **inherited_environment(),
                # Without a cache nothing is ever there, and what is compiled is the same.
                **governor.environment(cache.command or without_a_cache()),
                **(cache.environment or {}),
                **acceleration(store.root / "lessons", cores, headers, governor.budget),
                **({} if all(off) else huge_pages(store.root)),
                "PROJECT": str(project.resolve()),
                # PyTorch's setup.py hands it to CMake: a library's search path in the build tree
                # takes room in it, which would be as long as the name of that tree.
                "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
            }
            # A fixed number of jobs ends the sharing of slots between files that wait for
            # memory and files that do not.
            environment.pop("MAX_JOBS", None)
            if wheels is not None:
                environment = offline(environment, wheels)
            return run_plan(
                plan,
                store,
                journal,
                work=place,
                only=only,
                on_event=_each(
                    _each(compiles.heed, _with_cache_report(cache, on_event)),
                    JobLog(store.root / "logs").heed,
                ),
                environment=environment,
                fresh=fresh,
                recipe=recipe,
                host=host,
                cores=cores,
            )
    finally:
        journal.close()
