"""One thing that was looked at, and what was seen."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["pass", "fail", "warn", "absent", "info"]


class Check(Struct, frozen=True, omit_defaults=True):
    """A claim and whether it holds.

    `absent` means that the thing is not there and need not be: a feature this build leaves
    out, a GPU this machine does not have. `info` states what was found without judging it.
    """

    group: str
    name: str
    status: Status
    found: str = ""
    wanted: str = ""
    detail: str = ""
    cure: str = ""
    seconds: float = 0.0


def holds(
    group: str, name: str, ok: bool, *, found: str = "", wanted: str = "", cure: str = ""
) -> Check:
    """A check that passes or fails."""
    return rated(group, name, "pass" if ok else "fail", found, wanted, cure)


def rated(
    group: str, name: str, status: Status, found: str, wanted: str = "", cure: str = ""
) -> Check:
    """A check; what is wanted and the cure are told only where it does not pass."""
    if status in ("pass", "info"):
        return Check(group, name, status, found)
    return Check(group, name, status, found, wanted, cure=cure)


def few(items: list[str] | tuple[str, ...], most: int = 4) -> str:
    """Name some of many."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
