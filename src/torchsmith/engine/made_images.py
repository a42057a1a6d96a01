"""What an image step leaves in the work folder: the name of what the engine has now.

The image itself is the container engine's; that it was made, and as what, is for the journal.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.plan.images import task_of
from torchsmith.plan.models import Step


class MadeImage(Struct, frozen=True):
    """An image an engine has; `digest` is its manifest's, where the engine knows one."""

    name: str
    id: str
    digest: str
    engine: str
    layers: tuple[str, ...] = ()
    bytes: int = 0


def made_image(step: Step, work: Path) -> MadeImage | None:
    """The image a step has made, if its task has noted one."""
    if step.kind != "image" or step.task is None:
        return None
    try:
        return msgspec.json.decode((work / task_of(step).record).read_bytes(), type=MadeImage)
    except (OSError, msgspec.MsgspecError):
        return None
