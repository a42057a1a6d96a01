"""Platforms and distributions by the names people give them."""

from __future__ import annotations

import re

from torchsmith.facts.files import Facts
from torchsmith.facts.models import OtherPlatform, OtherSystem
from torchsmith.facts.ranges import dotted, release, version_range

# pip, conda, container tools, Debian and NVIDIA each have names of their own for the two.
_SPELLINGS = {
    "linux-x86_64": r"(linux[-_/])?(x86[-_]64|amd64|x64|64)",
    "linux-aarch64": r"(linux[-_/])?(aarch64|arm64|sbsa)(/v8)?",
}


def platform_named(name: str) -> str:
    """The platform a name means: arm64 and linux/arm64 are linux-aarch64."""
    text = name.strip().lower()
    found = (known for known, spelling in _SPELLINGS.items() if re.fullmatch(spelling, text))
    return next(found, name)


def other_platform(facts: Facts, name: str) -> OtherPlatform | None:
    """What is known of a platform that nothing is built for here."""
    text = name.strip().lower()
    return next(
        (item for item in facts.systems.other_platform if re.search(item.pattern, text)), None
    )


def other_system(facts: Facts, name: str) -> OtherSystem | None:
    """What is known of a distribution that nothing is built in here."""
    text = name.strip().lower()
    return next(
        (item for item in facts.systems.other_system if re.search(item.pattern, text)), None
    )


def runs_on_glibc(facts: Facts, glibc: str) -> str:
    """Which published wheels, and what built where, run with a glibc."""
    asking = (
        entry
        for entry in facts.torch.wheel_libc
        if entry.platform is None and entry.cuda is None and release(entry.glibc) > release(glibc)
    )
    newer = next(asking, None)
    wheels = "every published wheel runs there"
    if newer is not None:
        first = dotted(version_range(newer.torch).low or ())
        wheels = (
            f"published wheels of torch {first} and newer need {newer.glibc}; most older ones run "
            "there"
        )
    fitting = [item for item in facts.systems.system if release(item.glibc) <= release(glibc)]
    if not fitting:
        return f"{wheels}; what is built in the distributions known here does not"
    home = max(fitting, key=lambda item: release(item.glibc))
    return f"{wheels}; so does what is built in {home.name} (glibc {home.glibc})"
