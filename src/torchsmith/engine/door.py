"""The one way from a recipe to a plan that can be run, looked at or written down.

Whatever decides what is done is decided here, once: where torch's source can be reached, what this
machine has, how files are compiled, where each step runs, what a bundle holds, what lies in the
recipe's folder, what earlier builds took. `plan`, `build`, `image`, `bundle` and a farm's nodes all
come through here, so they see the same plan.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from torchsmith import __version__
from torchsmith.engine.disk import write_whole
from torchsmith.engine.lockfile import lock_file, read_lock
from torchsmith.engine.preflight import lacks_cache
from torchsmith.engine.store import Store
from torchsmith.errors import ConflictError, UsageError
from torchsmith.facts.files import shipped
from torchsmith.foreign import MalformedError, decode
from torchsmith.host.models import Host
from torchsmith.inputs import check_file
from torchsmith.owners import read_plain
from torchsmith.plan.attest import Attest, Origin
from torchsmith.plan.build import in_place, make_plan, with_keys
from torchsmith.plan.images import with_image_options
from torchsmith.plan.lock import LockError, is_lock, with_lock
from torchsmith.plan.models import Fetch, Plan, Step, Task, build_only, digest
from torchsmith.plan.shell import reported
from torchsmith.recipe.load import LoadedRecipe
from torchsmith.recipe.matrix import expand, named
from torchsmith.resolve.models import Refusal, Resolution, SourceChoice
from torchsmith.resolve.resolve import resolve
from torchsmith.sources.git import answers, with_reachable_source
from torchsmith.sources.tree import path_hash
from torchsmith.toolchain.accel import SAME, SWITCH

if TYPE_CHECKING:
    from torchsmith.recipe.models import Recipe
    from torchsmith.sources.bundle import Manifest

# How long an answer of a server, or its silence, holds.
_FRESH_S = 3600.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a person wants a recipe planned.

    `here`: build on this machine, whatever distribution the recipe names. `some`: the variants that
    can exist are enough. `elsewhere`: another machine will run it, whose network and files cannot
    be seen from here. Unless it `must` run, files that the recipe names may be missing. `online`:
    steps that need no network may use it. `lock`: steps take what the lock beside the recipe names
    and nothing else. `tool`, `network` and `layers` are for building images.
    """

    variant: str = ""
    some: bool = False
    here: bool = False
    elsewhere: bool = False
    accel: bool = True
    reproducible: bool = False
    build_only: bool = False
    bundle: Path | None = None
    must: bool = True
    online: bool = False
    lock: bool = True
    tool: str = ""
    network: str = ""
    layers: bool = True


class RefusedError(ConflictError):
    """Variants that are refused; `refusals` say why."""

    def __init__(self, refusals: tuple[Refusal, ...], count: int) -> None:
        # A variant that is not known to work, or fails, may still be possible.
        hard = any(item.standing == "impossible" for item in refusals)
        verdict = "cannot exist" if hard else "would not build"
        subject = f"this {verdict}"
        if count > 1:
            subject = f"{len(refusals)} of {count} variants {verdict}"
        super().__init__(subject, "Change the recipe as said above; nothing was written.")
        self.refusals = refusals


def resolutions(
    loaded: LoadedRecipe,
    host: Host,
    *,
    variant: str = "",
    some: bool = False,
    reachable: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> list[Resolution]:
    """Every variant with all choices made, or the named one; `reachable` may change sources."""
    facts = shipped()
    variants = [named(loaded.recipe, variant)] if variant else expand(loaded.recipe)
    outcomes = [
        resolve(with_fields(item, recipe=reachable(item.recipe)), facts, host, loaded.files)
        for item in variants
    ]
    refused = tuple(item for item in outcomes if isinstance(item, Refusal))
    resolved = [item for item in outcomes if not isinstance(item, Refusal)]
    if refused and not (some and resolved):
        raise RefusedError(refused, len(outcomes))
    return resolved


def plan_recipe(
    loaded: LoadedRecipe,
    host: Host,
    store: Store,
    wanted: Wanted | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """The plan of a recipe; `say` gets each decision whose reason lies outside the recipe."""
    wanted = wanted or Wanted()
    if wanted.here and loaded.recipe.system is not None:
        loaded = with_fields(loaded, recipe=loaded.recipe.model_copy(update={"system": None}))
    reached = cache(_remembering(store) if wanted.bundle is None else _holds_git(wanted.bundle))
    notes: set[str] = set()

    def reachable(recipe: Recipe) -> Recipe:
        if wanted.elsewhere:
            return recipe
        recipe, note = with_reachable_source(recipe, shipped(), reached)
        if note and note not in notes and wanted.bundle is None:
            say(note)
        notes.add(note)
        return recipe

    resolved = resolutions(
        loaded, host, variant=wanted.variant, some=wanted.some, reachable=reachable
    )
    plan = make_plan(
        loaded.recipe, resolved, shipped(), __version__, name=wanted.variant, here=wanted.here
    )
    if wanted.build_only:
        plan = build_only(plan)
    if wanted.online:
        plan = _changed(plan, _with_network)
    if not wanted.elsewhere and lacks_cache(plan):
        plan = without_cache(plan)
    if not wanted.accel:
        plan = without_acceleration(plan)
    elif wanted.reproducible:
        plan = with_same_batches(plan)
    plan = with_image_options(plan, engine=wanted.tool, network=wanted.network, cache=wanted.layers)
    file = lock_file(Path(loaded.path))
    if wanted.lock and not wanted.elsewhere and (file.is_symlink() or file.exists()):
        plan = with_lock(plan, read_lock(file))
    elif wanted.reproducible and wanted.lock and wanted.bundle is None:
        raise LockError(
            f"--reproducible needs a lock, and there is no {file.name} beside the recipe: on "
            "another day pip may take other packages",
            "Run `torchsmith lock`, then the same command again; or accept that with --no-lock.",
        )
    plan = keyed(plan, loaded.project, must=wanted.must)
    if wanted.bundle is not None:
        plan = from_bundle(plan, wanted.bundle)
    if not store.is_new:
        from torchsmith.engine.expected import measured

        plan = measured(plan, store)
    return plan


def _holds_git(bundle: Path) -> Callable[[str], bool]:
    """Answer whether the torch in a bundle came from git; otherwise it is Debian's."""

    def ask(_: str) -> bool:
        from torchsmith.sources.bundle import read_manifest

        check_file(bundle, "`torchsmith bundle` writes one.")
        return any(name.startswith("torch-") for name in read_manifest(bundle).commits)

    return ask


def _remembering(store: Store) -> Callable[[str], bool]:
    """Ask a server once an hour at most: planning often should not mean waiting often."""
    file = store.root / "reached.json"

    def ask(url: str) -> bool:
        try:
            known = decode(read_plain(file, 1 << 20), dict[str, tuple[float, bool]])
        except (OSError, MalformedError):
            known = {}
        when, answered = known.get(url, (0.0, False))
        if 0 <= time.time() - when < _FRESH_S:
            return answered
        answered = answers(url)
        if store.root.is_dir():
            known[url] = (time.time(), answered)
            with contextlib.suppress(OSError):
                write_whole(file, msgspec.json.encode(known))
        return answered

    return ask


def _changed(plan: Plan, change: Callable[[Step], Step]) -> Plan:
    """The plan with changed steps: their results have keys of their own."""
    return with_keys(replace(plan, steps=tuple(map(change, plan.steps))), {})


def _with_network(step: Step) -> Step:
    return replace(step, network="asked for: --online") if step.offline else step


def without_acceleration(plan: Plan) -> Plan:
    """The plan with every file compiled by itself."""

    def apart(step: Step) -> Step:
        if step.kind != "compile":
            return step
        seconds = step.cost.apart_core_seconds or step.cost.core_seconds
        cost = replace(step.cost, core_seconds=seconds)
        env = (*step.env, (SWITCH, "off"), ("CCACHE_NAMESPACE", "torchsmith-apart"))
        return replace(step, env=env, cost=cost)

    return _changed(plan, apart)


def without_cache(plan: Plan) -> Plan:
    """The plan at what it costs where no compiler cache keeps what one variant compiled."""

    def uncached(step: Step) -> Step:
        seconds = step.cost.uncached_core_seconds or step.cost.core_seconds
        return replace(step, cost=replace(step.cost, core_seconds=seconds))

    return replace(plan, steps=tuple(map(uncached, plan.steps)))


def with_same_batches(plan: Plan) -> Plan:
    """The plan with batches that depend neither on the cores nor on earlier builds."""

    def same(step: Step) -> Step:
        return replace(step, env=(*step.env, (SWITCH, SAME))) if step.kind == "compile" else step

    return _changed(plan, same)


def keyed(plan: Plan, project: Path, *, must: bool = True) -> Plan:
    """The plan with keys that cover the files of the recipe's folder.

    A missing file is an error if it `must` be there; otherwise it counts as empty.
    """
    read: dict[str, str] = {}
    for name in sorted({name for step in plan.steps for name in step.reads}):
        path = project / name
        if path.is_dir() or path.is_file():
            read[name] = path_hash(path)
        elif must:
            raise UsageError(
                f"{name} is not there",
                f"The recipe names it: it should lie in {project.absolute()}.",
            )
    return in_place(plan, read) if read else plan


def tree_name(step: Step) -> str:
    """The name in a bundle of the tree that a step brings."""
    return step.outputs[0].removeprefix("sources/").replace("/", "-")


def from_bundle(plan: Plan, bundle: Path) -> Plan:
    """The plan with every source taken out of a bundle.

    A step keeps its key where the bundle proves that its source is what the recipe pins, or the
    lock knows it. Other sources, and what pip finds there, get keys of their own, and the
    provenance says that they came from a bundle.
    """
    # Reading one takes imports that no other plan needs.
    from torchsmith.engine.wheels import TREE
    from torchsmith.sources.bundle import read_manifest

    check_file(bundle, "`torchsmith bundle` writes one.")
    manifest = read_manifest(bundle)
    steps: list[Step] = []
    changed: dict[str, str] = {}
    origins: dict[str, Origin] = {}
    for step in plan.steps:
        marks = [changed[need] for need in step.needs if need in changed]
        task = step.arguments
        if isinstance(task, Fetch):
            fetch, known = _bundled(step, task, bundle, manifest)
            step = replace(step, task=Task("fetch", fetch))
            marks += [] if known else [manifest.trees[tree_name(step)]]
            origins[step.outputs[0]] = _origin(step, task.source, fetch.source, known=known)
        elif isinstance(task, Attest):
            came = tuple(origins.get(item.tree, item) for item in task.origins)
            step = replace(step, task=Task("attest", replace(task, origins=came)))
        elif not any(map(is_lock, step.inputs)) and (step.pip or any(map(reported, step.commands))):
            marks += filter(None, [manifest.trees.get(TREE)])
        if marks:
            changed[step.id] = digest("\n".join([step.key, *sorted(marks)]).encode())
            step = replace(step, key=changed[step.id])
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def _bundled(step: Step, fetch: Fetch, bundle: Path, manifest: Manifest) -> tuple[Fetch, bool]:
    """How to bring a source out of a bundle; and whether it is proven to be the one wanted."""
    from torchsmith.sources.bundle import archive_name, bundled

    name, archive = tree_name(step), archive_name(fetch.source)
    if archive and archive in manifest.files:
        return replace(fetch, bundle=str(bundle.absolute())), True
    if name not in manifest.trees or (archive and not fetch.tree):
        raise UsageError(
            f"{bundle} does not hold {'the archive of ' * bool(archive)}{name}",
            f"It holds {', '.join(sorted(manifest.trees))}. `torchsmith bundle` writes one with "
            "all that a recipe needs.",
        )
    if fetch.tree and fetch.tree != manifest.trees[name]:
        raise LockError(
            f"{name} in {bundle} is not what the lock names: expected the tree {fetch.tree}, "
            f"found {manifest.trees[name]}",
            "Make the bundle again beside this lock, or lock again what is in it.",
        )
    source = bundled(fetch.source, bundle, manifest, name, locked=bool(fetch.tree))
    return replace(fetch, source=source), bool(fetch.tree or source.commit)


def _origin(step: Step, wanted: SourceChoice, taken: SourceChoice, *, known: bool) -> Origin:
    if known:
        proven = taken.commit if taken.kind == "bundle" else ""
        return Origin(step.project, step.outputs[0], wanted, commit=proven)
    return Origin(step.project, step.outputs[0], SourceChoice("bundle", ref=taken.ref))
