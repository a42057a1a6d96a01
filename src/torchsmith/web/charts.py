"""Cores and memory over time as drawings: paths in a box of 1000 by 100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsmith.engine.in_flight import InFlight, Moment

WIDE, HIGH = 1000, 100


@dataclass(frozen=True)
class Chart:
    """An area under a line, and the height of a limit above the floor."""

    area: str
    limit: float
    most: float
    latest: float


def charts(flight: InFlight) -> tuple[Chart, Chart] | None:
    """Compiles at once against cores, and their memory against the governor's budget."""
    moments = tuple(flight.over_time())
    if len(moments) < 2:
        return None
    return (
        _chart(moments, [float(item.running) for item in moments], flight.cores),
        _chart(moments, [float(item.memory) for item in moments], flight.budget),
    )


def _chart(moments: Sequence[Moment], values: Sequence[float], limit: float) -> Chart:
    first, last = moments[0].at, moments[-1].at
    scale = WIDE / ((last - first) or 1.0)
    top = max([*values, limit, 1.0]) * 1.08
    points = [f"M0 {HIGH}"]
    for item, value in zip(moments, values, strict=True):
        # What is true at one moment stays so until the next.
        points.append(f"H{(item.at - first) * scale:.1f}V{HIGH - value / top * HIGH:.1f}")
    points.append(f"H{WIDE}V{HIGH}Z")
    return Chart("".join(points), HIGH - limit / top * HIGH, max(values), values[-1])
