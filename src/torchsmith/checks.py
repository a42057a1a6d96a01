"""A check: what was looked at, what was found, what to do. All doctors and proofs print it so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

Status = Literal["pass", "fail", "warn", "absent", "info"]
Rating = Literal["pass", "warn", "fail"]
_MARKS: dict[Status, str] = {"pass": "ok", "fail": "x", "warn": "!", "absent": "-", "info": ""}
# Lines shown of what a failed check printed.
_DETAIL_LINES = 6


class Check(Struct, frozen=True, omit_defaults=True):
    """A claim and whether it holds.

    `absent` means that the thing is not there and need not be: a feature this build leaves
    out, a GPU this machine does not have. `info` states what was found without judging it.
    `why` says why it matters; `detail` is what a program printed.
    """

    group: str
    name: str
    status: Status
    found: str = ""
    wanted: str = ""
    detail: str = ""
    cure: str = ""
    seconds: float = 0.0
    why: str = ""


def holds(
    group: str, name: str, ok: bool, *, found: str = "", wanted: str = "", cure: str = ""
) -> Check:
    """A check that passes or fails."""
    return rated(group, name, "pass" if ok else "fail", found, wanted, cure)


def rated(
    group: str, name: str, status: Status, found: str, wanted: str = "", cure: str = ""
) -> Check:
    """A check; what is wanted and the cure are kept only where it does not pass."""
    if status in ("pass", "info"):
        return Check(group, name, status, found)
    return Check(group, name, status, found, wanted, cure=cure)


def few(items: Sequence[str], most: int = 4) -> str:
    """Name some of many."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def worst(checks: Iterable[Check]) -> Rating:
    """The rating of all of them, which decides the exit code."""
    statuses = {check.status for check in checks}
    return "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"


def check_lines(
    checks: Sequence[Check],
    *,
    everything: bool = True,
    paint: Callable[[Status, str], str] = lambda _, mark: mark,
    wrap: Callable[[str, int], list[str]] = lambda text, _: [text],
) -> Iterator[str]:
    """Checks as text: under each what is needed, why it matters, and what to do, once a group.

    Without `everything`, a group that is absent for one reason takes one line. `paint` colours a
    mark; `wrap` cuts a text into lines that leave room for a margin.
    """
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.group, []).append(check)
    for group, inside in groups.items():
        if len(groups) > 1:
            yield from ("", group)
        alike = len(inside) > 1 and len({(check.status, check.detail) for check in inside}) == 1
        if not everything and alike and inside[0].status == "absent":
            inside = [Check(group, inside[0].detail or inside[0].found, "absent")]
        margin = " " * (max(len(check.name) for check in inside) + 6)
        cures: set[str] = set()
        for check in inside:
            mark = paint(check.status, f"{_MARKS[check.status]:<3}")
            name = f"{check.name:<{len(margin) - 6}}"
            first, *rest = wrap(_found(check), len(margin)) or [""]
            yield f"{mark} {name}  {first}".rstrip()
            yield from (f"{margin}{line}" for line in rest)
            for word, text in _notes(check, with_cure=check.cure not in cures):
                head = f"{word:<8}" if word else ""
                for line in wrap(text, len(margin) + len(head)):
                    yield f"{margin}{head}{line}"
                    head = " " * len(head)
            cures.add(check.cure)


def _found(check: Check) -> str:
    if check.status in ("fail", "warn", "absent"):
        return check.found or check.detail.strip().rpartition("\n")[2]
    if not check.wanted:
        return check.found
    wanted = f"needed: {check.wanted}" if check.status == "pass" else check.wanted
    return f"{check.found}; {wanted}"


def _notes(check: Check, *, with_cure: bool) -> Iterator[tuple[str, str]]:
    """What is printed below a check, each with the word before it."""
    if check.wanted and check.status in ("fail", "warn"):
        yield "needed", check.wanted
    if check.why:
        yield "why", check.why
    if check.status == "fail" and check.detail and check.found:
        for line in check.detail.strip().splitlines()[-_DETAIL_LINES:]:
            yield "", f"| {line}"
    if check.cure and with_cure:
        yield "cure", check.cure
