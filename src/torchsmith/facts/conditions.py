"""Whether a fact that depends on where torch is built holds there."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from torchsmith.facts.files import Facts
from torchsmith.facts.models import Conditions, Trouble
from torchsmith.facts.ranges import version_range


class Place(Struct, frozen=True):
    """Where torch is built, and what of third_party is built with it. Empty: not known."""

    platform: str = ""
    glibc: str = ""
    # The Linux whose headers are there.
    kernel: str = ""
    # Features whose copy under third_party is compiled.
    bundled: tuple[str, ...] = ()


ANYWHERE = Place()


def holds(
    fact: Conditions, place: Place, cuda: str, kind: str, version: str, *, unknown: bool = False
) -> bool:
    """Whether every condition of a fact is met; `unknown` is the answer where nobody knows."""
    if fact.platform is not None and place.platform != fact.platform:
        return False
    if fact.feature and fact.feature not in place.bundled:
        return False
    if fact.cuda is not None and not (cuda and cuda in version_range(fact.cuda)):
        return False
    if fact.gcc is not None and not (kind == "gcc" and version and _meets(fact.gcc, version)):
        return False
    for span, have in ((fact.glibc, place.glibc), (fact.kernel, place.kernel)):
        if span is not None and not (have in version_range(span) if have else unknown):
            return False
    return True


def _meets(span: str, version: str) -> bool:
    """Whether a compiler is in a range; a bare major only where that takes in the whole of it."""
    wanted = version_range(span)
    if "." in version:
        return version in wanted
    return (wanted.low is None or len(wanted.low) == 1) and wanted.touches(version)


@cache
def troubles(
    facts: Facts, torch: str, cuda: str, kind: str, version: str, place: Place
) -> tuple[Trouble, ...]:
    """What is known to fail, or not known to work, when this torch is built there."""
    return tuple(
        item
        for item in facts.torch.trouble
        if torch in version_range(item.torch) and holds(item, place, cuda, kind, version)
    )
