"""A timeline as a page anyone can open: one file, no script, nothing fetched."""

from __future__ import annotations

from html import escape
from pathlib import PurePath

from torchsmith.bench.chart import VIEWPORT, WIDE, table, wide
from torchsmith.bench.timeline import Bar, Chain, Headers, Link, Timeline

_WIDTH, _LANE, _GAP = 1200, 22, 4
_SLOWEST = 25
# Quick compiles are pale, slow ones dark; what failed is red, what others waited for is framed.
_COLOURS = ((5.0, "#c7dcef"), (15.0, "#94bfe0"), (40.0, "#4f93c8"), (float("inf"), "#1f5f99"))
_FAILED, _FRAME = "#c0392b", "#e67e22"
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


def job_name(job: Link | Bar) -> str:
    """The first file of a job, and how many more."""
    more = f" and {job.files - 1} more" if job.files > 1 else ""
    return short(job.file) + more


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
        ("CMake's trials that failed, as they may", str(timeline.failed_probes)),
        ("cores", str(timeline.cores)),
        ("busy", f"{timeline.busy:.0%}"),
        ("cores partly idle at the end", clock(timeline.tail)),
        ("memory at most", f"{timeline.peak / (1 << 30):.1f} GiB"),
    )
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    slowest = (
        (
            f"{bar.cpu_seconds:.1f}",
            f"{bar.ended - bar.began:.1f}",
            f"{bar.peak / (1 << 20):.0f}",
            job_name(bar),
        )
        for bar in timeline.slowest(_SLOWEST)
    )
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8">{VIEWPORT}<title>{escape(title)}</title>'
        f"<style>{_STYLE}{WIDE}</style></head><body>\n<h1>{escape(title)}</h1>\n<dl>{items}</dl>\n"
        f"{wide(picture(timeline))}\n"
        f"{''.join(map(_chain, timeline.chains))}"
        f"<h2>Slowest</h2>\n{table(('CPU s', 'wall s', 'MiB', 'file'), slowest)}"
        f"{_headers(timeline.headers) if timeline.headers else ''}"
        "</body></html>\n"
    )


def _chain(chain: Chain) -> str:
    rows = (
        (clock(link.began), f"{link.seconds:.1f}", link.kind, job_name(link))
        for link in chain.links
    )
    return (
        f"<h2>Critical path: {clock(chain.seconds)}</h2>\n"
        f"<p>Jobs in {escape(short(chain.folder))} that each wait for the one before. Even "
        "unlimited cores cannot beat this chain. Its compiles are framed in the drawing.</p>\n"
        f"{table(('begins', 'wall s', 'kind', 'files'), rows)}"
    )


def _headers(headers: Headers) -> str:
    rows = (
        (
            f"{cost.text / 1e6:.1f}",
            f"{cost.share:.1%}",
            f"{cost.bytes / 1e3:.0f}",
            f"{cost.compiles:,}",
            f"{cost.cpu_seconds:,.0f}",
            cost.path,
        )
        for cost in headers.heaviest[:_SLOWEST]
    )
    head = ("MB in all", "of all text", "kB", "compiles", "their CPU s", "header")
    return (
        f"<h2>Headers</h2>\n<p>{headers.compiles:,} compiles read {headers.text / 1e6:,.1f} MB of "
        "text, a header counted once for each. The CPU time is that of whole compiles: what a "
        "change to the header has done again. What reading it takes is not measured.</p>\n"
        f"{table(head, rows)}"
    )


def picture(timeline: Timeline) -> str:
    """The lanes as SVG; pointing at a bar tells its file."""
    lanes = 1 + max(bar.lane for bar in timeline.bars)
    height = lanes * (_LANE + _GAP) + 44
    scale = _WIDTH / (timeline.seconds or 1)
    # Frames last, or their neighbours would cover them.
    ordered = sorted(timeline.bars, key=lambda bar: bar.critical)
    bars = "\n".join(_bar(bar, scale) for bar in ordered)
    ticks = "".join(
        f'<text x="{moment * scale:.1f}" y="{height - 28}" font-size="11" fill="#666">'
        f"{clock(moment)}</text>"
        for moment in _moments(timeline.seconds)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="compiles over time">\n{bars}\n{ticks}\n'
        f"{_legend(height - 18)}\n</svg>"
    )


def _legend(top: float) -> str:
    """What the colours mean."""
    entries = [(colour, "", f"up to {limit:.0f} CPU s") for limit, colour in _COLOURS[:-1]]
    entries.append((_COLOURS[-1][1], "", "longer"))
    entries.append((_FAILED, "", "failed"))
    entries.append(("none", f' stroke="{_FRAME}" stroke-width="3"', "on the critical path"))
    return "".join(
        f'<g class="legend"><rect x="{2 + 150 * number}" y="{top}" width="14" height="12" '
        f'fill="{colour}"{frame}/><text x="{22 + 150 * number}" y="{top + 11}" font-size="12" '
        f'fill="#444">{words}</text></g>'
        for number, (colour, frame, words) in enumerate(entries)
    )


def _bar(bar: Bar, scale: float) -> str:
    colour = next(colour for limit, colour in _COLOURS if bar.cpu_seconds <= limit)
    width = max(0.3, (bar.ended - bar.began) * scale - 0.2)
    words = f"{job_name(bar)}: {bar.cpu_seconds:.1f} CPU s, {bar.peak / (1 << 20):.0f} MiB"
    frame = ""
    if bar.critical:
        words += ", on the critical path"
        frame = f' stroke="{_FRAME}" stroke-width="3"'
    return (
        f'<rect x="{bar.began * scale:.2f}" y="{bar.lane * (_LANE + _GAP)}" width="{width:.2f}" '
        f'height="{_LANE}" fill="{_FAILED if bar.failed else colour}"{frame}>'
        f"<title>{escape(words)}</title></rect>"
    )


def _moments(seconds: float) -> list[float]:
    """Round moments to write under the lanes, eight at most."""
    for step in (1, 5, 15, 60, 300, 900, 3600, 14400):
        if seconds / step <= 8:
            return [step * number for number in range(int(seconds / step) + 1)]
    return [0.0]
