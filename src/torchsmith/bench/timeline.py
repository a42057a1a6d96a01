"""Where the time of a build went: its compiles on lanes, and what they add up to, drawn or traced.

With what ninja knew: the critical path, the jobs that a build cannot be shorter than, since each
waits for the one before; and the headers that are most of what the compilers read.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import PurePath
from typing import TYPE_CHECKING

from torchsmith.engine.compile_log import BuildFolder, CompileRecord, job_of

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class HeaderCost:
    """A header that so many compiles read; `text` is its bytes times those, `share` that of all.

    `cpu_seconds` is what those compiles took, all of each: what a change of the header costs,
    not what reading it does, which nobody measured.
    """

    path: str
    bytes: int
    compiles: int
    text: int
    share: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Headers:
    """What so many compiles read, `text` bytes in all, and the headers that are most of it."""

    compiles: int
    text: int
    heaviest: tuple[HeaderCost, ...]


def header_costs(folders: Iterable[BuildFolder]) -> Headers | None:
    """Headers by the text they are of what was read, the most first; None if nothing tells."""
    folders = tuple(folders)
    text = sum(folder.text for folder in folders)
    if not text:
        return None
    found: dict[str, HeaderCost] = {}
    for header in (header for folder in folders for header in folder.headers):
        known = found.get(header.path)
        compiles = header.compiles + (known.compiles if known else 0)
        read = header.bytes * compiles
        cpu = header.cpu_seconds + (known.cpu_seconds if known else 0.0)
        found[header.path] = HeaderCost(header.path, header.bytes, compiles, read, read / text, cpu)
    heaviest = sorted(found.values(), key=lambda cost: (-cost.text, cost.path))
    return Headers(sum(folder.compiles for folder in folders), text, tuple(heaviest))


@dataclass(frozen=True, slots=True)
class Link:
    """A job of the chain; `began` is when it would begin, in seconds, if no job waited for a core.

    It compiles, or makes, so many `files`, `file` the first; `key` tells which compiles are its.
    """

    key: str
    kind: str
    file: str
    files: int
    began: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Chain:
    """The longest chain of jobs in a build folder, in their order; `seconds` is what it takes."""

    folder: str
    seconds: float
    links: tuple[Link, ...]

    def longest(self, count: int) -> tuple[Link, ...]:
        """So many of its longest jobs, in their order."""
        chosen = sorted(self.links, key=lambda link: -link.seconds)[:count]
        return tuple(link for link in self.links if link in chosen)


def critical_path(folder: BuildFolder) -> Chain:
    """The longest chain by what each job took."""
    jobs = folder.jobs
    began = [0.0] * len(jobs)
    before: list[int | None] = [None] * len(jobs)

    def end(number: int) -> float:
        return began[number] + jobs[number].seconds

    last: int | None = None
    for number in TopologicalSorter(dict(enumerate(job.after for job in jobs))).static_order():
        if jobs[number].after:
            before[number] = latest = max(jobs[number].after, key=end)
            began[number] = end(latest)
        if last is None or end(number) > end(last):
            last = number
    seconds = 0.0 if last is None else end(last)
    links: list[Link] = []
    while last is not None:
        job = jobs[last]
        if job.seconds:
            links.append(Link(job.key, job.kind, job.file, job.files, began[last], job.seconds))
        last = before[last]
    return Chain(folder.folder, seconds, tuple(reversed(links)))


# CMake and configure scripts compile what may not compile, to see whether it does.
_PROBE = re.compile(r"CMakeScratch|CMakeTmp|cmTC_[0-9a-f]+|conftest\.")


@dataclass(frozen=True, slots=True)
class Bar:
    """A compile on a lane; times are seconds since the first began.

    It compiles so many `files`, `file` the first. One that is `critical` is of a job on the
    critical path; a `probe` is CMake trying something, which may fail.
    """

    lane: int
    file: str
    began: float
    ended: float
    cpu_seconds: float
    peak: int
    failed: bool
    critical: bool
    files: int = 1
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """The compiles of a run.

    `busy` is the share of the cores' time, from the first compile to the last, in which one
    ran; `tail` the seconds at the end in which not every core had something to do. `chains`
    are the critical paths of its build folders, the longest first. They and `headers` are
    missing where nobody kept what ninja knew.
    """

    bars: tuple[Bar, ...]
    cores: int
    seconds: float
    cpu_seconds: float
    busy: float
    tail: float
    peak: int
    failed: int
    failed_probes: int
    chains: tuple[Chain, ...]
    headers: Headers | None

    def slowest(self, count: int) -> tuple[Bar, ...]:
        """The compiles that took most CPU time."""
        return tuple(sorted(self.bars, key=lambda bar: (-bar.cpu_seconds, bar.file))[:count])


def lay_out(
    records: Sequence[CompileRecord], folders: Sequence[BuildFolder] = ()
) -> Timeline | None:
    """Put compiles on as few lanes as they need; None if there were none.

    `folders` is what ninja knew of their jobs.
    """
    if not records:
        return None
    chains = sorted(map(critical_path, folders), key=lambda chain: -chain.seconds)
    critical = {link.key for chain in chains for link in chain.links}
    # A batch has a hash for its name: its files say what it is.
    jobs = {job.key: job for folder in folders for job in folder.jobs if job.files > 1}
    cores = records[0].cores
    first = min(record.began for record in records)
    free: list[int] = []
    running: list[tuple[float, int]] = []
    lanes = 0
    bars: list[Bar] = []
    for record in sorted(records, key=lambda item: (item.began, item.ended, item.file)):
        while running and running[0][0] <= record.began:
            heapq.heappush(free, heapq.heappop(running)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heapq.heappush(running, (record.ended, lane))
        job = jobs.get(job_of(record.output))
        bars.append(
            Bar(
                lane,
                job.file if job is not None else record.file,
                record.began - first,
                record.ended - first,
                record.cpu_seconds,
                record.peak,
                record.status != 0,
                job_of(record.output) in critical,
                job.files if job is not None else 1,
                bool(_PROBE.search(f"{record.file} {record.output}")),
            )
        )
    seconds = max(bar.ended for bar in bars)
    return Timeline(
        bars=tuple(bars),
        cores=cores,
        seconds=seconds,
        cpu_seconds=sum(bar.cpu_seconds for bar in bars),
        busy=_covered(bars, cores) / (seconds * cores) if seconds else 0.0,
        tail=_tail(bars, cores, seconds),
        peak=_peak(bars),
        failed=sum(bar.failed and not bar.probe for bar in bars),
        failed_probes=sum(bar.failed and bar.probe for bar in bars),
        chains=tuple(chains),
        headers=header_costs(folders),
    )


def _changes(bars: Sequence[Bar]) -> list[tuple[float, int, int]]:
    """Moments at which a compile begins or ends: how many more run, and with how much memory."""
    begun = [(bar.began, 1, bar.peak) for bar in bars]
    ended = [(bar.ended, -1, -bar.peak) for bar in bars]
    return sorted(begun + ended)


def _covered(bars: Sequence[Bar], cores: int) -> float:
    """Seconds of cores in which a compile ran; more compiles than cores count as the cores."""
    total = before = 0.0
    running = 0
    for moment, change, _ in _changes(bars):
        total += min(running, cores) * (moment - before)
        running, before = running + change, moment
    return total


def _tail(bars: Sequence[Bar], cores: int, seconds: float) -> float:
    """Seconds from the last moment with every core in use to the end."""
    running, last = 0, 0.0
    for moment, change, _ in _changes(bars):
        if running >= cores:
            last = moment
        running += change
    return seconds - last


def _peak(bars: Sequence[Bar]) -> int:
    """The most memory compiles could hold at once, if each stayed at its peak."""
    most = now = 0
    for _, _, change in _changes(bars):
        now += change
        most = max(most, now)
    return most


_WIDTH, _LANE, _GAP = 1200, 22, 4
_SLOWEST = 25
# Quick compiles are pale, slow ones dark; what failed is red, what others waited for is framed.
_COLOURS = ((5.0, "#c7dcef"), (15.0, "#94bfe0"), (40.0, "#4f93c8"), (float("inf"), "#1f5f99"))
_FAILED, _FRAME = "#c0392b", "#e67e22"


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


def draw(timeline: Timeline, suffix: str, title: str) -> str:
    """A timeline as the file this suffix names."""
    if suffix == ".svg":
        return picture(timeline)
    return json.dumps(trace(timeline, title)) if suffix == ".json" else page(timeline, title)


def page(timeline: Timeline, title: str) -> str:
    """A page anyone can open: one file, no script, nothing fetched."""
    from torchsmith.templates import templates

    facts = (
        ("compiling", clock(timeline.seconds)),
        ("CPU time", f"{timeline.cpu_seconds:,.0f} s"),
        ("compiles", f"{len(timeline.bars):,}"),
        ("failed", timeline.failed),
        ("CMake's trials that failed, as they may", timeline.failed_probes),
        ("cores", timeline.cores),
        ("busy", f"{timeline.busy:.0%}"),
        ("cores partly idle at the end", clock(timeline.tail)),
        ("memory at most", f"{timeline.peak / (1 << 30):.1f} GiB"),
    )
    slowest = [
        (
            f"{bar.cpu_seconds:.1f}",
            f"{bar.ended - bar.began:.1f}",
            f"{bar.peak / (1 << 20):.0f}",
            job_name(bar),
        )
        for bar in timeline.slowest(_SLOWEST)
    ]
    headers = [
        (
            f"{cost.text / 1e6:.1f}",
            f"{cost.share:.1%}",
            f"{cost.bytes / 1e3:.0f}",
            f"{cost.compiles:,}",
            f"{cost.cpu_seconds:,.0f}",
            cost.path,
        )
        for cost in (timeline.headers.heaviest[:_SLOWEST] if timeline.headers else ())
    ]
    values = {"facts": facts, "slowest": slowest, "headers": headers, "picture": picture(timeline)}
    functions = {"clock": clock, "short": short, "job_name": job_name}
    template = templates("torchsmith.bench").get_template("timeline.html")
    return template.render(title=title, timeline=timeline, **values, **functions)


def picture(timeline: Timeline) -> Markup:
    """The lanes as SVG; pointing at a bar tells its file."""
    from markupsafe import Markup

    from torchsmith.templates import templates

    lanes = 1 + max(bar.lane for bar in timeline.bars)
    scale = _WIDTH / (timeline.seconds or 1)
    legend = [(colour, f"up to {limit:.0f} CPU s") for limit, colour in _COLOURS[:-1]]
    legend += [(_COLOURS[-1][1], "longer"), (_FAILED, "failed"), ("none", "on the critical path")]
    drawn = (
        templates("torchsmith.bench")
        .get_template("timeline.svg")
        .render(
            width=_WIDTH,
            height=lanes * (_LANE + _GAP) + 44,
            lane=_LANE,
            frame=_FRAME,
            # Frames last, or their neighbours would cover them.
            bars=[
                _drawn(bar, scale) for bar in sorted(timeline.bars, key=lambda bar: bar.critical)
            ],
            ticks=[(round(at * scale, 1), clock(at)) for at in _moments(timeline.seconds)],
            legend=legend,
        )
    )
    return Markup(drawn)


def trace(timeline: Timeline, title: str) -> dict[str, object]:
    """The lanes as trace events, which ui.perfetto.dev and chrome://tracing open.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    names = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}}]
    compiles = [
        {
            "ph": "X",
            "pid": 1,
            "tid": bar.lane + 1,
            "name": job_name(bar),
            "cat": "failed" if bar.failed else "critical path" if bar.critical else "compile",
            # In microseconds.
            "ts": round(bar.began * 1e6),
            "dur": round((bar.ended - bar.began) * 1e6),
            "args": {
                "file": bar.file,
                "files": bar.files,
                "cpu_seconds": round(bar.cpu_seconds, 3),
                "peak_mib": bar.peak >> 20,
            },
        }
        for bar in timeline.bars
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *compiles]}


def _drawn(bar: Bar, scale: float) -> dict[str, object]:
    colour = next(colour for limit, colour in _COLOURS if bar.cpu_seconds <= limit)
    words = f"{job_name(bar)}: {bar.cpu_seconds:.1f} CPU s, {bar.peak / (1 << 20):.0f} MiB"
    return {
        "x": round(bar.began * scale, 2),
        "y": bar.lane * (_LANE + _GAP),
        "width": round(max(0.3, (bar.ended - bar.began) * scale - 0.2), 2),
        "colour": _FAILED if bar.failed else colour,
        "framed": bar.critical,
        "words": words + (", on the critical path" if bar.critical else ""),
    }


def _moments(seconds: float) -> list[float]:
    """Round moments to write under the lanes, eight at most."""
    for step in (1, 5, 15, 60, 300, 900, 3600, 14400):
        if seconds / step <= 8:
            return [step * number for number in range(int(seconds / step) + 1)]
    return [0.0]
