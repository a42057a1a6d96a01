"""What image steps leave in the work folder: the names of what an engine or a registry has now.

The image itself is the container engine's; that it was made, and as what, is for the journal.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.engine.disk import room, write_whole
from torchsmith.foreign import decode
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Step
from torchsmith.plan.publish import Delivery


class MadeImage(Struct, frozen=True):
    """An image an engine has; `digest` is its manifest's, where the engine knows one."""

    name: str
    id: str
    digest: str
    engine: str
    layers: tuple[str, ...] = ()
    bytes: int = 0


class PushedImage(Struct, frozen=True):
    """An image a registry has, by the digest the registry gave it."""

    name: str
    digest: str


def note(record: Path, images: MadeImage | tuple[PushedImage, ...]) -> None:
    """Note images in a file that is whole or not there."""
    with room(record.parent):
        write_whole(record, msgspec.json.encode(images))


def made_image(step: Step, work: Path) -> MadeImage | None:
    """The image a step has made, if its task has noted one."""
    if step.task is None or not isinstance(step.task.arguments, ImageTask):
        return None
    record = work / step.task.arguments.record
    try:
        return decode(record.read_bytes(), MadeImage)
    except (OSError, msgspec.MsgspecError):
        return None


def pushed_images(step: Step, work: Path) -> tuple[PushedImage, ...]:
    """The images a step has pushed, as its task has noted them."""
    if step.task is None or not isinstance(step.task.arguments, Delivery):
        return ()
    try:
        noted = (work / step.task.arguments.record).read_bytes()
        return decode(noted, tuple[PushedImage, ...])
    except (OSError, msgspec.MsgspecError):
        return ()
