"""From times to verdicts: whether two sides differ, by how much, and what is only noise.

Measurements come in rounds: in each, every side is measured once, close together in time. The
logarithms of the ratios within a round are compared, so a machine that slows down for everybody
changes nothing. The estimate is that of Hodges and Lehmann, the interval that of
Wilcoxon's signed-rank test with its exact distribution, the chance that of Yuen's test of a
trimmed mean: one wild round does not move any of them far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import median

from torchsmith.bench.result import Compared, Measured, Noise, Verdict

# The chance, over all cases together, that a difference that is called one is none.
ALPHA = 0.05
# With fewer rounds no result can be surer than that, whatever was measured.
FEWEST = 6
# The first side once more, in a process of its own. No name a person may give has a space.
CONTROL = "first again"
# Differences smaller than this are not worth a word, however sure they are.
_SMALLEST = math.log(1.02)
# An interval that lies within this on both sides counts as no difference.
_ALIKE = math.log(1.05)


@dataclass(frozen=True, slots=True)
class Shift:
    """The middle of the differences, its interval, and how likely chance alone makes it."""

    middle: float
    low: float
    high: float
    p: float


@lru_cache(maxsize=64)
def signed_rank_tail(count: int) -> tuple[float, ...]:
    """P(W <= w) for each w, W the sum of the positive ranks of so many signs tossed as coins."""
    ways = [1]
    for rank in range(1, count + 1):
        longer = [*ways, *([0] * rank)]
        for index, number in enumerate(ways):
            longer[index + rank] += number
        ways = longer
    return tuple(total / 2**count for total in accumulate(ways))


def student_p(t: float, freedom: int) -> float:
    """How likely Student's t is so far from zero, on either side."""
    start = math.atan(abs(t) / math.sqrt(freedom))
    return _cosines(freedom - 1, start) / _cosines(freedom - 1, 0.0)


def _cosines(power: int, start: float, steps: int = 400) -> float:
    """The integral of a power of the cosine up to a right angle, by Simpson's rule."""
    width = (math.pi / 2 - start) / steps
    total = math.cos(start) ** power + (1.0 if power == 0 else 0.0)
    for number in range(1, steps):
        total += (4 if number % 2 else 2) * math.cos(start + number * width) ** power
    return total * width / 3


def trimmed_p(differences: Sequence[float]) -> float:
    """How likely differences so far from zero are, if there is no difference: two-sided.

    Yuen's test: the mean without a fifth at each end. A rank test of a few rounds cannot give a
    chance small enough to outlast the correction for many cases, whatever was measured.
    """
    count = len(differences)
    cut = count // 5
    freedom = count - 2 * cut - 1
    if freedom < 1:
        return 1.0
    ordered = sorted(differences)
    inner = ordered[cut : count - cut]
    # What was cut counts as the nearest that was not.
    drawn_in = [ordered[cut]] * cut + inner + [ordered[-1 - cut]] * cut
    middle = sum(drawn_in) / count
    variance = sum((value - middle) ** 2 for value in drawn_in) / (count - 1)
    mean = sum(inner) / len(inner)
    if not variance:
        return 1.0 if not mean else 0.0
    return student_p(mean * len(inner) / math.sqrt(variance * count), freedom)


def shift(differences: Sequence[float]) -> Shift:
    """Estimate what the differences have in common; ALPHA is the chance that it lies outside."""
    if not differences:
        raise ValueError("nothing was measured")
    count = len(differences)
    means = sorted(
        (differences[first] + differences[second]) / 2
        for first in range(count)
        for second in range(first, count)
    )
    tail = signed_rank_tail(count)
    # So many means may lie outside at each end.
    outside = sum(1 for chance in tail if chance <= ALPHA / 2)
    edge = max(outside - 1, 0)
    return Shift(
        middle=median(means),
        low=means[edge],
        high=means[-1 - edge],
        p=trimmed_p(differences),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share lies at or below, between two neighbours by proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def adjusted(chances: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's correction: of all that stay below ALPHA, that share is chance."""
    count = len(chances)
    order = sorted(range(count), key=chances.__getitem__)
    found = [1.0] * count
    best = 1.0
    for place in range(count, 0, -1):
        index = order[place - 1]
        best = min(best, chances[index] * count / place)
        found[index] = best
    return found


def log_ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """The logarithm of other/one of each round: above zero where `one` is the quicker."""
    return [math.log(b / a) for a, b in zip(one, other, strict=False)]


def change(before: Sequence[float], after: Sequence[float]) -> str:
    """How much more was taken, round by round, and where that lies with 95 %, as text."""
    found = shift(log_ratios(before, after))
    middle, low, high = (
        f"{math.expm1(item):+.2%}" for item in (found.middle, found.low, found.high)
    )
    return f"{middle} (95 %: {low} to {high}, {len(before)} rounds)"


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
