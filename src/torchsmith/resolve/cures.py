"""What mends one conflict: for each of its sides, the smallest change of that side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.cuda import renamed_arch
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import companion_for
from torchsmith.resolve.changes import changes_between, described
from torchsmith.resolve.clashes import clashes
from torchsmith.resolve.combination import Clash, Combination, with_companion
from torchsmith.resolve.models import Change
from torchsmith.resolve.nearest import (
    arch_options,
    cuda_options,
    cudnn_options,
    nearest_working,
    place_options,
    python_options,
    torch_options,
)

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
        held = [name for name in places if name != dimension]
        options = itertools.chain(place_options(facts, asked), python_options(facts, asked))
        for _, option in options:
            if all(getattr(option, name) == getattr(asked, name) for name in held):
                yield option


def _other_companions(facts: Facts, asked: Combination) -> Iterator[Combination]:
    for name, version in asked.companions:
        match = companion_for(facts, name, asked.torch)
        if match is not None and match.version != version:
            yield with_companion(asked, name, match.version)
