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
            cuda = 0.0
            if resolution.cuda is not None:
                archs = len(resolution.cuda.archs)
                cuda = entry.cuda_core_seconds + archs * entry.arch_core_seconds
            exact = entry.measured and resolution.cuda is None
            apart = entry.core_seconds + cuda if entry.batched_core_seconds else 0.0
            return Cost(
                core_seconds=(entry.batched_core_seconds or entry.core_seconds) + cuda,
                apart_core_seconds=apart,
                memory_mb=entry.memory_mb,
                disk_mb=entry.disk_mb,
                basis="measured on a like build" if exact else "estimated",
            )
    return Cost(basis="unknown")
