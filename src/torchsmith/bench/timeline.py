"""Where the time of a build went: its compiles laid out on lanes, and what they add up to."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torchsmith.bench.critical_path import Chain, critical_path
from torchsmith.bench.headers import Headers, header_costs
from torchsmith.engine.compile_log import CompileRecord
from torchsmith.engine.job_log import BuildFolder, job_of

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
    """How long before the end every core was last in use."""
    running, last = 0, 0.0
    for moment, change, _ in _changes(bars):
        if running >= cores:
            last = moment
        running += change
    return seconds - last


def _peak(bars: Sequence[Bar]) -> int:
    """The most memory compiles could have had at once, were each at its peak all the time."""
    most = now = 0
    for _, _, change in _changes(bars):
        now += change
        most = max(most, now)
    return most
