"""The images of a recipe, written down for other runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from torchsmith.errors import UsageError
from torchsmith.images.compose import compose_files
from torchsmith.images.names import at_recipes_registry, recipe_images
from torchsmith.plan.models import Plan
from torchsmith.plan.render.apptainer import from_image, from_wheels
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image

Runtime = Literal["compose", "apptainer", "dockerfile"]
Start = Literal["image", "wheels"]


def render(
    plan: Plan, recipe: Recipe, runtime: str, torchsmith: str, start: str = ""
) -> Mapping[str, bytes]:
    """The files of a runtime. `start` is what an Apptainer image is made of: image or wheels."""
    if start and (runtime != "apptainer" or start not in get_args(Start)):
        raise UsageError(
            f"--from {start} means nothing here",
            "It goes with --as apptainer, and is image or wheels.",
        )
    if runtime == "compose":
        return compose_files(plan, recipe, torchsmith)
    if runtime == "apptainer":
        return apptainer_files(plan, recipe, torchsmith, start)
    if runtime == "dockerfile":
        return dockerfile_context(plan, recipe, torchsmith)
    raise UsageError(
        f"--as: {runtime!r} is no runtime torchsmith writes for",
        f"It writes for {', '.join(get_args(Runtime))}.",
    )


def apptainer_files(
    plan: Plan, recipe: Recipe, torchsmith: str, start: str = ""
) -> Mapping[str, bytes]:
    """A definition file for each image; from the pushed image where the recipe pushes it."""
    image = recipe.image or Image()
    registry = recipe.publish.registry
    if start == "image" and not registry:
        raise UsageError(
            "--from image: the recipe names no registry the image could be taken from",
            'Add [publish] registry = "registry.example.org/lab"; or --from wheels.',
        )
    by_variant = {item.variant: item for item in plan.variants}
    files: dict[str, bytes] = {}
    for made in recipe_images(recipe):
        if made.variant not in by_variant:
            continue
        resolution = by_variant[made.variant]
        if start == "image" or (not start and registry):
            name = at_recipes_registry(recipe, made.name)
            text = from_image(resolution, name, made.training, torchsmith)
        else:
            text = from_wheels(resolution, image, made.training, torchsmith)
        path = made.name.rpartition("/")[2].replace(":", "-")
        files[f"{path}.def"] = text.encode()
    return files
