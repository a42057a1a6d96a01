"""Records that image steps leave in the work folder: what podman, docker or a registry has now.

The container tool keeps the image itself; the journal keeps its name and digest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.engine.disk import room, write_whole
from torchsmith.foreign import MalformedError, decode
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Step
from torchsmith.plan.publish import Delivery


class MadeImage(Struct, frozen=True):
    """An image of a container tool, `engine`; `digest` is its manifest's, if the tool knows one."""

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
    """Write images to a record, which is whole or not there."""
    with room(record.parent):
        write_whole(record, msgspec.json.encode(images))


def made_image(step: Step, work: Path) -> MadeImage | None:
    """The image a step has made, if its task has recorded one."""
    if not isinstance(step.arguments, ImageTask):
        return None
    try:
        return decode((work / step.arguments.record).read_bytes(), MadeImage)
    except (OSError, MalformedError):
        return None


def pushed_images(step: Step, work: Path) -> tuple[PushedImage, ...]:
    """The images a step has pushed, as its task has recorded them."""
    if not isinstance(step.arguments, Delivery):
        return ()
    try:
        return decode((work / step.arguments.record).read_bytes(), tuple[PushedImage, ...])
    except (OSError, MalformedError):
        return ()
