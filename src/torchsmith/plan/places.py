"""Where steps run: this machine, or a container whose image the plan makes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Cost, Place, Step, Task, digest
from torchsmith.plan.render.stages import base_name, base_stage
from torchsmith.plan.shell import plain_name
from torchsmith.plan.toolkit import toolkit_step
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution

# Kinds that need the distribution's own Python, compilers or libraries. Sources are brought and
# patched on this machine, and packages of what was built are packed there.
_INSIDE = frozenset({"environment", "configure", "compile", "verify"})
# Packages that are made of the distribution's libraries, or name them.
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
    """The steps, each where it belongs, and before them those that make their containers.

    That is a container where the recipe names a distribution, or an image to build inside.
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
