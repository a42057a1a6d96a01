"""Platforms by the names people give them."""

from __future__ import annotations

import re

from torchsmith.facts.files import Facts
from torchsmith.facts.models import OtherPlatform

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
