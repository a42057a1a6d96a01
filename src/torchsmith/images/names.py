"""Which images a recipe makes, and what they are called at its registry."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith.errors import UsageError
from torchsmith.plan.images import image_names
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image, Training


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
    """What to say of a recipe whose images are wanted and that makes none."""
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
