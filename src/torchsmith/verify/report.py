"""The outcome of verifying something, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from torchsmith.files import write_result
from torchsmith.foreign import decode
from torchsmith.verify.checks import Check, Status

Rating = Literal["pass", "warn", "fail"]
_MARKS: dict[Status, str] = {"pass": "ok", "fail": "x", "warn": "!", "absent": "-", "info": " "}


class Report(Struct, frozen=True):
    """Everything that was looked at, in order.

    `features` holds what the torch has and lacks: None where it cannot be told. `wheels` has
    the sha256 of each wheel it is about.
    """

    subjects: tuple[str, ...]
    torchsmith: str
    checks: tuple[Check, ...]
    torch: str = ""
    python: str = ""
    variant: str = ""
    features: Mapping[str, bool | None] = {}
    archs: tuple[str, ...] = ()
    wheels: Mapping[str, str] = {}
    environment: str = ""

    @property
    def rating(self) -> Rating:
        """The worst of all checks."""
        statuses = {check.status for check in self.checks}
        return "fail" if "fail" in statuses else "warn" if "warn" in statuses else "pass"

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "fail")

    @property
    def lacks(self) -> tuple[str, ...]:
        """Features this torch was built without."""
        return tuple(name for name, there in self.features.items() if there is False)

    def check(self, name: str) -> Check:
        """Return the check of this name."""
        return next(check for check in self.checks if check.name == name)


def as_json(report: Report) -> bytes:
    """A document of its own: the rating is in it, so that a reader need not know the rule."""
    table = {"rating": report.rating, **msgspec.to_builtins(report)}
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def from_json(content: bytes) -> Report:
    """Read a kept report again."""
    return decode(content, Report)


def lines(report: Report, *, everything: bool = False) -> Iterator[str]:
    """The report as text: groups, one line a check, and each cure once."""
    yield from report.subjects
    if report.torch:
        yield f"  torch {report.torch}, Python {report.python}"
    if report.archs:
        yield f"  for {' '.join(report.archs)}"
    if report.features:
        has = [name for name, there in report.features.items() if there]
        yield f"  has    {' '.join(has)}"
        yield f"  lacks  {' '.join(report.lacks)}"
    for group in dict.fromkeys(check.group for check in report.checks):
        yield ""
        yield group
        inside = [check for check in report.checks if check.group == group]
        if not everything and len({(check.status, check.detail) for check in inside}) == 1:
            only = inside[0]
            if only.status == "absent" and len(inside) > 1:
                yield f"  -  {only.detail or only.found}"
                continue
        shown: set[str] = set()
        for check in inside:
            yield from _line(check, check.cure not in shown)
            shown.add(check.cure)
    yield ""
    yield summary(report)


def summary(report: Report) -> str:
    """One sentence for the end."""
    counts = {
        status: sum(check.status == status for check in report.checks)
        for status in ("pass", "warn", "fail", "absent")
    }
    words = {"pass": "passed", "warn": "warned", "fail": "failed", "absent": "absent"}
    return ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)


def _line(check: Check, with_cure: bool) -> Iterator[str]:
    text = check.found
    if check.status in ("fail", "warn", "absent"):
        text = text or check.detail.strip().rpartition("\n")[2]
    yield f"  {_MARKS[check.status]:<2} {check.name}" + (f": {text}" if text else "")
    if check.wanted and check.status in ("fail", "warn"):
        yield f"       wanted: {check.wanted}"
    if check.status == "fail" and check.detail and check.found:
        for line in check.detail.strip().splitlines()[-6:]:
            yield f"       | {line}"
    if check.cure and with_cure:
        yield f"       cure: {check.cure}"


def beside(artifact: Path) -> Path:
    """Where the report on a wheel is kept."""
    return artifact.with_name(f"{artifact.name}.verify.json")


def as_text(report: Report) -> bytes:
    """The report to be read by people, with nothing left out."""
    return ("\n".join(lines(report, everything=True)) + "\n").encode()


def keep(report: Report, path: Path) -> None:
    """Write a report so that a reader sees the old one or the new one, never half.

    A name that ends in .txt gets the text, any other the JSON document.
    """
    content = as_text(report) if path.suffix == ".txt" else as_json(report)
    write_result(path, content)


def keep_beside(report: Report, artifact: Path) -> tuple[Path, Path]:
    """Keep a report next to the wheel it is about, as JSON and as text."""
    document = beside(artifact)
    text = document.with_suffix(".txt")
    keep(report, document)
    keep(report, text)
    return document, text
