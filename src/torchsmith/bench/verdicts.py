"""From times to verdicts: what is a difference, and what is noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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


def judge(
    cases: Sequence[Measured], first: str, others: Sequence[str]
) -> tuple[tuple[Compared, ...], tuple[Compared, ...], tuple[Noise, ...]]:
    """Compare the first side with each other: by case, by group, and with itself."""
    noise = {item.device: item for item in _noise(cases, first)}
    compared = [
        item for other in others for item in _against(cases, first, other, noise, by_group=False)
    ]
    groups = [
        item for other in others for item in _against(cases, first, other, noise, by_group=True)
    ]
    return tuple(compared), tuple(groups), tuple(noise.values())


def _noise(cases: Sequence[Measured], first: str) -> Iterable[Noise]:
    for device in dict.fromkeys(case.device for case in cases):
        found = [
            shift(log_ratios(case.times[first], case.times[CONTROL]))
            for case in cases
            if case.device == device and case.times.get(first) and case.times.get(CONTROL)
        ]
        if found:
            sizes = [abs(item.middle) for item in found]
            floor = max(_SMALLEST, quantile(sizes, 0.95))
            chances = adjusted([item.p for item in found])
            called = sum(
                1
                for item, chance in zip(found, chances, strict=True)
                if chance <= ALPHA and abs(item.middle) > _SMALLEST
            )
            yield Noise(device, len(found), median(sizes), floor, called)


def _against(
    cases: Sequence[Measured], first: str, other: str, noise: dict[str, Noise], *, by_group: bool
) -> list[Compared]:
    rows: list[tuple[str, str, str, list[float], float]] = []
    both = [case for case in cases if case.times.get(first) and case.times.get(other)]
    for case in both:
        ratios = log_ratios(case.times[first], case.times[other])
        floor = noise[case.device].floor if case.device in noise else _SMALLEST
        if case.times.get(CONTROL):
            own = shift(log_ratios(case.times[first], case.times[CONTROL])).middle
            floor = max(floor, abs(own))
        rows.append((case.name, case.group, case.device, ratios, floor))
    if by_group:
        rows = _grouped(rows)
    shifts = [shift(ratios) for *_, ratios, _ in rows]
    chances = adjusted([item.p for item in shifts])
    return [
        Compared(
            against=other,
            case=name,
            group=group,
            device=device,
            speedup=math.exp(found.middle),
            low=math.exp(found.low),
            high=math.exp(found.high),
            chance=chance,
            floor=math.exp(floor),
            verdict=_verdict(found, chance, floor, len(ratios)),
            rounds=len(ratios),
        )
        for (name, group, device, ratios, floor), found, chance in zip(
            rows, shifts, chances, strict=True
        )
    ]


def _grouped(
    rows: Sequence[tuple[str, str, str, list[float], float]],
) -> list[tuple[str, str, str, list[float], float]]:
    """The mean of a group's cases in each round: its geometric mean, measured as often."""
    found: dict[tuple[str, str], list[tuple[list[float], float]]] = {}
    for _, group, device, ratios, floor in rows:
        found.setdefault((device, group), []).append((ratios, floor))
    grouped = []
    for (device, group), members in found.items():
        rounds = min(len(ratios) for ratios, _ in members)
        means = [
            sum(ratios[number] for ratios, _ in members) / len(members) for number in range(rounds)
        ]
        # What chance does to one case it seldom does to all of them.
        floor = max(_SMALLEST, sum(floor for _, floor in members) / len(members) ** 1.5)
        grouped.append(("", group, device, means, floor))
    return grouped


def _verdict(found: Shift, chance: float, floor: float, rounds: int) -> Verdict:
    if rounds >= FEWEST and chance <= ALPHA and (found.low > 0) == (found.high > 0):
        if found.middle > floor:
            return "faster"
        if found.middle < -floor:
            return "slower"
    band = max(floor, math.log(1.05))
    return "same" if -band <= found.low and found.high <= band else "unclear"
