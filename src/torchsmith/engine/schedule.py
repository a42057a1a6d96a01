"""Deciding which steps of a plan have to run, and what each of them reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from torchsmith.engine.store import inside
from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.names import did_you_mean
from torchsmith.plan.models import Plan, Step

# Their results only serve other steps.
_MEANS = frozenset({"base", "fetch", "patch", "environment", "configure"})
_RESULTS = frozenset({"compile", "package"})
_PARALLEL = frozenset({"fetch", "environment"})


def keeps_nothing(step: Step) -> bool:
    """Whether the store keeps nothing of a step: images live with the container tool."""
    return step.kind in ("base", "image")


def acts_outside(step: Step) -> bool:
    """Whether a step acts outside the work folder: the store then only keeps that it was done."""
    return step.kind == "publish" or not all(map(inside, step.outputs))


def may_share_time(step: Step, others: Iterable[Step]) -> bool:
    """Whether a step may run beside others.

    Compilations use every core; two that call apt would share its scratch folder.
    """
    group = (step, *others)
    apts = [item for item in group if item.source is not None and item.source.kind == "debian"]
    return all(item.kind in _PARALLEL for item in group) and len(apts) <= 1


def ordered(steps: Sequence[Step]) -> list[Step]:
    """The steps so that each comes after what it needs, otherwise as they stood."""
    by_id = {step.id: step for step in steps}
    done: dict[str, Step] = {}
    open_: list[str] = []

    def visit(step: Step) -> None:
        if step.id in done:
            return
        if step.id in open_:
            circle = " -> ".join([*open_[open_.index(step.id) :], step.id])
            raise TorchsmithError(f"the plan goes in a circle: {circle}")
        open_.append(step.id)
        for need in step.needs:
            if need not in by_id:
                raise TorchsmithError(f"{step.id} needs {need}, which the plan does not have")
            visit(by_id[need])
        open_.pop()
        done[step.id] = step

    for step in steps:
        visit(step)
    return list(done.values())


def closures(steps: Sequence[Step]) -> dict[str, frozenset[str]]:
    """Everything each step needs, directly or not; `steps` are ordered."""
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        found[step.id] = frozenset(step.needs).union(*(found[need] for need in step.needs))
    return found


def choose(plan: Plan, only: Sequence[str] | None) -> list[Step]:
    """The steps asked for and all they need, in order."""
    steps = ordered(plan.steps)
    if only is None:
        return steps
    known = [step.id for step in steps]
    chosen: set[str] = set()
    for name in only:
        found = [one for one in known if one == name] or [
            one for one in known if name and one.startswith(name)
        ]
        if not found:
            raise UsageError(f"no step is named {name}", did_you_mean(name, known))
        chosen.update(found)
    needs = closures(steps)
    wanted = chosen.union(*(needs[name] for name in chosen))
    return [step for step in steps if step.id in wanted]


def part(plan: Plan, only: Sequence[str] | None) -> Plan:
    """The plan with no more than the steps asked for and all they need."""
    return replace(plan, steps=tuple(choose(plan, only)))


def _mentions(text: str, output: str) -> bool:
    """Whether a text names an output, or everything in the folder where it lies."""
    named = re.search(rf"{re.escape(output)}(?![\w.+-])", text)
    literal = re.split(r"[*?[]", output)[0]
    begun = literal != output and "/" in literal and literal in text
    parent = output.rpartition("/")[0]
    swept = parent and any(f"{parent}/{mark}" in text for mark in ("*", "."))
    return bool(named or begun or swept)


def readings(steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """The steps whose outputs each step reads, in order.

    Those it needs directly, and those behind them that it names: a compilation uses the
    environment, but not the sources that its tree was copied from.
    """
    needs = closures(steps)
    found: dict[str, tuple[str, ...]] = {}
    for step in steps:
        task = step.task.text if step.task else ""
        text = "\n".join([*step.commands, task, *step.path, *(value for _, value in step.env)])
        found[step.id] = tuple(
            other.id
            for other in steps
            if other.id in needs[step.id]
            and (other.id in step.needs or any(_mentions(text, output) for output in other.outputs))
        )
    return found


def final_steps(steps: Sequence[Step], only: Collection[str] | None) -> frozenset[str]:
    """The steps whose outputs a person wants to find when the run is over."""
    needed = {need for step in steps for need in step.needs}
    return frozenset(
        step.id
        for step in steps
        if (only is not None and step.id in only)
        or step.kind in _RESULTS
        or step.expects is not None
        or (step.id not in needed and step.kind != "verify")
    )


def steps_to_run(
    steps: Sequence[Step],
    reads: Mapping[str, tuple[str, ...]],
    finals: Collection[str],
    present: Callable[[Step], bool],
) -> frozenset[str]:
    """The steps whose results are not in the store, and those whose outputs they read.

    So nothing fetches dropped sources again for a wheel that is still there.
    """
    wanted = {step.id for step in steps if step.id in finals or step.kind not in _MEANS}
    chosen: set[str] = set()
    for step in reversed(steps):
        if step.id in wanted and not present(step):
            chosen.add(step.id)
            wanted.update(reads[step.id])
    return frozenset(chosen)
