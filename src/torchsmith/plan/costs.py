"""What a compile is expected to take, from facts."""

from __future__ import annotations

from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import version_range
from torchsmith.plan.models import Cost
from torchsmith.resolve.models import Resolution


def compile_cost(facts: Facts, project: str, resolution: Resolution) -> Cost:
    """The estimate for one project of a variant, and what it rests on."""
    wanted = project if project in ("torch", "vision") else "extension"
    profile = resolution.profile if wanted == "torch" else "release"
    for entry in facts.costs.compile:
        if (
            entry.project == wanted
            and entry.profile == profile
            and resolution.torch in version_range(entry.torch)
        ):
            seconds = entry.core_seconds
            if resolution.cuda is not None:
                archs = len(resolution.cuda.archs)
                seconds += entry.cuda_core_seconds + archs * entry.arch_core_seconds
            exact = entry.measured and resolution.cuda is None
            return Cost(
                core_seconds=seconds,
                memory_mb=entry.memory_mb,
                disk_mb=entry.disk_mb,
                basis="measured on a like build" if exact else "estimated",
            )
    return Cost(basis="unknown")
