"""Where what is shipped lies."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.plan.models import Step


def wheel_folder(verified: Sequence[Step]) -> str:
    """Where the wheels lie that were verified, their reports beside them: the finished ones."""
    return verified[0].outputs[0].rpartition("/")[0] if verified else ""
