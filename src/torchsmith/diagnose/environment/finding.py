"""One line of what the doctor says of an environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

# `fail`: torch, or a library built against it, cannot work. `info` judges nothing.
Rating = Literal["ok", "warn", "fail", "info"]


class Finding(Struct, frozen=True):
    """What was found, why it matters and what to do; the last two only where it does."""

    subject: str
    found: str
    rating: Rating
    why: str = ""
    cure: str = ""


def worst(findings: Iterable[Finding]) -> Rating:
    """The rating that decides the exit code."""
    ratings = {finding.rating for finding in findings}
    return "fail" if "fail" in ratings else "warn" if "warn" in ratings else "ok"
