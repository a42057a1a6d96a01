"""What happens on the farm, as values: for a display, and for a JSON stream."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith.engine.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmStarted(Event):
    """The farm begins, or is found again: so many variants, so many of them built before."""

    farm: str
    engine: str
    folder: str
    variants: tuple[str, ...]
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSubmitted(Event):
    """A variant was handed to the cluster; `attempt` counts from one."""

    variant: str
    job: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantMoved(Event):
    """A variant is somewhere else: another state, node or step."""

    variant: str
    state: str
    node: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantLost(Event):
    """A variant's machine died, or its job is gone; `again`: it is submitted once more."""

    variant: str
    attempt: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantBuilt(Event):
    """A variant is built: its results, and how many checks proved them."""

    variant: str
    node: str
    seconds: float
    artifacts: tuple[str, ...]
    checks: int
    before: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFailed(Event):
    """A variant cannot be built: what its build said, and where all of it is."""

    variant: str
    node: str
    reason: str
    excerpt: tuple[str, ...]
    log: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmFinished(Event):
    """Every variant is built or has failed; or the farm was left to itself (`left`)."""

    farm: str
    status: str
    seconds: float
    built: tuple[str, ...]
    failed: tuple[str, ...]
    left: tuple[str, ...]
