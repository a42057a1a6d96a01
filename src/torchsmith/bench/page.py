"""A comparison as a drawing, and as a page of one file that fetches nothing and runs no script."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from torchsmith.bench.measure import GROUPS
from torchsmith.bench.reasons import traits
from torchsmith.bench.result import Compared, Reason, Result, Verdict
from torchsmith.templates import templates

_WIDTH, _RIGHT, _ROW, _TOP = 960, 150, 24, 34
# Drawn narrow, text is still readable on a phone.
_NARROW = 480
# Pixels that a letter of a label takes at most.
_LETTER = 7
_NEAR_ONE = (0.67, 0.8, 0.9, 1.1, 1.25, 1.5)
_TICKS = sorted(
    [*_NEAR_ONE, *(step * 10.0**power for power in range(-3, 3) for step in (1, 2, 5)), 1000.0]
)
# Heights that keep the dots of neighbouring rounds apart.
_SPREAD = (-6.0, 6.0, -3.5, 3.5)
# Pixels that a tick's number takes.
_TICK_ROOM = 34
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
WORDS: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "no difference",
    "unclear": "cannot tell",
}


def times(ratio: float) -> str:
    """1.25x, and in three digits whatever the size."""
    if ratio >= 99.5:
        return f"{ratio:.0f}x"
    if ratio >= 9.95:
        return f"{ratio:.1f}x"
    return f"{ratio:.2f}x" if ratio >= 0.0995 else f"{ratio:.2g}x"


def seconds(value: float) -> str:
    """A time in the unit that gives it three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the drawing; `rounds` are the ratios of single rounds."""

    label: str
    found: Compared
    rounds: tuple[float, ...] = ()


def _forest(
    rows: Sequence[_Row], first: str, other: str, *, width: int = _WIDTH, alone: bool = False
) -> Markup:
    """Each row's interval on a logarithmic scale; `alone` brings its own colours and paper."""
    label = _LETTER * max(len(row.label) for row in rows) + 20
    ends = [value for row in rows for value in (row.found.low, row.found.high, *row.rounds)]
    low = min(0.8, *ends) / 1.05
    high = max(1.25, *ends) * 1.05
    scale = (width - label - _RIGHT) / (math.log(high) - math.log(low))

    def place(ratio: float) -> float:
        return round(label + scale * (math.log(ratio) - math.log(low)), 1)

    ticks, last = [], -1000.0
    for ratio in _TICKS:
        # Too many close to one would hide each other.
        if low <= ratio <= high and not (ratio in _NEAR_ONE and high / low > 12):
            x = place(ratio)
            named = x - last > _TICK_ROOM
            last = x if named else last
            ticks.append({"ratio": ratio, "x": x, "named": named})
    drawn = []
    for number, row in enumerate(rows):
        found, y = row.found, _TOP + _ROW * number + _ROW / 2
        dots = [(place(ratio), y + _SPREAD[at % 4]) for at, ratio in enumerate(row.rounds)]
        drawn.append(
            {
                "label": row.label,
                "says": f"{row.label}: {first} is {times(found.speedup)} as quick as {other}, "
                f"between {times(found.low)} and {times(found.high)}; {WORDS[found.verdict]}",
                "words": f"{times(found.speedup)}, {WORDS[found.verdict]}",
                "verdict": found.verdict,
                "y": y,
                "dots": dots,
                "low": place(found.low),
                "middle": place(found.speedup),
                "high": place(found.high),
            }
        )
    svg = (
        templates("torchsmith.bench")
        .get_template("forest.svg")
        .render(
            width=width,
            height=_TOP + _ROW * len(rows) + 12,
            top=_TOP,
            label=label,
            right=_RIGHT,
            first=first,
            other=other,
            alone=alone,
            ticks=ticks,
            rows=drawn,
        )
    )
    return Markup(svg)


def group_picture(result: Result, against: str, *, alone: bool = True) -> str:
    """The speed-up of each group, as one drawing; empty if there is none."""
    several = len({group.device for group in result.groups}) > 1
    rows = [
        _Row(f"{item.group} ({_DEVICES[item.device]})" if several else item.group, item)
        for item in result.groups
        if item.against == against
    ]
    if not rows:
        return ""
    width = _NARROW if alone else _WIDTH
    return _forest(rows, result.sides[0].name, against, width=width, alone=alone)


@dataclass(frozen=True, slots=True)
class _Group:
    """The cases of a group on a device, drawn and in numbers."""

    name: str
    device: str
    about: str
    picture: Markup
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class _Against:
    """The first side against another."""

    name: str
    counts: Counter[Verdict]
    picture: str
    losses: tuple[Reason, ...]
    groups: tuple[_Group, ...]


def page(result: Result) -> str:
    """The whole page."""
    first, others = result.sides[0], result.sides[1:]
    known = [traits(side) for side in result.sides]
    names = [name for name in known[0] if any(trait[name] for trait in known)]
    absent = [
        (case.name, name, kind, text)
        for case in result.cases
        for kind, texts in (("missing", case.missing), ("failed", case.failed))
        for name, text in texts.items()
    ]
    return (
        templates("torchsmith.bench")
        .get_template("comparison.html")
        .render(
            title=f"{first.name} against {', '.join(side.name for side in others)}",
            result=result,
            first=first,
            others=others,
            against=[_against(result, other.name) for other in others],
            absent=absent,
            sides_head=("", *(side.name for side in result.sides)),
            sides=[(name, *(trait[name] for trait in known)) for name in names],
            words=WORDS,
            devices=_DEVICES,
            times=times,
        )
    )


def _against(result: Result, other: str) -> _Against:
    compared = [item for item in result.compared if item.against == other]
    return _Against(
        name=other,
        counts=Counter(item.verdict for item in compared),
        picture=group_picture(result, other, alone=False),
        losses=tuple(item for item in result.reasons if item.against == other),
        groups=tuple(_groups(result, compared, other)),
    )


def _groups(result: Result, compared: Sequence[Compared], other: str) -> Iterator[_Group]:
    first = result.sides[0].name
    measured = {(case.device, case.name): case for case in result.cases}
    for device, group in dict.fromkeys((item.device, item.group) for item in compared):
        rows, lines = [], []
        for item in compared:
            if (item.device, item.group) != (device, group):
                continue
            case = measured[device, item.case]
            mine, its = case.times[first], case.times[other]
            rows.append(
                _Row(item.case, item, tuple(b / a for a, b in zip(mine, its, strict=False)))
            )
            lines.append(
                (
                    item.case,
                    seconds(median(mine)),
                    seconds(median(its)),
                    times(item.speedup),
                    f"{times(item.low)} – {times(item.high)}",
                    f"{item.chance:.3g}",
                    WORDS[item.verdict],
                )
            )
        picture = _forest(rows, first, other)
        yield _Group(group, device, GROUPS.get(group, ""), picture, tuple(lines))
