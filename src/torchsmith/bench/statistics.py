"""Whether two series of measurements differ, and by how much.

Measurements come in rounds: in each, every side is measured once, close together in time. What
is looked at are the logarithms of the ratios within a round, so a machine that slows down for
everybody changes nothing. The estimate is that of Hodges and Lehmann, the interval that of
Wilcoxon's signed-rank test with its exact distribution, the chance that of Yuen's test of a
trimmed mean: one wild round does not move any of them far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from statistics import median

# The chance, over all cases together, that a difference that is called one is none.
ALPHA = 0.05
# With fewer rounds no result can be surer than that, whatever was measured.
FEWEST = 6


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
