"""What a verify step that failed left behind: the report, and the checks that failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchsmith.engine.entry import find_outputs
from torchsmith.plan.models import Step
from torchsmith.verify.checks import Check
from torchsmith.verify.report import from_json


@dataclass(frozen=True, slots=True)
class Proof:
    """A report with checks that failed, one line for each."""

    report: Path
    failed: tuple[str, ...]


def read_proof(step: Step, work: Path) -> Proof | None:
    """The report of a step that proves something, if it says that something does not hold."""
    for name in find_outputs(step, work, must=False):
        if not name.endswith(".json"):
            continue
        try:
            made = from_json((work / name).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        failed = tuple(map(_line, made.failed))
        return Proof(work / name, failed) if failed else None
    return None


def _line(check: Check) -> str:
    wanted = f", wanted: {check.wanted}" if check.wanted else ""
    said = check.found or check.detail.strip().rpartition("\n")[2]
    return f"{check.group}, {check.name}: {said}{wanted}"
