"""The jobs that a build cannot be shorter than: each waits for the one before."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter

from torchsmith.engine.job_log import BuildFolder


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
