"""Saying, where a build or a check fails, what is known of that failure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsmith.diagnose.scan import Seen
    from torchsmith.errors import StepFailed


def known_of_step(error: StepFailed) -> list[str]:
    """Lines for a step that failed, from its log."""
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_file, scan_lines

    try:
        with Path(error.log).open("rb") as file:
            return _lines(scan_file(file, shipped()))
    except (OSError, ValueError):
        return _lines(scan_lines(error.excerpt, shipped()))


def known_of_lines(lines: Iterable[str]) -> list[str]:
    """Lines for a failure that has no log, from what was said of it."""
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_lines

    return _lines(scan_lines(lines, shipped()))


def _lines(seen: Seen) -> list[str]:
    from torchsmith.diagnose.diagnose import explained

    named = [item for item in explained(seen).named if not item.after][:2]
    return [f"known: {item.title} — {item.cure}" for item in named]
