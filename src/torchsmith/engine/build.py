"""A whole build: a plan run with the store, the journal and the memory governor in place."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from torchsmith.engine.command import KeptCommand
from torchsmith.engine.compile_log import CompileLog, JobLog
from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.door import tree_name
from torchsmith.engine.events import CompilerCacheUsed, Event, OnEvent, RunFinished
from torchsmith.engine.inside import HOOK, HUGE_PAGES
from torchsmith.engine.journal import journal_of, own_file
from torchsmith.engine.lockfile import what_was_taken
from torchsmith.engine.places import Containers
from torchsmith.engine.runner import RunResult, default_work, run_plan
from torchsmith.engine.shell import inherited_environment
from torchsmith.engine.store import Store
from torchsmith.engine.view import Reach
from torchsmith.engine.wheels import TREE, gather, offline
from torchsmith.errors import UsageError
from torchsmith.facts.ranges import release
from torchsmith.host.limits import read_cores
from torchsmith.host.models import Host
from torchsmith.package.keys import ensure_signer
from torchsmith.plan.attest import Attest, attestations
from torchsmith.plan.lock import RECORD
from torchsmith.plan.models import Plan
from torchsmith.plan.torch import reports
from torchsmith.recipe.values import size_bytes
from torchsmith.sources.bundle import Manifest, archive_name, write_bundle
from torchsmith.sources.fetch import archive_of
from torchsmith.sources.sdist import required
from torchsmith.toolchain.accel import SWITCH, acceleration
from torchsmith.toolchain.build_paths import Knows, names_from_within, understands
from torchsmith.toolchain.cache import CompilerCache, compiler_cache, without_a_cache
from torchsmith.toolchain.governor import SHIMS, Governor
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.memory_book import MemoryBook
from torchsmith.toolchain.preload import LOADED, compiler_hook, huge_pages

T = TypeVar("T")


def memory_budget(text: str | None) -> int | None:
    """A size such as 8G in bytes; None for no text."""
    return size_bytes(text) if text else None


def pending_steps(plan: Plan, store: Store, work: Path | None = None) -> frozenset[str]:
    """The ids of the steps whose results are not in the store."""
    place = work or default_work(store, plan)
    return frozenset(
        step.id for step in plan.steps if store.get(step.key, place, step.variant) is None
    )


def fetching(plan: Plan) -> Plan:
    """The steps that bring sources: the others may read files that only another machine has."""
    return replace(plan, steps=tuple(step for step in plan.steps if step.source is not None))


def bundle(
    plan: Plan,
    store: Store,
    destination: Path,
    *,
    project: Path,
    elsewhere: Host | None = None,
    on_event: OnEvent = lambda _: None,
) -> Manifest:
    """Fetch what a plan takes from elsewhere, and write it into one file.

    `elsewhere` is the machine it is for, if not this one.
    """
    sources = fetching(plan)
    fetches = sources.steps
    entries: dict[str, Path] = {}
    if fetches:
        brought = build(sources, store, project=project, on_event=on_event)
        entries = {tree_name(step): brought.work / step.outputs[0] for step in fetches}
    more = [line for tree in entries.values() for line in required(tree)]
    archives: dict[str, Path] = {}
    for step in fetches:
        if step.source is not None and (name := archive_name(step.source)):
            # The archive itself, which its sha256 proves; the tree is unpacked from it there.
            archives[name] = archive_of(step.source, store.root / "downloads", project)
            del entries[tree_name(step)]
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".wheels-") as place:
        if gather(plan, Path(place), more, elsewhere):
            entries[TREE] = Path(place)
        if not (entries or archives):
            raise UsageError(
                "this plan fetches no source", "There is nothing to put into a bundle."
            )
        return write_bundle(entries, {**plan.files, **archives}, destination, plan=plan.name)


def _understood(plan: Plan) -> Knows:
    """Which options the compilers of a plan understand; those in containers are not started."""
    boxed = [item.compiler for item in plan.variants if item.variant in plan.inside]
    if not boxed:
        return understands
    # -ffile-prefix-map: gcc from 8 on, clang from 10.
    first = {"gcc": (8,), "clang": (10,)}
    known = all(release(item.version or "0") >= first.get(item.kind, (99,)) for item in boxed)
    return lambda compiler, option: known


def each_of(*listeners: Callable[[T], None]) -> Callable[[T], None]:
    """One listener in the place of several."""

    def tell_all(event: T) -> None:
        for listener in listeners:
            listener(event)

    return tell_all


def memory_book(store: Store, project: str) -> MemoryBook:
    """What earlier compiles took; each host of a shared store learns for itself."""
    path = own_file(store.root, "memory") if store.shared else store.root / "memory.db"
    return MemoryBook(path, project)


def with_cache_report(cache: CompilerCache, on_event: OnEvent) -> OnEvent:
    """Report how much the compiler cache saved, just before the run is over."""

    def report(event: Event) -> None:
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

    return report


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    """Empty a folder before and after; a killed run may have left files there."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hook(store: Path, cache: Sequence[str]) -> dict[str, str]:
    """The variables that have every compiler ask the governor; each step decides to load it."""
    hook = compiler_hook(store, *cache)
    if loaded := hook.pop(LOADED, ""):
        hook[HOOK] = loaded
    return hook


def _keep_lock(plan: Plan, store: Store, result: RunResult) -> None:
    """Write down beside the logs of a run what it took from elsewhere."""
    brought = [
        step.id
        for step in plan.steps
        if step.kind in ("fetch", "environment") and result.steps.get(step.id) == "done"
    ]
    if brought:
        text = plan.files.get(RECORD) or what_was_taken(plan, result.work).toml().encode()
        with room(store.root):
            write_whole(store.root / "logs" / result.run / "torchsmith.lock", text)


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
    command: Sequence[str] = (),
    on_event: OnEvent = lambda _: None,
    on_memory: Callable[[MemoryEvent], None] = lambda _: None,
) -> RunResult:
    """Run what is left of a plan, its compilers held to a memory budget.

    `project` is the recipe's folder; from the folder `wheels`, if named, pip takes all its
    packages. `jobs` and `memory` bound the compilers. With its `command` kept, a stopped run can go
    on from the portal.
    """
    store.ensure_ours(work)
    if any(isinstance(step.arguments, Attest) for step in plan.steps):
        ensure_signer()
    place = work or default_work(store, plan)
    journal = journal_of(store)
    cache = compiler_cache(store.root, place, shared=store.shared)
    cores = jobs or read_cores()
    inherited = inherited_environment()
    boxed = compiler_cache(store.root, place, shared=store.shared, program="ccache")
    knows = _understood(plan)
    headers = place.absolute() / ".torchsmith" / "headers"
    off = [(SWITCH, "off") in step.env for step in plan.steps if step.kind == "compile"]
    try:
        with (
            _emptied(headers),
            closing(CompileLog(store.root / "logs", cores)) as compiles,
            Governor(
                budget=memory,
                cores=cores,
                book=memory_book(store, plan.name),
                roots=[place],
                listener=each_of(compiles.add, on_memory),
                late_collection=not all(off),
                options=names_from_within(place.resolve(), knows),
            ) as governor,
        ):
            compiles.budget = governor.budget
            own = {
                **acceleration(store.root / "lessons", cores, headers, governor.budget),
                "PROJECT": str(project.resolve()),
                # PyTorch's setup.py hands it to CMake: a library's search path in the build tree
                # takes room in it, which would be as long as the name of that tree.
                "CMAKE_BUILD_RPATH_USE_ORIGIN": "ON",
            }
            # Without a cache nothing is ever there, and what is compiled is the same.
            before = cache.command or without_a_cache()
            environment = {
                **inherited,
                **governor.environment(before),
                **_hook(store.root, before),
                **(cache.environment or {}),
                **({} if all(off) else huge_pages(store.root)),
                **own,
            }
            # A fixed number of jobs ends the sharing of slots between files that wait for
            # memory and files that do not.
            environment.pop("MAX_JOBS", None)
            inside = {
                **governor.environment(boxed.command),
                **(boxed.environment or {}),
                # Which of this machine's libraries do, only the container's own gcc knows.
                **({} if all(off) else {HUGE_PAGES: str(store.root)}),
                HOOK: "\n".join((str(store.root), *boxed.command)),
                **own,
            }
            # PATH is the image's own, behind programs of ours: make may be too old there as well.
            inside.pop("PATH", None)
            inside["TORCHSMITH_SHIMS"] += f":{SHIMS}"
            cache_used = boxed if plan.inside else cache
            if wheels is not None:
                environment = offline(environment, wheels)
                inside = offline(inside, wheels)
            shared = [
                store.root / name for name in ("compiler-cache", "cuda-parts", "lessons", "objects")
            ]
            brought = [store.root / name for name in ("downloads", "pip-cache", "tools")]
            for folder in (*shared, *brought):
                folder.mkdir(parents=True, exist_ok=True)
            containers = Containers(
                store.root,
                inside,
                inherited,
                folders=(place.resolve(), governor.folder, *shared, *brought),
                knows=knows,
            )
            result = run_plan(
                plan,
                store,
                journal,
                work=place,
                only=only,
                on_event=each_of(
                    compiles.heed,
                    with_cache_report(cache_used, on_event),
                    JobLog(store.root / "logs").heed,
                    KeptCommand(store.root / "logs", command).heed,
                ),
                environment=environment,
                fresh=fresh,
                recipe=recipe,
                host=host,
                cores=cores,
                containers=containers,
                reach=Reach((wheels,) if wheels else (), (*shared, governor.folder)),
            )
            _keep_lock(plan, store, result)
            return result
    finally:
        journal.close()


def deliver(files: Iterable[Path], folder: Path) -> list[Path]:
    """Link or copy files, each with its documents, into a folder; return where they lie.

    A new file replaces an older one at once. A folder (of a library) stays where it was made.
    """
    there: list[Path] = []
    for file in files:
        if not file.is_file():
            there.append(file)
            continue
        beside = [Path(name) for name in (*reports(str(file)), *attestations(str(file)))]
        for item in (file, *(name for name in beside if name.is_file())):
            _put(item, folder / item.name)
        there.append(folder / file.name)
    return there


def _put(file: Path, target: Path) -> None:
    if target.exists() and target.samefile(file):
        return
    with room(target.parent, file.stat().st_size):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        try:
            _link_or_copy(file, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _link_or_copy(file: Path, part: Path) -> None:
    # Nothing is read-only for root, who would write through a link into the store.
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            part.hardlink_to(file)
            return
    shutil.copyfile(file, part)
    shutil.copymode(file, part)
