"""From times to verdicts: what is a difference, and what is noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from torchsmith.bench.result import Compared, Measured, Noise, Verdict
from torchsmith.bench.statistics import ALPHA, FEWEST, Shift, adjusted, log_ratios, quantile, shift

# The first side once more, in a process of its own. No name a person may give has a space.
CONTROL = "first again"
# Differences smaller than this are not worth a word, however sure they are.
_SMALLEST = math.log(1.02)
# What lies within this on both sides is the same for all anyone can do about it.
_ALIKE = math.log(1.05)


@dataclass(frozen=True, slots=True)
class _Series:
    """The ratios of a case, or of a group where `name` is empty, in each round.

    `copies` are the ratios against each copy of the first side by itself; `ratios` their mean.
    """

    device: str
    group: str
    name: str
    ratios: tuple[float, ...]
    copies: tuple[tuple[float, ...], ...]
    lives: tuple[int, ...]


def judge(
    cases: Sequence[Measured], first: str, others: Sequence[str]
) -> tuple[tuple[Compared, ...], tuple[Compared, ...], tuple[Noise, ...]]:
    """Compare the first side with each other: by case, by group, and with itself."""
    control = _series(cases, (first,), CONTROL)
    noise = tuple(_noise(control))
    floors = _Floors(control)
    group_floors = _Floors(_grouped(control))
    compared: list[Compared] = []
    groups: list[Compared] = []
    for other in others:
        found = _series(cases, (first, CONTROL), other)
        compared += _against(found, other, floors)
        groups += _against(_grouped(found), other, group_floors)
    return tuple(compared), tuple(groups), noise


def _series(cases: Sequence[Measured], copies: Sequence[str], other: str) -> list[_Series]:
    found = []
    for case in cases:
        if not case.times.get(copies[0]) or not case.times.get(other):
            continue
        ratios = tuple(
            tuple(log_ratios(case.times[name], case.times[other]))
            for name in copies
            if case.times.get(name)
        )
        found.append(
            _Series(case.device, case.group, case.name, _means(ratios), ratios, case.lives)
        )
    return found


def _means(series: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean of several series in each round."""
    return tuple(sum(values) / len(values) for values in zip(*series, strict=False))


def _grouped(series: Sequence[_Series]) -> list[_Series]:
    """The mean of a group's cases in each round: its geometric mean, measured as often."""
    found: dict[tuple[str, str], list[_Series]] = {}
    for item in series:
        found.setdefault((item.device, item.group), []).append(item)
    return [
        _Series(
            device,
            group,
            "",
            _means([item.ratios for item in members]),
            tuple(
                _means(copies) for copies in zip(*(item.copies for item in members), strict=False)
            ),
            min((item.lives for item in members), key=sum),
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
            verdict=_verdict(item, found, chance, floor),
            rounds=len(item.ratios),
        )


def _verdict(item: _Series, found: Shift, chance: float, floor: float) -> Verdict:
    sure = len(item.ratios) >= FEWEST and chance <= ALPHA and (found.low > 0) == (found.high > 0)
    if sure and abs(found.middle) > floor and _holds(item, found.middle):
        return "faster" if found.middle > 0 else "slower"
    return "same" if found.low >= -_ALIKE and found.high <= _ALIKE else "unclear"


def _holds(item: _Series, middle: float) -> bool:
    """Whether a difference is there against each copy of the first side, and in every life.

    A process can be slow for as long as it lives, by where its memory lies or which core it got.
    That is no property of a torch, and no test on the rounds of one life can tell.
    """
    for ratios in item.copies:
        alone = shift(ratios)
        if (alone.low > 0) != (alone.high > 0) or (alone.middle > 0) != (middle > 0):
            return False
    start = 0
    for count in item.lives:
        life = item.ratios[start : start + count]
        start += count
        if life and (median(life) > 0) != (middle > 0):
            return False
    return True
