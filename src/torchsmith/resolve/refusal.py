"""Saying no: every conflict with its cures, and the nearest recipe that would be a yes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.recipe.matrix import Variant
from torchsmith.resolve.changes import changes_between
from torchsmith.resolve.clashes import clashes
from torchsmith.resolve.combination import Clash, Combination
from torchsmith.resolve.cures import cures
from torchsmith.resolve.models import Change, Conflict, Evidence, Refusal
from torchsmith.resolve.nearest import nearest_working


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
    said = [_said(change) for change in others if change.key not in ("torch", "cuda")]
    if any(change.key == "cuda" for change in others) and not near.cuda:
        near = replace(near, cuda=next(c.value for c in others if c.key == "cuda"))
    return Refusal(variant.name, unique, ", ".join([near.shown(facts), *said]), changes)


def _said(change: Change) -> str:
    section, _, name = change.key.rpartition(".")
    if not change.value:
        return f"without {change.key}"
    return f"{name} {change.value}" if section == "features" else f"{change.key} {change.value}"
