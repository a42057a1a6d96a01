"""What a doctor found: of a machine, of a node, of an installed torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

# `fail`: it cannot work as it is. `info` judges nothing.
Rating = Literal["ok", "warn", "fail", "info"]


class Finding(Struct, frozen=True):
    """What is there and what is needed; why it matters and what to do, where it does."""

    subject: str
    found: str
    rating: Rating
    why: str = ""
    cure: str = ""
    needed: str = ""


def worst(findings: Iterable[Finding]) -> Rating:
    """The rating that decides the exit code."""
    ratings = {finding.rating for finding in findings}
    return "fail" if "fail" in ratings else "warn" if "warn" in ratings else "ok"
