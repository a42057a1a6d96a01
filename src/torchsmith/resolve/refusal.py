"""Saying no: every conflict with its cures, and the nearest recipe that would be a yes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.cuda import renamed_arch, runs_on
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import companion_for
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Companions, Cuda, Recipe
from torchsmith.resolve.build_rules import clashes
from torchsmith.resolve.combination import Clash, Combination, with_companion
from torchsmith.resolve.models import Change, Conflict, Evidence, Refusal
from torchsmith.resolve.nearest import (
    arch_options,
    cuda_options,
    cudnn_options,
    nearest_working,
    place_options,
    python_options,
    torch_options,
)
from torchsmith.resolve.rules import with_releases

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
    return ", ".join(_in_words(before, change) for change in changes_between(before, after))


def _in_words(before: Combination, change: Change) -> str:
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


_FEW = 3


class Cure(Struct, frozen=True):
    """A combination without the conflict, and the way there."""

    combination: Combination
    text: str
    changes: tuple[Change, ...]


def cures(facts: Facts, asked: Combination, clash: Clash) -> tuple[Cure, ...]:
    """The nearest change of each side that mends this clash without causing another."""
    found: list[Combination] = []
    for dimension in clash.dimensions:
        one = _of_one_side(facts, asked, clash, dimension) or nearest_working(
            facts, asked, frozenset(clash.dimensions) - {dimension}
        )
        if one is not None:
            found.append(one)
    if clash.conflict.kind.startswith(("companion-missing", "companion-unknown", "stack-")):
        without = with_companion(asked, clash.subject, "")
        found = [one for one in found if one != without] + [without]
    made = [
        Cure(one, described(asked, one), changes_between(asked, one))
        for one in dict.fromkeys(found)
        if one != asked
    ]
    needed = sorted(
        (cure for cure in made if not _more_than_needed(cure, made)),
        key=lambda cure: (_another_gpu(cure), len(cure.changes)),
    )
    # Turning everything over is no cure while there is a simple one.
    return tuple(cure for cure in needed if len(cure.changes) <= _FEW) or tuple(needed[:1])


def _another_gpu(cure: Cure) -> bool:
    """Whether the GPU gets less than it could: the GPU is bolted in, the rest is not."""
    moved = any(change.key == "gpus" for change in cure.changes)
    return moved and "the same GPU" not in cure.text


def _more_than_needed(cure: Cure, others: list[Cure]) -> bool:
    """Whether another cure is a part of this one."""
    mine = {change.key for change in cure.changes}
    return any({change.key for change in other.changes} < mine for other in others)


def _of_one_side(
    facts: Facts, asked: Combination, clash: Clash, dimension: str
) -> Combination | None:
    """The nearest change of one side alone; one that mends everything is worth waiting for."""
    before = {other.identity for other in clashes(facts, asked)}
    partial: Combination | None = None
    for option in _alternatives(facts, asked, dimension):
        left = clashes(facts, option)
        if not left:
            return option
        names = {other.identity for other in left}
        # Two companions are two matters; two rules about one torch, or one GPU, are one.
        related = any(
            (dimension in other.dimensions and dimension != "companions")
            or (clash.subject and other.subject == clash.subject)
            for other in left
        )
        if partial is None and clash.identity not in names and names < before and not related:
            partial = option
    return partial


def _alternatives(facts: Facts, asked: Combination, dimension: str) -> Iterator[Combination]:
    if dimension == "torch":
        for _, version in torch_options(facts, asked.torch, asked.cuda):
            yield replace(asked, torch=version)
    elif dimension == "cuda" and asked.cuda:
        for _, version in cuda_options(facts, asked.torch, asked.cuda, asked.board):
            # The GPU stays the same where the toolkit calls it something else.
            if version != asked.cuda:
                archs = tuple(renamed_arch(version, arch) for arch in asked.archs)
                yield replace(asked, cuda=version, archs=archs)
    elif dimension == "python":
        yield from (option for _, option in python_options(facts, asked))
    elif dimension == "archs":
        yield from (option for _, option in arch_options(facts, asked))
    elif dimension == "cudnn":
        yield from (option for _, option in cudnn_options(facts, asked))
    elif dimension == "companions":
        yield from _other_companions(facts, asked)
    else:
        places = ("python", "compiler", "system", "toolkit", "jetpack")
        unchanged = [name for name in places if name != dimension]
        options = itertools.chain(place_options(facts, asked), python_options(facts, asked))
        for _, option in options:
            if all(getattr(option, name) == getattr(asked, name) for name in unchanged):
                yield option


def _other_companions(facts: Facts, asked: Combination) -> Iterator[Combination]:
    for name, version in asked.companions:
        match = companion_for(facts, name, asked.torch)
        if match is not None and match.version != version:
            yield with_companion(asked, name, match.version)


def broken_rules(
    facts: Facts, asked: Combination, names: Mapping[str, str], python: str = ""
) -> Iterator[tuple[Clash, Conflict]]:
    """Every clash, with the conflict as a person should read it.

    `names` are the GPUs' own; `python` says where a Python nobody named comes from.
    """
    for clash in clashes(facts, asked):
        found = cures(facts, asked, clash)
        conflict = replace(
            clash.conflict,
            cure="; or ".join(filter(None, [*(cure.text for cure in found), clash.conflict.cure])),
            changes=found[0].changes if found else (),
        )
        name = names.get(clash.subject)
        if name and clash.conflict.kind.startswith("arch-"):
            first = Evidence(f"asked for: {name}, which has compute capability {clash.subject}")
            conflict = replace(conflict, first=first)
        if python and clash.conflict.kind == "python-torch":
            conflict = replace(conflict, first=Evidence(python))
        yield clash, conflict


def refuse(
    variant: Variant,
    facts: Facts,
    asked: Combination,
    conflicts: Sequence[Conflict],
    works: Callable[[tuple[Change, ...]], bool],
) -> Refusal:
    """Each conflict once, and the nearest combination, which has been tried."""
    unique = tuple(dict.fromkeys(conflicts))
    near = nearest_working(facts, asked)
    if near is None:
        return Refusal(variant.name, unique)
    ours = {clash.conflict.kind for clash in clashes(facts, asked)}
    others = [change for item in unique if item.kind not in ours for change in item.changes]
    moved = changes_between(asked, near)
    changes = tuple({change.key: change for change in (*others, *moved)}.values())
    if changes and not works(changes):
        # What 'host' stands for may change with the rest: written down, it does not.
        pinned = [Change("python", near.python), Change("cuda", near.cuda or "none")]
        changes = tuple({change.key: change for change in (*pinned, *changes)}.values())
    if not changes or not works(changes):
        return Refusal(variant.name, unique)
    others_in_words = [_wish(change) for change in others if change.key not in ("torch", "cuda")]
    if any(change.key == "cuda" for change in others) and not near.cuda:
        near = replace(near, cuda=next(c.value for c in others if c.key == "cuda"))
    nearest = ", ".join([with_releases(facts, near).shown(), *others_in_words])
    return Refusal(variant.name, unique, nearest, changes)


def _wish(change: Change) -> str:
    section, _, name = change.key.rpartition(".")
    if not change.value:
        return f"without {change.key}"
    return f"{name} {change.value}" if section == "features" else f"{change.key} {change.value}"
