"""From times to verdicts: what is a difference, and what is noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchsmith.bench.result import Compared, Measured, Noise, Verdict
from torchsmith.bench.statistics import (
    ALPHA,
    FEWEST,
    Shift,
    adjusted,
    log_ratios,
    median,
    quantile,
    shift,
)

# The first side once more, in a process of its own. No name a person may give has a space.
CONTROL = "first again"
# Differences smaller than this are not worth a word, however sure they are.
_SMALLEST = math.log(1.02)


@dataclass(frozen=True, slots=True)
class _Series:
    """The ratios of a case, or of a group where `name` is empty, in each round."""

    device: str
    group: str
    name: str
    ratios: tuple[float, ...]


def judge(
    cases: Sequence[Measured], first: str, others: Sequence[str]
) -> tuple[tuple[Compared, ...], tuple[Compared, ...], tuple[Noise, ...]]:
    """Compare the first side with each other: by case, by group, and with itself."""
    control = _series(cases, first, CONTROL)
    noise = tuple(_noise(control))
    floors = _Floors(control)
    group_floors = _Floors(_grouped(control))
    compared: list[Compared] = []
    groups: list[Compared] = []
    for other in others:
        found = _series(cases, first, other)
        compared += _against(found, other, floors)
        groups += _against(_grouped(found), other, group_floors)
    return tuple(compared), tuple(groups), noise


def _series(cases: Sequence[Measured], first: str, other: str) -> list[_Series]:
    return [
        _Series(
            case.device,
            case.group,
            case.name,
            tuple(log_ratios(case.times[first], case.times[other])),
        )
        for case in cases
        if case.times.get(first) and case.times.get(other)
    ]


def _grouped(series: Sequence[_Series]) -> list[_Series]:
    """The mean of a group's cases in each round: its geometric mean, measured as often."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for item in series:
        found.setdefault((item.device, item.group), []).append(item.ratios)
    return [
        _Series(
            device,
            group,
            "",
            tuple(sum(ratios) / len(members) for ratios in zip(*members, strict=False)),
        )
        for (device, group), members in found.items()
    ]


class _Floors:
    """What two copies of the first side differ by: what a difference has to exceed.

    Nineteen of twenty cases differ by no more than the floor of their device; a case that
    differs by more has a floor of its own.
    """

    def __init__(self, control: Sequence[_Series]) -> None:
        self._own = {
            (item.device, item.group, item.name): abs(shift(item.ratios).middle) for item in control
        }

    def of(self, device: str) -> float:
        """The floor of a device."""
        sizes = [size for (where, _, _), size in self._own.items() if where == device]
        return max(_SMALLEST, quantile(sizes, 0.95)) if sizes else _SMALLEST

    def of_series(self, item: _Series) -> float:
        """The floor of a case, or of a group."""
        return max(self.of(item.device), self._own.get((item.device, item.group, item.name), 0.0))


def _noise(control: Sequence[_Series]) -> Iterable[Noise]:
    floors = _Floors(control)
    for device in dict.fromkeys(item.device for item in control):
        found = [shift(item.ratios) for item in control if item.device == device]
        chances = adjusted([item.p for item in found])
        called = sum(
            chance <= ALPHA and abs(item.middle) > _SMALLEST
            for item, chance in zip(found, chances, strict=True)
        )
        middle = median([abs(item.middle) for item in found])
        floor = floors.of(device)
        yield Noise(device, len(found), math.expm1(middle), math.expm1(floor), called)


def _against(series: Sequence[_Series], other: str, floors: _Floors) -> Iterable[Compared]:
    shifts = [shift(item.ratios) for item in series]
    chances = adjusted([found.p for found in shifts])
    for item, found, chance in zip(series, shifts, chances, strict=True):
        floor = floors.of_series(item)
        yield Compared(
            against=other,
            case=item.name,
            group=item.group,
            device=item.device,
            speedup=math.exp(found.middle),
            low=math.exp(found.low),
            high=math.exp(found.high),
            chance=chance,
            floor=math.exp(floor),
            verdict=_verdict(found, chance, floor, len(item.ratios)),
            rounds=len(item.ratios),
        )


def _verdict(found: Shift, chance: float, floor: float, rounds: int) -> Verdict:
    if rounds >= FEWEST and chance <= ALPHA and (found.low > 0) == (found.high > 0):
        if found.middle > floor:
            return "faster"
        if found.middle < -floor:
            return "slower"
    band = max(floor, math.log(1.05))
    return "same" if -band <= found.low and found.high <= band else "unclear"
