"""The outcome of verifying something, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.checks import Check, Rating, check_lines, worst
from torchsmith.files import write_result
from torchsmith.foreign import decode
from torchsmith.inputs import read_file

_MOST_BYTES = 64 << 20


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
        return worst(self.checks)

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
    """The report as text."""
    yield from head(report)
    yield from check_lines(report.checks, everything=everything)
    yield from ("", summary(report))


def head(report: Report) -> Iterator[str]:
    """What the report is about."""
    yield from report.subjects
    if report.torch:
        yield f"  torch {report.torch}, Python {report.python}"
    if report.archs:
        yield f"  for {' '.join(report.archs)}"
    if report.features:
        has = [name for name, there in report.features.items() if there]
        yield f"  has    {' '.join(has)}"
        yield f"  lacks  {' '.join(report.lacks)}"


def summary(report: Report) -> str:
    """One sentence for the end."""
    counts = {
        status: sum(check.status == status for check in report.checks)
        for status in ("pass", "warn", "fail", "absent")
    }
    words = {"pass": "passed", "warn": "warned", "fail": "failed", "absent": "absent"}
    return ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)


def beside(artifact: Path) -> Path:
    """Where the report on a wheel is kept."""
    return artifact.with_name(f"{artifact.name}.verify.json")


def content_beside(artifact: Path) -> bytes:
    """The report kept beside a wheel; `OSError` if there is none, or no file that a report is."""
    try:
        return read_file(beside(artifact), _MOST_BYTES)
    except ValueError as error:
        raise OSError(str(error)) from None


def keep(report: Report, path: Path) -> None:
    """Write a report so that a reader sees the old one or the new one, never half.

    A name that ends in .txt gets the text, any other the JSON document.
    """
    text = "\n".join([*lines(report, everything=True), ""])
    write_result(path, text.encode() if path.suffix == ".txt" else as_json(report))


def keep_beside(report: Report, artifact: Path) -> tuple[Path, Path]:
    """Keep a report next to the wheel it is about, as JSON and as text."""
    document = beside(artifact)
    text = document.with_suffix(".txt")
    keep(report, document)
    keep(report, text)
    return document, text
