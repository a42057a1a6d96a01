"""A timeline as a page anyone can open: one file, no script, nothing fetched."""

from __future__ import annotations

from html import escape
from pathlib import PurePath

from torchsmith.bench.timeline import Bar, Timeline

_WIDTH, _LANE, _GAP = 1200, 22, 4
_SLOWEST = 25
# Quick compiles are pale, slow ones dark; what failed is red.
_COLOURS = ((5.0, "#c7dcef"), (15.0, "#94bfe0"), (40.0, "#4f93c8"), (float("inf"), "#1f5f99"))
_FAILED = "#c0392b"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; max-width: 1240px; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem; text-align: right; }
td:last-child, th:last-child { text-align: left; } th { border-bottom: 1px solid #999; }
svg { width: 100%; height: auto; } dt { font-weight: 600; } dd { margin: 0 0 .5rem 0; }
dl { display: flex; flex-wrap: wrap; gap: 0 2.5rem; }
"""


def short(file: str) -> str:
    """The end of a path, which tells files apart."""
    return "/".join(PurePath(file).parts[-2:])


def clock(seconds: float) -> str:
    """1:05:09, 5:09."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def page(timeline: Timeline, title: str) -> str:
    """The whole page."""
    facts = (
        ("compiling", clock(timeline.seconds)),
        ("CPU time", f"{timeline.cpu_seconds:,.0f} s"),
        ("compiles", f"{len(timeline.bars):,}"),
        ("failed", str(timeline.failed)),
        (f"{timeline.cores} cores busy", f"{timeline.busy:.0%}"),
        ("not all busy at the end", clock(timeline.tail)),
        ("memory at most", f"{timeline.peak / (1 << 30):.1f} GiB"),
    )
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    rows = "".join(
        f"<tr><td>{bar.cpu_seconds:.1f}</td><td>{bar.ended - bar.began:.1f}</td>"
        f"<td>{bar.peak / (1 << 20):.0f}</td><td>{escape(short(bar.file))}</td></tr>"
        for bar in timeline.slowest(_SLOWEST)
    )
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n<dl>{items}</dl>\n"
        f"{picture(timeline)}\n<h2>Slowest</h2>\n"
        "<table><tr><th>CPU s</th><th>wall s</th><th>MiB</th><th>file</th></tr>"
        f"{rows}</table>\n</body></html>\n"
    )


def picture(timeline: Timeline) -> str:
    """The lanes as SVG; pointing at a bar tells its file."""
    lanes = 1 + max(bar.lane for bar in timeline.bars)
    height = lanes * (_LANE + _GAP) + 20
    scale = _WIDTH / (timeline.seconds or 1)
    bars = "\n".join(_bar(bar, scale) for bar in timeline.bars)
    ticks = "".join(
        f'<text x="{moment * scale:.1f}" y="{height - 4}" font-size="11" fill="#666">'
        f"{clock(moment)}</text>"
        for moment in _moments(timeline.seconds)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="compiles over time">\n{bars}\n{ticks}\n</svg>'
    )


def _bar(bar: Bar, scale: float) -> str:
    colour = next(colour for limit, colour in _COLOURS if bar.cpu_seconds <= limit)
    width = max(0.3, (bar.ended - bar.began) * scale - 0.2)
    words = f"{short(bar.file)}: {bar.cpu_seconds:.1f} CPU s, {bar.peak / (1 << 20):.0f} MiB"
    return (
        f'<rect x="{bar.began * scale:.2f}" y="{bar.lane * (_LANE + _GAP)}" width="{width:.2f}" '
        f'height="{_LANE}" fill="{_FAILED if bar.failed else colour}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _moments(seconds: float) -> list[float]:
    """Round moments to write under the lanes, eight at most."""
    for step in (1, 5, 15, 60, 300, 900, 3600, 14400):
        if seconds / step <= 8:
            return [step * number for number in range(int(seconds / step) + 1)]
    return [0.0]
