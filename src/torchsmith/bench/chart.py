"""Speed-ups as a drawing: for each row its interval on a logarithmic scale, and each round."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torchsmith.bench.result import Compared, Verdict

_WIDTH, _LABEL, _RIGHT, _ROW, _TOP = 960, 260, 150, 24, 34
_NEAR_ONE = (0.67, 0.8, 0.9, 1.1, 1.25, 1.5)
_TICKS = sorted(
    [*_NEAR_ONE, *(step * 10.0**power for power in range(-3, 3) for step in (1, 2, 5)), 1000.0]
)
_LIGHT = {
    "ink": "#1d2733",
    "faint": "#66758a",
    "line": "#d5dce5",
    "paper": "#ffffff",
    "card": "#f5f7fa",
    "faster": "#1a7f4b",
    "slower": "#c0392b",
    "same": "#5b6b80",
    "unclear": "#b0821f",
}
_DARK = {
    "ink": "#e3e9f1",
    "faint": "#93a1b5",
    "line": "#39465a",
    "paper": "#131a23",
    "card": "#1c2531",
    "faster": "#4cc38a",
    "slower": "#ff7b6b",
    "same": "#9fb0c6",
    "unclear": "#e0b354",
}


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}: {colour}; " for name, colour in colours.items())


# The page's own colours, light and dark.
COLOURS = (
    f":root {{ {_variables(_LIGHT)}}}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(_DARK)}}} }}\n"
)
DRAWN = """
.paper { fill: var(--paper); }
.ink { fill: var(--ink); } .faint { fill: var(--faint); } .line { stroke: var(--line); }
.one { stroke: var(--faint); stroke-width: 1.5; } .bar { stroke-width: 3; stroke-linecap: round; }
.f-faster { fill: var(--faster); } .f-slower { fill: var(--slower); } .f-same { fill: var(--same); }
.f-unclear { fill: var(--unclear); } .s-faster { stroke: var(--faster); }
.s-slower { stroke: var(--slower); } .s-same { stroke: var(--same); }
.s-unclear { stroke: var(--unclear); } .dot { opacity: .38; }
svg text { font: 12px system-ui, sans-serif; }
"""


def _plain(colours: Mapping[str, str]) -> str:
    """The same with the colours themselves: programs that draw SVG know no CSS variables."""
    return re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], DRAWN)


_ALONE = f"{_plain(_LIGHT)}@media (prefers-color-scheme: dark) {{{_plain(_DARK)}}}\n"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the drawing; `rounds` are the ratios of single rounds."""

    label: str
    found: Compared
    rounds: tuple[float, ...] = ()


def times(ratio: float) -> str:
    """1.25x, and in three digits whatever the size."""
    if ratio >= 99.5:
        return f"{ratio:.0f}x"
    if ratio >= 9.95:
        return f"{ratio:.1f}x"
    return f"{ratio:.2f}x" if ratio >= 0.0995 else f"{ratio:.2g}x"


WORDS: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "no difference",
    "unclear": "cannot tell",
}


def forest(rows: Sequence[Row], first: str, other: str, *, alone: bool = False) -> str:
    """The drawing as SVG; `alone` brings its own colours and paper."""
    ends = [value for row in rows for value in (row.found.low, row.found.high, *row.rounds)]
    low = min(0.8, *ends) / 1.05
    high = max(1.25, *ends) * 1.05
    room = _WIDTH - _LABEL - _RIGHT
    height = _TOP + _ROW * len(rows) + 12

    def place(ratio: float) -> float:
        return _LABEL + room * (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))

    pieces = []
    last = -1000.0
    for tick in _ticks(low, high):
        x = place(tick)
        kind = "one" if tick == 1 else "line"
        pieces.append(
            f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height}"/>'
        )
        if x - last > 34:
            pieces.append(
                f'<text class="faint" x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle">'
                f"{tick:g}x</text>"
            )
            last = x
    for number, row in enumerate(rows):
        pieces.append(_row(row, _TOP + _ROW * number + _ROW / 2, place, first, other))
    words = f"how many times as quick {first} is as {other}"
    style = f"<style>{_ALONE}</style>" if alone else ""
    paper = f'<rect class="paper" width="{_WIDTH}" height="{height}"/>' if alone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(words)}">{style}{paper}\n' + "\n".join(pieces) + "\n</svg>"
    )


def _ticks(low: float, high: float) -> list[float]:
    inside = [tick for tick in _TICKS if low <= tick <= high]
    if high / low > 12:
        # Too many close to one would hide each other.
        inside = [tick for tick in inside if tick not in _NEAR_ONE]
    return inside


def _row(row: Row, y: float, place: Callable[[float], float], first: str, other: str) -> str:
    found = row.found
    says = (
        f"{row.label}: {first} is {times(found.speedup)} as quick as {other}, "
        f"between {times(found.low)} and {times(found.high)}; {WORDS[found.verdict]}"
    )
    dots = "".join(
        f'<circle class="dot f-{found.verdict}" cx="{place(ratio):.1f}" '
        f'cy="{y + offset:.1f}" r="2"/>'
        for ratio, offset in zip(row.rounds, _spread(len(row.rounds)), strict=True)
    )
    words = f"{times(found.speedup)}, {WORDS[found.verdict]}"
    return (
        f'<g><title>{escape(says)}</title><text class="ink" x="{_LABEL - 10}" y="{y + 4:.1f}" '
        f'text-anchor="end">{escape(row.label)}</text>{dots}'
        f'<line class="bar s-{found.verdict}" x1="{place(found.low):.1f}" '
        f'x2="{place(found.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle class="f-{found.verdict}" cx="{place(found.speedup):.1f}" cy="{y:.1f}" r="4.5"/>'
        f'<text class="f-{found.verdict}" x="{_WIDTH - _RIGHT + 12}" y="{y + 4:.1f}">'
        f"{escape(words)}</text></g>"
    )


def _spread(count: int) -> list[float]:
    """Heights that keep the dots of neighbouring rounds apart."""
    return [(-6.0, 6.0, -3.5, 3.5)[number % 4] for number in range(count)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts."""
    words = "".join(f"<th>{escape(word)}</th>" for word in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return wide(f"<table><tr>{words}</tr>{lines}</table>\n")


# A phone scrolls what is wider than it, instead of shrinking it beyond reading.
WIDE = ".wide { overflow-x: auto; } .wide svg { min-width: 760px; }\n"
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def wide(content: str) -> str:
    """Something that may be wider than the page."""
    return f'<div class="wide">{content}</div>\n'
