"""What happens on the farm, as values: for a display, and for a JSON stream."""

from __future__ import annotations

from torchsmith.engine.events import Event


class FarmStarted(Event, frozen=True, kw_only=True):
    """The farm begins, or is found again: so many variants, so many of them built before."""

    farm: str
    engine: str
    folder: str
    variants: tuple[str, ...]
    done: int


class VariantSubmitted(Event, frozen=True, kw_only=True):
    """A variant was handed to the cluster; `attempt` counts from one."""

    variant: str
    job: str
    attempt: int


class VariantMoved(Event, frozen=True, kw_only=True):
    """A variant is somewhere else: another state, node or step."""

    variant: str
    state: str
    node: str
    step: str


class VariantLost(Event, frozen=True, kw_only=True):
    """A variant's machine died, or its job is gone; `again`: it is submitted once more."""

    variant: str
    attempt: int
    reason: str
    again: bool


class VariantBuilt(Event, frozen=True, kw_only=True):
    """A variant is built: its results, and how many checks proved them."""

    variant: str
    node: str
    seconds: float
    artifacts: tuple[str, ...]
    checks: int
    before: bool


class VariantFailed(Event, frozen=True, kw_only=True):
    """A variant cannot be built: what its build said, and where all of it is."""

    variant: str
    node: str
    reason: str
    excerpt: tuple[str, ...]
    log: str
    exit_code: int


class FarmFinished(Event, frozen=True, kw_only=True):
    """Every variant is built or has failed; or the farm was left to itself (`left`)."""

    farm: str
    status: str
    seconds: float
    built: tuple[str, ...]
    failed: tuple[str, ...]
    left: tuple[str, ...]
