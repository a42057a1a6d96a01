"""Parts of a plan: what is built of it, and what ships that."""

from __future__ import annotations

from msgspec.structs import replace

from torchsmith.plan.models import Plan

_SHIPS = frozenset({"image", "publish", "job"})


def build_only(plan: Plan) -> Plan:
    """The plan without images, publishing and jobs."""
    steps = tuple(step for step in plan.steps if step.kind not in _SHIPS)
    return replace(plan, steps=steps)


def shipping(plan: Plan) -> tuple[str, ...]:
    """The ids of the steps that `build_only` leaves out."""
    return tuple(step.id for step in plan.steps if step.kind in _SHIPS)
