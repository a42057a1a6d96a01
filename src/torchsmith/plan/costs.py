"""How long compiles are expected to take, from facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.facts.models import CompileCost
from torchsmith.facts.ranges import version_range
from torchsmith.plan.models import Cost, Step
from torchsmith.resolve.models import Resolution


def compile_cost(facts: Facts, project: str, resolution: Resolution) -> Cost:
    """The estimate for one project of a variant, and what it rests on."""
    entry = _entry(facts, project, resolution)
    if entry is None:
        return Cost(basis="unknown")
    cuda = 0.0
    if resolution.cuda is not None:
        archs = len(resolution.cuda.archs)
        cuda = entry.cuda_core_seconds + archs * entry.arch_core_seconds
    # What was measured of one extension is no more than an estimate for another.
    exact = entry.measured and resolution.cuda is None and entry.project == project
    return Cost(
        core_seconds=(entry.batched_core_seconds or entry.core_seconds) + cuda,
        apart_core_seconds=entry.core_seconds + cuda if entry.batched_core_seconds else 0.0,
        memory_mb=entry.memory_mb,
        disk_mb=entry.disk_mb,
        basis="measured on a like build" if exact else "estimated",
    )


def another_python(
    facts: Facts, resolutions: Sequence[Resolution], steps: Iterable[Step]
) -> tuple[Step, ...]:
    """The steps with the lower cost of compiling torch again for another Python.

    Only its bindings are compiled: the compiler cache has everything else by then.
    """
    seen: set[tuple[object, ...]] = set()
    bindings: dict[str, float] = {}
    for resolution in resolutions:
        entry = _entry(facts, "torch", resolution)
        if entry is None or not entry.python_core_seconds:
            continue
        same = _all_but_python(resolution)
        if same in seen:
            bindings[resolution.variant] = entry.python_core_seconds
        seen.add(same)
    return tuple(
        replace(step, cost=_cached(step.cost, bindings[step.variant]))
        if step.kind == "compile" and step.project == "torch" and step.variant in bindings
        else step
        for step in steps
    )


def _entry(facts: Facts, project: str, resolution: Resolution) -> CompileCost | None:
    known = {entry.project for entry in facts.costs.compile}
    wanted = project if project in known else "extension"
    profile = resolution.profile if wanted == "torch" else "release"
    for entry in facts.costs.compile:
        if (
            entry.project == wanted
            and entry.profile == profile
            and resolution.torch in version_range(entry.torch)
        ):
            return entry
    return None


def _all_but_python(resolution: Resolution) -> tuple[object, ...]:
    """Everything that decides how the greater part of torch is compiled."""
    return (
        resolution.torch,
        resolution.platform,
        resolution.system if resolution.container else "",
        resolution.cuda,
        resolution.cpu_flags,
        resolution.profile,
        resolution.features,
        resolution.env,
        resolution.cmake,
        resolution.compiler,
        resolution.patches,
    )


def _cached(cost: Cost, seconds: float) -> Cost:
    return replace(
        cost,
        core_seconds=seconds,
        apart_core_seconds=cost.apart_core_seconds or cost.core_seconds,
        uncached_core_seconds=cost.core_seconds,
    )
