"""Which headers are worth reading once for many compiles. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

# With fewer compiles of one kind to come nothing is gained.
FEWEST = 6
# Compiling headers costs about this many readings of them.
_MAKING = 3
# Each further set takes as much room on disk as the first, and serves fewer files.
_MOST = 3


def choose(units: Sequence[Iterable[str]], sizes: Mapping[str, int]) -> tuple[frozenset[str], ...]:
    """Sets of headers, the largest first; each is read whole by several of the units.

    A unit is what one compile reads. It will be given the largest set of which it reads
    everything, so that it sees no header it does not see by itself.
    """
    readers: dict[str, int] = {}
    for place, unit in enumerate(units):
        for header in unit:
            readers[header] = readers.get(header, 0) | 1 << place
    weights: dict[int, int] = {}
    for header, who in readers.items():
        weights[who] = weights.get(who, 0) + sizes.get(header, 0)
    candidates = {
        who: sum(weight for other, weight in weights.items() if other & who == who)
        for who in weights
        if who.bit_count() >= FEWEST
    }
    spared = [0] * len(units)
    chosen: list[int] = []
    while candidates and len(chosen) < _MOST:
        gains = {who: _gain(who, weight, spared) for who, weight in candidates.items()}
        # Of those that gain as much, always the same.
        best = max(sorted(gains), key=gains.__getitem__)
        if gains[best] <= 0:
            break
        chosen.append(best)
        for place in _places(best):
            spared[place] = max(spared[place], candidates[best])
    chosen.sort(key=candidates.__getitem__, reverse=True)
    return tuple(
        frozenset(header for header, other in readers.items() if other & who == who)
        for who in chosen
    )


def _gain(who: int, weight: int, spared: Sequence[int]) -> int:
    return sum(max(0, weight - spared[place]) for place in _places(who)) - _MAKING * weight


def _places(who: int) -> list[int]:
    return [place for place in range(who.bit_length()) if who >> place & 1]


def tops(
    headers: AbstractSet[str], includes: Mapping[str, Sequence[str]], order: Iterable[str]
) -> tuple[str, ...]:
    """As few of the headers as it takes to read all of them, in the order in which a unit reads."""
    below = {name for header in headers for name in includes.get(header, ()) if name != header}
    ordered = [name for name in order if name in headers]
    chosen: set[str] = set()
    covered: set[str] = set()
    # Headers that include one another in a circle are below each other, and one of them is needed.
    for name in (*(name for name in ordered if name not in below), *ordered):
        if name not in covered:
            chosen.add(name)
            covered |= _reached(name, includes, covered)
    return tuple(name for name in ordered if name in chosen)


def _reached(
    start: str, includes: Mapping[str, Sequence[str]], already: AbstractSet[str]
) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen and name not in already:
            seen.add(name)
            waiting += includes.get(name, ())
    return seen
