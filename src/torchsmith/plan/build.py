"""Putting a plan together: the steps of every variant, shared ones once, each with its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.plan.attest import attest_step
from torchsmith.plan.companions import companion_steps, extension_steps
from torchsmith.plan.conda import conda_library
from torchsmith.plan.costs import another_python
from torchsmith.plan.images import ImageTask, image_names, image_steps
from torchsmith.plan.magma import fetch_magma, magma_steps
from torchsmith.plan.models import Cost, Place, Plan, Step, Task, digest, step_key
from torchsmith.plan.packages import (
    conda_step,
    finished,
    library_conda_step,
    libtorch_step,
    pylock_step,
)
from torchsmith.plan.publish import job_steps, publish_steps, wheel_folder
from torchsmith.plan.render.dockerfile import render_base, render_dockerfile
from torchsmith.plan.render.stages import base_name, base_stage
from torchsmith.plan.shell import fresh_copy, ours, plain_name, sh
from torchsmith.plan.sources import fetch_companion, fetch_lender, fetch_torch, patch_source
from torchsmith.plan.torch import environment, toolkit_step, torch_environment, torch_steps
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import CompanionChoice, Resolution

# Kinds that need the distribution's own Python, compilers or libraries. Fetching, patching and
# packing happen on this machine itself.
_INSIDE = frozenset({"environment", "configure", "compile", "verify"})
# Tasks that read the distribution's libraries.
_TASKS_INSIDE = frozenset({"attest", "finish"})


def place_of(resolution: Resolution) -> tuple[Place, Step, dict[str, bytes]]:
    """The container a variant is built in: what it is, the step that makes it, its Dockerfile."""
    image = base_name(resolution)
    lines = [
        f"# What torchsmith builds in, on {image}.",
        *base_stage(resolution, compilers=True),
    ]
    text = "\n".join(lines) + "\n"
    mark = digest(f"{resolution.platform}\n{text}".encode())[:12]
    context = f"bases/{mark}"
    name = resolution.system or plain_name(image.rpartition("/")[2].replace(":", "-"))
    place = Place(name, f"localhost/torchsmith/base:{name}-{mark}", f"base-{name}-{mark}")
    step = Step(
        id=place.base,
        kind="base",
        title=f"Make the image to build in: {name}",
        why=f"from {image}, kept for every build like this one",
        inputs=(f"{context}/Dockerfile",),
        task=Task(
            "image",
            ImageTask(
                name=place.image,
                context=context,
                record=f"{context}/image.json",
                platform=resolution.platform,
                base=True,
            ),
        ),
        cost=Cost(core_seconds=90, disk_mb=2000, basis="downloads"),
    )
    return place, step, {f"{context}/Dockerfile": text.encode()}


def placed(
    recipe: Recipe,
    resolutions: Sequence[Resolution],
    steps: Sequence[Step],
    files: dict[str, bytes],
) -> tuple[Step, ...]:
    """The steps, each in its place, after those that make the containers.

    A step runs in a container if the recipe names a distribution, or an image to build inside.
    """
    in_image = recipe.image is not None and recipe.image.build == "inside"
    compiled = {step.variant for step in steps if step.kind == "compile"}
    bases: dict[str, Step] = {}
    by_variant: dict[str, Place] = {}
    toolkits: dict[str, Place] = {}
    founding = [step for step in steps if step.id.startswith("image-foundation")]
    foundations = {step.variant: step.id for step in founding}
    for resolution in resolutions:
        if resolution.variant not in compiled or not (resolution.container or in_image):
            continue
        place, step, texts = place_of(resolution)
        if before := foundations.get(resolution.variant):
            step = replace(step, needs=(before,))
        bases.setdefault(step.id, step)
        files.update(texts)
        by_variant[resolution.variant] = place
        if (toolkit := toolkit_step(resolution)) is not None:
            toolkits[toolkit.id] = place
    kept = [_put(step, by_variant, toolkits) for step in steps]
    return (*bases.values(), *kept)


def _put(step: Step, by_variant: Mapping[str, Place], toolkits: Mapping[str, Place]) -> Step:
    place = by_variant.get(step.variant) if step.variant else toolkits.get(step.id)
    inside = step.kind in _INSIDE or (step.task is not None and step.task.name in _TASKS_INSIDE)
    if place is None or not inside:
        return step
    return replace(step, place=place, needs=(place.base, *step.needs))


class _Collector:
    """Steps in order, each id once."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.files: dict[str, bytes] = {}

    def add(self, *steps: Step | None) -> None:
        for step in steps:
            if step is None:
                continue
            known = self.steps.setdefault(step.id, step)
            # One variant must never get the work of another unnoticed.
            if (known.commands, known.task, known.env) != (step.commands, step.task, step.env):
                raise ValueError(f"two different steps are named {step.id}")


def _patched(collector: _Collector, resolution: Resolution, fetch: Step, project: str) -> Step:
    collector.add(fetch)
    patches = tuple(patch for patch in resolution.patches if patch.project == project)
    vendored = resolution.vendored if project == "torch" else ()
    if not patches and not vendored:
        return fetch
    lenders = {step.id: step for step in (fetch_lender(item.lender) for item in vendored)}
    collector.add(*lenders.values())
    patch = patch_source(fetch, patches, collector.files, vendored, tuple(lenders.values()))
    collector.add(patch)
    return patch


def _debian_companion(
    facts: Facts, companion: CompanionChoice, suite: str = ""
) -> tuple[str, str] | None:
    """The suite and source package of a companion's release, in this suite or in any."""
    for item in facts.systems.debian:
        if (item.project, item.version) == (companion.name, companion.version) and suite in (
            "",
            item.suite,
        ):
            return item.suite, item.package
    return None


def _fetch_companion(
    facts: Facts, recipe: Recipe, resolution: Resolution, companion: CompanionChoice
) -> Step:
    source = resolution.source
    if source.kind == "debian" and (there := _debian_companion(facts, companion, source.suite)):
        return fetch_companion(companion, there)
    # Unlike torch's, a companion's build is the same for both sources.
    instead = _debian_companion(facts, companion) if recipe.source.kind == "auto" else None
    return fetch_companion(companion, instead=instead or ("", ""))


def _magma(collector: _Collector, recipe: Recipe, resolution: Resolution) -> list[Step]:
    """Build MAGMA, before the torch that links against it, and pack it."""
    magma = resolution.magma
    if magma is None:
        return []
    tree = _patched(collector, resolution, fetch_magma(magma), "magma")
    made = magma_steps(resolution, magma, tree, recipe.packages.conda_format)
    collector.add(*made)
    return made


def _conda(
    collector: _Collector,
    recipe: Recipe,
    resolution: Resolution,
    torch: Step | None,
    proofs: Sequence[Step],
    before: Sequence[Step],
) -> list[Step]:
    """Pack torch, if it is built here, and what was built against it, each once it is proven."""
    packages = recipe.packages
    made: list[Step] = []
    if torch is not None:
        after = tuple(step.id for step in before)
        made.append(conda_step(resolution, packages, torch, proofs[0], after))
    first = made[0] if made else None
    for proof in proofs[len(made) :]:
        wheel = collector.steps[f"compile-{proof.project}-{resolution.variant}"]
        name = conda_library(wheel.outputs[0])
        made.append(library_conda_step(resolution, packages, name, wheel, proof, first))
    collector.add(*made)
    return made


def _variant(
    facts: Facts,
    recipe: Recipe,
    resolution: Resolution,
    collector: _Collector,
    torchsmith: str,
    *,
    only: bool,
) -> None:
    variant = resolution.variant
    builds = bool(
        resolution.use == "source"
        or resolution.companions
        or resolution.extensions
        or resolution.magma
    )
    wheels: list[Step] = []
    archives: list[Step] = []
    conda: list[Step] = []
    mine: list[Step] = []
    ready: list[Step] = []
    attested: tuple[str, ...] = ()
    if builds:
        environ = environment(resolution)
        torch: Step | None = None
        own = resolution.use == "source"
        source = _patched(collector, resolution, fetch_torch(resolution), "torch") if own else None
        collector.add(environ, toolkit_step(resolution))
        # MAGMA is a package of its own.
        magma = _magma(collector, recipe, resolution)
        conda += [step for step in magma if step.kind == "package"]
        if source is not None:
            steps = torch_steps(facts, resolution, source, environ, magma[0] if magma else None)
            ready = finished(recipe.packages, resolution, steps)
            collector.add(*ready)
            torch = next(step for step in steps if step.kind == "compile")
            wheels.append(ready[-1])
            if resolution.companions or resolution.extensions:
                environ = torch_environment(resolution, environ, torch)
        collector.add(environ, toolkit_step(resolution))
        for companion in resolution.companions:
            fetch = _fetch_companion(facts, recipe, resolution, companion)
            tree = _patched(collector, resolution, fetch, companion.name)
            made = companion_steps(facts, resolution, companion, tree, environ, torch)
            made = finished(recipe.packages, resolution, made, ready)
            collector.add(*made)
            wheels.append(made[-1])
        for extension in resolution.extensions:
            used = [proof for proof in wheels if proof.project in extension.uses]
            made = extension_steps(facts, resolution, extension, environ, torch, used)
            made = finished(recipe.packages, resolution, made, ready)
            collector.add(*made)
            wheels.append(made[-1])
        if resolution.stack:
            collector.add(pylock_step(resolution, environ, wheels))
        mine = [step for step in collector.steps.values() if step.variant in ("", variant)]
        if recipe.packages.conda:
            conda += _conda(collector, recipe, resolution, torch, wheels, conda)
        if recipe.packages.libtorch and torch is not None:
            # The wheel that is proven: a finished one brings its libraries along.
            archives.append(libtorch_step(resolution, ready[-2]))
            collector.add(*archives)
        # After everything that is packed: it says how each came about.
        if attest := attest_step(recipe, resolution, collector.steps):
            collector.add(attest)
            attested = (attest.id,)
    images: list[str] = []
    image_ids: tuple[str, ...] = ()
    if recipe.image is not None:
        context = f"image/{variant}"
        text = render_dockerfile(recipe, resolution, mine, torchsmith, only=only, inside=False)
        collector.files[f"{context}/Dockerfile"] = text.encode()
        if recipe.image.foundation is not None:
            text = render_base(recipe.image, resolution)
            collector.files[f"{context}/Dockerfile.base"] = text.encode()
        needs = tuple(step.id for step in wheels)
        reads = [path for client in recipe.image.client for path in client.files]
        made = image_steps(
            resolution,
            recipe.image,
            context,
            needs,
            tuple(dict.fromkeys(reads)),
            only=only,
            dist=wheel_folder(wheels),
            compiled=any(step.kind == "compile" for step in mine),
        )
        collector.add(*made)
        images = list(image_names(recipe.image, variant, only=only).values())
        image_ids = tuple(step.id for step in made)
    shipped = publish_steps(
        resolution,
        recipe.publish,
        tuple(wheels),
        tuple(archives),
        tuple(conda),
        images,
        image_ids,
        attested,
    )
    collector.add(*shipped)
    before = tuple(step.id for step in shipped if step.id.startswith("publish-images")) or image_ids
    collector.add(*job_steps(recipe, resolution, images, before, collector.files))


def make_plan(
    recipe: Recipe,
    resolutions: Sequence[Resolution],
    facts: Facts,
    torchsmith: str,
    *,
    name: str = "",
    here: bool = False,
) -> Plan:
    """Plan every variant of a recipe; what several share is planned once.

    `name` is that of the plan if it is for one variant of a matrix. With `here` every step runs on
    the machine itself.
    """
    collector = _Collector()
    only = len(resolutions) == 1 and name in ("", recipe.name)
    for resolution in resolutions:
        _variant(facts, recipe, resolution, collector, torchsmith, only=only)
    steps = tuple(collector.steps.values())
    if not here:
        steps = placed(recipe, resolutions, steps, collector.files)
    steps = another_python(facts, resolutions, steps)
    return with_keys(Plan(name or recipe.name, tuple(resolutions), steps, collector.files), {})


def with_keys(plan: Plan, read: Mapping[str, str]) -> Plan:
    """The plan with its keys; `read` has the hash of each path of the project that steps read."""
    keys: dict[str, str] = {}
    for step in plan.steps:
        keys[step.id] = step_key(step, keys, plan.files, read)
    return replace(plan, steps=tuple(replace(step, key=keys[step.id]) for step in plan.steps))


_UPDATE = ours("sources.update")


def in_place(plan: Plan, read: Mapping[str, str]) -> Plan:
    """The plan as torchsmith itself runs it: a tree copied from a folder is brought up to date.

    Configuring and compiling become one step: otherwise the store would keep the tree, with all
    that was built in it, for every edit. Other sources, and renderings for people without
    torchsmith, are copied as before. `read` has the hash of each path of the project.
    """
    plan = with_keys(plan, read)
    joined: dict[str, Step | None] = {}
    for configure, compiled, source in _built_from_folders(plan):
        joined |= {configure.id: None, compiled.id: _join(plan, configure, compiled, source, read)}
    if not joined:
        return plan
    steps = (joined.get(step.id, step) for step in plan.steps)
    return with_keys(replace(plan, steps=tuple(step for step in steps if step)), read)


def _built_from_folders(plan: Plan) -> Iterator[tuple[Step, Step, Step]]:
    """Of each build from a folder: the steps that configure, compile and bring the source."""
    by_id = {step.id: step for step in plan.steps}
    for configure in plan.steps:
        if configure.kind != "configure":
            continue
        needed = [by_id[need] for need in configure.needs]
        for source in (step for step in needed if step.kind in ("fetch", "patch")):
            origins = [source, *(by_id[need] for need in source.needs)]
            folders = [step for step in origins if step.source and step.source.kind == "folder"]
            for compiled in plan.steps:
                if folders and compiled.kind == "compile" and configure.id in compiled.needs:
                    yield configure, compiled, source


def _join(
    plan: Plan, configure: Step, compiled: Step, source: Step, read: Mapping[str, str]
) -> Step:
    tree = configure.outputs[0]
    copied = fresh_copy(source.outputs[0], tree)
    needs = dict.fromkeys((*configure.needs, *compiled.needs))
    tools = tuple(need for need in needs if need not in (configure.id, source.id))

    def step(mark: str) -> Step:
        bring = f"{_UPDATE} {sh(source.outputs[0], tree, mark)}"
        return replace(
            compiled,
            needs=(source.id, *tools),
            commands=(
                *(bring if line == copied else line for line in configure.commands),
                f"{_UPDATE} --configured . {mark}",
                *(line for line in compiled.commands if line != f"cd {tree}"),
            ),
            cost=_sum(configure.cost, compiled.cost),
        )

    # Everything but the source: a tree built with other settings is of no use.
    keys = {other.id: other.key for other in plan.steps}
    settings = step_key(replace(step(""), needs=tools), keys, plan.files, read)
    compilers = [
        f"{item.compiler.kind} {item.compiler.version}"
        for item in plan.variants
        if item.variant == compiled.variant
    ]
    return step(digest("\n".join([settings, *compilers]).encode())[:32])


def _sum(one: Cost, other: Cost) -> Cost:
    def with_one(seconds: float) -> float:
        return seconds and one.core_seconds + seconds

    return replace(
        other,
        core_seconds=one.core_seconds + other.core_seconds,
        apart_core_seconds=with_one(other.apart_core_seconds),
        uncached_core_seconds=with_one(other.uncached_core_seconds),
        disk_mb=one.disk_mb + other.disk_mb,
    )
