"""Which images of a plan are meant, and whether they can be built here at all."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torchsmith.errors import NoContainerToolError, UsageError
from torchsmith.images.tools import ContainerTool, find_tool
from torchsmith.names import did_you_mean
from torchsmith.plan.images import image_names, task_of
from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image, Training


def image_steps(plan: Plan, variant: str = "", only: Sequence[str] = ()) -> list[Step]:
    """The steps of the images asked for: all of them, or those of a variant, or by name."""
    steps = [step for step in plan.steps if step.kind == "image"]
    if not steps:
        raise no_image()
    if variant:
        variants = [item.variant for item in plan.variants]
        if variant not in variants:
            raise UsageError(f"there is no variant {variant}", did_you_mean(variant, variants))
        steps = [step for step in steps if step.variant == variant]
    if not only:
        return steps
    for wanted in only:
        if not any(wanted in _names(step) for step in steps):
            known = [task_of(step).name for step in steps]
            raise UsageError(f"no image is named {wanted}", did_you_mean(wanted, known))
    return [step for step in steps if _names(step) & set(only)]


def _names(step: Step) -> set[str]:
    """What a person may call an image: its name, its tag, its stage."""
    task = task_of(step)
    tag = task.name.rpartition(":")[2]
    return {step.id, task.name, tag, task.stage, task.stage.removeprefix("train-")} - {""}


def ensure_containers(steps: Sequence[Step], pending: Collection[str], tool: str) -> None:
    """Have what starts containers before anything long is begun that runs in one."""
    if not any(step.place.inside and step.id in pending for step in steps):
        return
    try:
        find_tool(tool, runs=True)
    except NoContainerToolError as error:
        raise NoContainerToolError(
            error.message, f"{error.hint} Or build on this machine itself: --here."
        ) from None


def ensure_images(steps: Sequence[Step]) -> ContainerTool | None:
    """Have what image steps need before anything long is begun; the tool, if there are any."""
    tasks = [task_of(step) for step in steps if step.kind == "image"]
    for task in tasks:
        numbers_here(task.caller)
    return find_tool(tasks[0].engine) if tasks else None


def caller_numbers(
    names: Sequence[str], environ: Mapping[str, str], *, uid: int, gid: int
) -> dict[str, str]:
    """The build arguments UID and GID that the caller stands for; of sudo, who called it."""
    if uid == 0 and (behind := environ.get("SUDO_UID", "")).isdigit():
        uid, gid = int(behind), int(environ.get("SUDO_GID", "") or gid)
    numbers = {"UID": uid, "GID": gid}
    if "UID" in names and uid == 0:
        raise UsageError(
            "the image's user would be root: it takes the numbers of whoever builds it",
            "Set uid and gid in [[image.train]], or build it as the person it is for.",
        )
    return {name: str(numbers[name]) for name in names}


def numbers_here(names: Sequence[str]) -> dict[str, str]:
    """The same for this process."""
    return caller_numbers(names, os.environ, uid=os.getuid(), gid=os.getgid())


@dataclass(frozen=True, slots=True)
class RecipeImage:
    """An image a recipe makes: its name, the stage it is, the variant, whose it is."""

    name: str
    stage: str
    variant: str
    training: Training | None = None


def recipe_images(recipe: Recipe) -> tuple[RecipeImage, ...]:
    """Every image of a recipe, in the order they are built."""
    image = recipe.image or Image()
    variants = [item.name for item in expand(recipe)]
    owners = {f"train-{item.name}": item for item in image.train}
    return tuple(
        RecipeImage(name, stage, variant, owners.get(stage))
        for variant in variants
        for stage, name in image_names(image, variant, only=len(variants) == 1).items()
    )


def no_image() -> UsageError:
    """The error for a recipe that makes no image."""
    return UsageError(
        "the recipe asks for no image", "Add a table [image] to it; see docs/images.md."
    )


def made_images(recipe: Recipe) -> tuple[RecipeImage, ...]:
    """The images of a recipe that makes some."""
    if recipe.image is None:
        raise no_image()
    return recipe_images(recipe)


def one_image(recipe: Recipe) -> RecipeImage:
    """The image of a recipe that makes one."""
    first, *others = made_images(recipe)
    if others:
        names = ", ".join(item.name for item in (first, *others))
        raise UsageError(f"{recipe.name} makes several images", f"Name one of them: {names}.")
    return first


def at_recipes_registry(recipe: Recipe, name: str, to: str = "") -> str:
    """What an image is called at a registry: the one named, or the recipe's own."""
    registry = (to or recipe.publish.registry or "").rstrip("/")
    return f"{registry}/{name}" if registry else name
