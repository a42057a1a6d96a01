"""What is known of a failure: of a build, a check, an image or a job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsmith.diagnose.scan import Seen
    from torchsmith.errors import StepFailed


def known_of_step(error: StepFailed) -> list[str]:
    """Lines for a step that failed, from its log."""
    return known_of_log(Path(error.log), error.excerpt)


def known_of_log(log: Path, excerpt: Iterable[str] = ()) -> list[str]:
    """Lines for whatever wrote a log; from what it said at its end, where there is no log."""
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_file

    try:
        with log.open("rb") as file:
            return _lines(scan_file(file, shipped()))
    except (OSError, ValueError):
        return known_of_lines(excerpt)


def known_of_lines(lines: Iterable[str]) -> list[str]:
    """Lines for a failure that has no log, from what was said of it."""
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_lines

    return _lines(scan_lines(lines, shipped()))


def _lines(seen: Seen) -> list[str]:
    from torchsmith.diagnose.diagnose import explained

    named = [item for item in explained(seen).named if not item.after][:2]
    return [f"known: {item.title} — {item.cure}" for item in named]
