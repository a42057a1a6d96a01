"""The nearest thing that would work: what to change so that a combination can exist.

Two questions are answered. For one clash: the smallest change to either of its two sides
that removes it and breaks nothing else. For all of them together: the combination with the
fewest and smallest changes that breaks no rule at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

from msgspec.structs import replace

from torchsmith.facts.cuda import arch_number, archs_of, find_arch, host_compiler, toolkits
from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import (
    companion_for,
    companion_releases,
    entry_for,
    minor_heads,
    releases,
)
from torchsmith.resolve.combination import Clash, Combination, clashes, with_companion

# How reluctantly a person changes each of them: the GPU is bolted in, a companion's release
# hardly matters. Used to order whole combinations; the unit is one step in the list of versions.
_RELUCTANCE = {
    "archs": 6.0,
    "torch": 2.0,
    "cuda": 1.5,
    "python": 1.5,
    "cudnn": 0.5,
    "compiler": 0.5,
}
_WIDTH = 14


@cache
def _ordered(versions: tuple[str, ...], asked: str) -> tuple[str, ...]:
    """Versions by distance from the one asked for; of two as near, the newer first."""
    numbers = sorted({*versions, asked}, key=release)
    at = numbers.index(asked)
    others = [version for version in versions if version != asked]
    return tuple(
        sorted(others, key=lambda item: (abs(numbers.index(item) - at), -numbers.index(item)))
    )


@cache
def _pythons(facts: Facts) -> tuple[str, ...]:
    every = {python for item in releases(facts) for python in item.pythons}
    return tuple(sorted(every, key=release))


def _replacement_archs(facts: Facts, asked: Combination) -> Iterator[tuple[str, ...]]:
    """Arch lists that serve the same GPUs: an older code of the same major, or PTX below it."""
    usable = {item.arch for item in archs_of(facts, asked.cuda)} if asked.cuda else set()
    entry = entry_for(facts.torch.archs, asked.torch)
    if entry is not None:
        usable &= set(entry.known)
    kept: list[str] = []
    replaced: list[str] = []
    for arch in asked.archs:
        if arch in usable:
            kept.append(arch)
            continue
        major, minor, _ = arch_number(arch)
        same = [
            a for a in usable if arch_number(a)[0] == major and arch_number(a)[1:] <= (minor, "")
        ]
        if same:
            replaced.append(max(same, key=arch_number))
    if replaced:
        yield tuple(dict.fromkeys([*kept, *replaced]))
    if kept:
        yield tuple(kept)


def _alternatives(facts: Facts, asked: Combination, dimension: str) -> Iterator[Combination]:
    if dimension == "torch":
        heads = tuple(item.version for item in minor_heads(facts))
        for version in _ordered(heads, asked.torch):
            yield replace(asked, torch=version)
    elif dimension == "python" and asked.python:
        for version in _ordered(_pythons(facts), asked.python):
            yield replace(asked, python=version)
    elif dimension == "cuda" and asked.cuda:
        known = tuple(item.version for item in toolkits(facts))
        for version in _ordered(known, asked.cuda):
            yield replace(asked, cuda=version)
    elif dimension == "archs":
        for archs in _replacement_archs(facts, asked):
            yield replace(asked, archs=archs)
    elif dimension == "cudnn" and asked.cudnn:
        lines = {
            version for line in facts.cuda.cudnn for version in line.cudnn.split(":") if version
        }
        for version in _ordered(tuple(sorted(lines, key=release)), asked.cudnn):
            yield replace(asked, cudnn=version)
    elif dimension == "compiler" and asked.compiler:
        kind, version = asked.compiler
        for newest in _compiler_versions(facts, asked, kind):
            if newest != version:
                yield replace(asked, compiler=(kind, newest))
    elif dimension == "companions":
        for name, version in asked.companions:
            match = companion_for(facts, name, asked.torch)
            if match is None:
                kept = tuple(item for item in asked.companions if item[0] != name)
                yield replace(asked, companions=kept)
            elif match.version != version:
                yield with_companion(asked, name, match.version)


def _compiler_versions(facts: Facts, asked: Combination, kind: str) -> list[str]:
    """The newest allowed, then older ones, then (for a tree that needs newer) newer ones."""
    newest = 15
    if asked.cuda and (limit := host_compiler(facts, asked.cuda, kind)):
        newest = release(limit.newest)[0]
    return [str(major) for major in (*range(newest, 3, -1), *range(newest + 1, 20))]


def _change(before: Combination, after: Combination) -> str:
    said: list[str] = []
    if after.torch != before.torch:
        said.append(f"torch {after.torch}")
    if after.python != before.python:
        said.append(f"Python {after.python}")
    if after.cuda != before.cuda:
        said.append(f"CUDA {after.cuda}")
    if after.cudnn != before.cudnn:
        said.append(f"cuDNN {after.cudnn}")
    if after.archs != before.archs:
        said.append(f"compute capability {';'.join(after.archs)}{_binary_note(before, after)}")
    if after.compiler != before.compiler and after.compiler:
        said.append(f"{after.compiler[0]} {after.compiler[1]}")
    now = dict(after.companions)
    for name, old in before.companions:
        if name not in now:
            said.append(f"no {name}")
        elif now[name] != old:
            said.append(f"{name} {now[name]}")
    return ", ".join(said)


def _binary_note(before: Combination, after: Combination) -> str:
    lost = [arch for arch in before.archs if arch not in after.archs]
    added = [arch for arch in after.archs if arch not in before.archs]
    if lost and added:
        return f" (its code runs on {', '.join(lost)} too, without what is new there)"
    return ""


def cures(facts: Facts, asked: Combination, clash: Clash) -> str:
    """The nearest change of each side that mends this clash without causing another."""
    before = {other.identity for other in clashes(facts, asked)}

    def mends(candidate: Combination) -> bool:
        left = {other.identity for other in clashes(facts, candidate)}
        # A GPU that torch knows and CUDA cannot compile for is not helped.
        still = any(clash.subject and clash.subject == subject for _, subject in left)
        return clash.identity not in left and left <= before and not still

    found: list[str] = []
    for dimension in dict.fromkeys(clash.dimensions):
        alone = (item for item in _alternatives(facts, asked, dimension) if mends(item))
        # Where no change of this side alone is enough, the one that drags torch or CUDA along.
        dragged = (
            item
            for first in _alternatives(facts, asked, dimension)
            for other in ("torch", "cuda")
            if other != dimension
            for item in itertools.islice(_alternatives(facts, first, other), _WIDTH)
            if mends(item)
        )
        best = next(itertools.chain(alone, dragged), None)
        if best is not None and not (
            clash.conflict.kind.startswith("companion-") and _drops(asked, best)
        ):
            found.append(_change(asked, best))
    found += _special_cures(facts, asked, clash)
    return "; or ".join(dict.fromkeys(found))


def _drops(before: Combination, after: Combination) -> bool:
    return len(after.companions) < len(before.companions)


def _special_cures(facts: Facts, asked: Combination, clash: Clash) -> list[str]:
    """What the search cannot know: leaving a thing out, forward compatibility, an end."""
    kind = clash.conflict.kind
    if kind in ("companion-missing", "companion-unknown"):
        newest = companion_releases(facts, clash.subject)[-1]
        low = version_range(newest.torch).low
        said = [f"leave {clash.subject} out"]
        if kind == "companion-missing" and low is not None and release(asked.torch) > low:
            said.insert(0, f"torch {newest.torch} with {clash.subject} {newest.version}")
        return said
    if kind in ("arch-torch", "arch-cuda") and asked.cuda:
        wanted = arch_number(clash.subject)
        entry = entry_for(facts.torch.archs, asked.torch)
        usable = [
            item.arch
            for item in archs_of(facts, asked.cuda)
            if arch_number(item.arch) < wanted
            and not arch_number(item.arch)[2]
            and (entry is None or item.arch in entry.known)
        ]
        known = find_arch(facts, clash.subject)
        if usable and known and not wanted[2]:
            best = max(usable, key=arch_number)
            if arch_number(best)[0] < wanted[0]:
                return [
                    f"compute capability {best}+PTX, which the driver translates for newer GPUs"
                ]
    return []


def nearest_working(facts: Facts, asked: Combination) -> Combination | None:
    """The combination with the least change that breaks no rule; None if none was found."""
    broken = clashes(facts, asked)
    dimensions = list(dict.fromkeys(d for clash in broken for d in clash.dimensions))
    if "torch" in dimensions or "cuda" in dimensions:
        # Moving torch or CUDA drags the others along.
        dimensions += [d for d in ("torch", "cuda", "python", "companions") if d not in dimensions]
    for count in range(1, min(3, len(dimensions)) + 1):
        best: tuple[float, Combination] | None = None
        for chosen in itertools.combinations(dimensions, count):
            for cost, candidate in _moved(facts, asked, chosen):
                if (best is None or cost < best[0]) and not clashes(facts, candidate):
                    best = (cost, candidate)
        if best is not None:
            return best[1]
    return None


def _moved(
    facts: Facts, asked: Combination, dimensions: Sequence[str]
) -> Iterator[tuple[float, Combination]]:
    if not dimensions:
        yield 0.0, asked
        return
    first, rest = dimensions[0], dimensions[1:]
    options = itertools.islice(_alternatives(facts, asked, first), _WIDTH)
    for step, option in enumerate(options, start=1):
        for cost, candidate in _moved(facts, option, rest):
            yield cost + step * _RELUCTANCE.get(first, 1.0), candidate
