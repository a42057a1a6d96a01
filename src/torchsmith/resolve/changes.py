"""A change to a recipe: what to write differently so that it can exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchsmith.facts.cuda import runs_on
from torchsmith.recipe.models import Companions, Cuda, Recipe
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.models import Change

_BINARY = "its code runs on {} too, without what is new there"


def changes_between(before: Combination, after: Combination) -> tuple[Change, ...]:
    """What to write in the recipe to get from one combination to the other."""
    return tuple(_changes(before, after))


def _changes(before: Combination, after: Combination) -> Iterator[Change]:
    for key in ("torch", "python", "cuda"):
        if getattr(after, key) != getattr(before, key):
            yield Change(key, getattr(after, key))
    if after.archs != before.archs:
        yield Change("gpus", ";".join(after.archs))
    if after.cudnn != before.cudnn:
        yield Change("cuda.cudnn", after.cudnn)
    if after.compiler != before.compiler and after.compiler:
        yield Change("build.compiler", "-".join(after.compiler))
    now = dict(after.companions)
    for name, version in before.companions:
        if now.get(name, "none") != version:
            ours = name in Companions.model_fields
            key, without = (f"companions.{name}", "none") if ours else (f"stack.{name}", "")
            yield Change(key, now.get(name, without))
    for key, name in (("system", "system"), ("cuda.toolkit", "toolkit"), ("jetpack", "jetpack")):
        if getattr(after, name) != getattr(before, name):
            yield Change(key, getattr(after, name))


def described(before: Combination, after: Combination) -> str:
    """The same in words, shortest first said."""
    return ", ".join(_said(before, change) for change in changes_between(before, after))


def _said(before: Combination, change: Change) -> str:
    key, value = change.key, change.value
    names = {"torch": "torch", "python": "Python", "cuda": "CUDA", "cuda.cudnn": "cuDNN"}
    if key in names:
        return f"{names[key]} {value}"
    if key == "gpus":
        return f"compute capability {value}{_gpu_note(before, value.split(';'))}"
    if key == "build.compiler":
        return value.replace("-", " ")
    if key.startswith("stack."):
        name = key.partition(".")[2]
        return f"{name} {value}" if value else f"leave {name} out"
    if key.startswith("companions."):
        name = key.partition(".")[2]
        left_out = f"leave {name} out (--with {name}=none)"
        return left_out if value == "none" else f"{name} {value}"
    if key == "jetpack":
        return f"JetPack {value}" if value else "leave jetpack out"
    return f"{key} = '{value}'" if value else f"leave {key} out"


def _gpu_note(before: Combination, after: list[str]) -> str:
    lost = [arch for arch in before.archs if arch not in after]
    added = [arch for arch in after if arch not in before.archs]
    if not lost or not added:
        return ""
    if any(arch.endswith("+PTX") for arch in added):
        return " (the driver translates it for newer GPUs when they start)"
    if {arch.rstrip("af") for arch in (*lost, *added)} == {"10.1", "11.0"}:
        return " (the same GPU: CUDA 13 renamed 10.1 to 11.0)"
    if {arch.rstrip("af") for arch in lost} == set(added):
        return " (the same GPU, without what only it can do)"
    if before.board:
        return " (the board's own)"
    if all(any(runs_on(old, new) for new in added) for old in map(_plain, lost)):
        return f" ({_BINARY.format(', '.join(lost))})"
    return ""


def _plain(arch: str) -> str:
    return arch.removesuffix("+PTX").rstrip("af")


def changed(recipe: Recipe, changes: Iterable[Change]) -> Recipe:
    """The recipe with the changes made; a change to nothing takes the wish out."""
    for change in changes:
        recipe = _changed(recipe, change.key, change.value)
    return recipe


def _changed(recipe: Recipe, key: str, value: str) -> Recipe:
    section, _, name = key.rpartition(".")
    if section in ("features", "stack"):
        table = {mine: wish for mine, wish in getattr(recipe, section).items() if mine != name}
        if value:
            table[name] = value
        return recipe.model_copy(update={section: table})
    if section == "companions" and f"torch{name}" in recipe.stack:
        # Written there under its package's name.
        recipe = _changed(recipe, f"stack.torch{name}", "")
    if section:
        inner = getattr(recipe, section).model_copy(update={name: value or None})
        return recipe.model_copy(update={section: inner})
    new: Any = value or None
    if key == "torch":
        new = recipe.torch.model_copy(update={"release": value})
    elif key == "python":
        new = [value]
    elif key == "cuda":
        new = recipe.cuda.model_copy(update={"version": value}) if value else Cuda(version="none")
    elif key == "gpus":
        new = value.split(";") if value else ["published"]
    elif key == "platform":
        new = value or "host"
    return recipe.model_copy(update={key: new})
