"""Building in the tree of an earlier build, for a source that somebody works on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Cost, Plan, Step, digest, step_key
from torchsmith.plan.shell import fresh_copy, ours, sh

_UPDATE = ours("sources.update")


def in_place(plan: Plan, read: Mapping[str, str]) -> Plan:
    """The plan as torchsmith itself runs it: a tree made of a folder is brought up to date.

    Its configuring and its compiling become one step, since the store would otherwise keep the
    tree with all that was built in it, once for every edit. Other sources, and renderings for
    those who have no torchsmith, copy as they did. `read` is what keys know of the project.
    """
    plan = with_keys(plan, read)
    joined: dict[str, Step | None] = {}
    for configure, compiled, source in _built_from_folders(plan):
        joined |= {configure.id: None, compiled.id: _join(plan, configure, compiled, source, read)}
    if not joined:
        return plan
    steps = (joined.get(step.id, step) for step in plan.steps)
    return with_keys(replace(plan, steps=tuple(step for step in steps if step)), read)


def _built_from_folders(plan: Plan) -> Iterator[tuple[Step, Step, Step]]:
    """Steps that configure, those that compile what they did, and those they copy from."""
    by_id = {step.id: step for step in plan.steps}
    for configure in plan.steps:
        if configure.kind != "configure":
            continue
        needed = [by_id[need] for need in configure.needs]
        for source in (step for step in needed if step.kind in ("fetch", "patch")):
            origins = [source, *(by_id[need] for need in source.needs)]
            folders = [step for step in origins if step.source and step.source.kind == "folder"]
            for compiled in plan.steps:
                if folders and compiled.kind == "compile" and configure.id in compiled.needs:
                    yield configure, compiled, source


def _join(
    plan: Plan, configure: Step, compiled: Step, source: Step, read: Mapping[str, str]
) -> Step:
    tree = configure.outputs[0]
    copied = fresh_copy(source.outputs[0], tree)
    needs = dict.fromkeys((*configure.needs, *compiled.needs))
    tools = tuple(need for need in needs if need not in (configure.id, source.id))

    def step(mark: str) -> Step:
        bring = f"{_UPDATE} {sh(source.outputs[0], tree, mark)}"
        return replace(
            compiled,
            needs=(source.id, *tools),
            commands=(
                *(bring if line == copied else line for line in configure.commands),
                f"{_UPDATE} --configured . {mark}",
                *(line for line in compiled.commands if line != f"cd {tree}"),
            ),
            cost=_sum(configure.cost, compiled.cost),
        )

    # Everything but the source: what was built with it is of no use to a build without.
    keys = {other.id: other.key for other in plan.steps}
    settings = step_key(replace(step(""), needs=tools), keys, plan.files, read)
    compilers = [
        f"{item.compiler.kind} {item.compiler.version}"
        for item in plan.variants
        if item.variant == compiled.variant
    ]
    return step(digest("\n".join([settings, *compilers]).encode())[:32])


def _sum(one: Cost, other: Cost) -> Cost:
    def with_one(seconds: float) -> float:
        return seconds and one.core_seconds + seconds

    return replace(
        other,
        core_seconds=one.core_seconds + other.core_seconds,
        apart_core_seconds=with_one(other.apart_core_seconds),
        uncached_core_seconds=with_one(other.uncached_core_seconds),
        disk_mb=one.disk_mb + other.disk_mb,
    )
