"""Which headers are most of what the compilers of a build read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchsmith.engine.job_log import BuildFolder


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
