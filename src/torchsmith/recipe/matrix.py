"""Expanding a recipe into its variants: one for every combination of the matrix."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from torchsmith.errors import UsageError
from torchsmith.names import did_you_mean
from torchsmith.recipe.models import Cuda, MatrixCell, Recipe, Torch

MAX_VARIANTS = 10_000
_Excluder = Callable[[dict[str, Any]], bool]
AXES = ("torch", "python", "cuda", "gpus", "cpu", "profile", "platform", "features")


@dataclass(frozen=True)
class Variant:
    """A recipe with every axis at one value; `python` is a list of one."""

    name: str
    recipe: Recipe
    axes: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> str:
        """The one Python of this variant."""
        return self.recipe.python[0]


def _axes(recipe: Recipe) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {
        axis: list(values) for axis in AXES if (values := getattr(recipe.matrix, axis))
    }
    # `python = ["3.8", "3.9"]` at the top is the commonest matrix and needs no [matrix].
    if "python" not in axes and len(recipe.python) > 1:
        axes["python"] = list(recipe.python)
    return axes


def count_variants(recipe: Recipe) -> int:
    """How many combinations there are, before exclusions, without making them."""
    axes = _axes(recipe)
    return math.prod(len(values) for values in axes.values()) + len(recipe.matrix.include)


def _cell_values(cell: MatrixCell) -> dict[str, Any]:
    return {axis: value for axis in AXES if (value := getattr(cell, axis)) is not None}


def _updated(recipe: Recipe, values: dict[str, Any]) -> Recipe:
    update = dict(values)
    if "python" in update:
        update["python"] = [update["python"]]
    if "features" in update:
        update["features"] = {**recipe.features, **update["features"]}
    return recipe.model_copy(update=update)


def _own(base: Recipe) -> dict[str, Any]:
    return {axis: getattr(base, axis) for axis in AXES} | {"python": base.python[0]}


def _agrees(axis: str, wanted: Any, value: Any) -> bool:
    return bool(wanted.items() <= value.items() if axis == "features" else wanted == value)


def _excluder(base: Recipe, cells: list[MatrixCell], axes: Collection[str]) -> _Excluder:
    """Tell which combinations are excluded; a key that is no axis means the recipe's own."""
    own = _own(base)
    # A cell the recipe itself does not agree with excludes nothing, in any combination.
    live = [
        cell
        for cell in map(_cell_values, cells)
        if cell and all(_agrees(axis, cell[axis], own[axis]) for axis in cell if axis not in axes)
    ]

    def excludes(values: dict[str, Any]) -> bool:
        whole = own | values | {"features": own["features"] | values.get("features", {})}
        return any(all(_agrees(axis, cell[axis], whole[axis]) for axis in cell) for cell in live)

    return excludes


def _same(recipe: Recipe) -> Hashable:
    """Equal for variants that ask for the same, however their combinations were written."""
    values = (getattr(recipe, axis) for axis in AXES)
    return tuple(repr(sorted(item.items()) if isinstance(item, dict) else item) for item in values)


def _label(value: Any) -> str:
    if isinstance(value, Torch):
        return value.ref or value.release
    if isinstance(value, Cuda):
        return value.version
    if isinstance(value, list):
        return ";".join(value)
    if isinstance(value, dict):
        return ",".join(f"{name}={mode}" for name, mode in sorted(value.items()))
    return str(value)


def _slug(axis: str, value: Any) -> str:
    text = _label(value)
    if axis == "python":
        return f"py{text}"
    if axis == "cuda":
        return "cpu" if text == "none" else f"cu{text}"
    return re.sub(r"[^A-Za-z0-9.+-]", "-", text).strip("-").lower()


def expand(recipe: Recipe) -> Iterator[Variant]:
    """Yield the variants in a stable order; the same values twice give one variant."""
    base = recipe.model_copy(update={"python": recipe.python[:1]})
    axes = _axes(recipe)
    combinations = (
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    )
    kept = itertools.filterfalse(_excluder(base, recipe.matrix.exclude, axes), combinations)
    included = (_cell_values(cell) for cell in recipe.matrix.include)

    seen: set[Hashable] = set()
    names: dict[str, int] = {}
    for values in itertools.chain(kept, included):
        wanted = _updated(base, values)
        if (same := _same(wanted)) in seen:
            continue
        seen.add(same)
        slugs = filter(None, itertools.starmap(_slug, values.items()))
        name = _free_name("_".join([recipe.name, *slugs])[:120], names)
        shown = tuple((axis, _label(value)) for axis, value in values.items())
        yield Variant(name, wanted, shown)


def named(recipe: Recipe, name: str) -> Variant:
    """One variant by its name."""
    known: list[str] = []
    for variant in expand(recipe):
        if variant.name == name:
            return variant
        known.append(variant.name)
    raise UsageError(
        f"the recipe has no variant {name!r}",
        did_you_mean(name, known),
    )


def _free_name(name: str, taken: dict[str, int]) -> str:
    """Return a name nobody has yet; `taken` remembers how far each was counted."""
    free = name
    while free in taken:
        taken[name] += 1
        free = f"{name}-{taken[name]}"
    taken[free] = 1
    return free
