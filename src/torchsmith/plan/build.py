"""Putting a plan together: the steps of every variant, shared ones once, each with its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.plan.attest import attest_step
from torchsmith.plan.companions import companion_steps, extension_steps
from torchsmith.plan.conda import conda_library
from torchsmith.plan.costs import another_python
from torchsmith.plan.finishing import finished
from torchsmith.plan.images import image_names, image_steps
from torchsmith.plan.jobs import job_steps
from torchsmith.plan.magma import fetch_magma, magma_steps
from torchsmith.plan.models import Plan, Step, step_key
from torchsmith.plan.packages import conda_step, library_conda_step, libtorch_step
from torchsmith.plan.patching import patch_source
from torchsmith.plan.places import placed
from torchsmith.plan.publish import publish_steps
from torchsmith.plan.pylock import pylock_step
from torchsmith.plan.render.dockerfile import render_base, render_dockerfile
from torchsmith.plan.ship import wheel_folder
from torchsmith.plan.sources import fetch_companion, fetch_lender, fetch_torch
from torchsmith.plan.toolkit import toolkit_step
from torchsmith.plan.torch import environment, torch_environment, torch_steps
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import CompanionChoice, PatchChoice, Resolution


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
            # Never silently one variant's work for another's.
            if (known.commands, known.task, known.env) != (step.commands, step.task, step.env):
                raise ValueError(f"two different steps are named {step.id}")


def _patches(resolution: Resolution, project: str) -> tuple[PatchChoice, ...]:
    return tuple(patch for patch in resolution.patches if patch.project == project)


def _patched(collector: _Collector, resolution: Resolution, fetch: Step, project: str) -> Step:
    collector.add(fetch)
    patches = _patches(resolution, project)
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
    archive = recipe.packages.conda_format
    made: list[Step] = []
    if torch is not None:
        after = tuple(step.id for step in before)
        made.append(conda_step(resolution, torch, proofs[0], after, archive))
    first = made[0] if made else None
    for proof in proofs[len(made) :]:
        wheel = collector.steps[f"compile-{proof.project}-{resolution.variant}"]
        name = conda_library(wheel.outputs[0])
        made.append(library_conda_step(resolution, name, wheel, proof, first, archive))
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
        # A package of its own, whichever torch it is for.
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

    With `name` the resolution is that of this one variant of a matrix: its plan is called so.
    With `here` every step runs on the machine itself.
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
