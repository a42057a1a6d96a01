"""Taking the wheels out of an image, or out of the image it was made of."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.errors import ContainerToolError, OutputError, UsageError
from torchsmith.images.engine import Engine
from torchsmith.plan.render.dockerfile import WHEELS_IMAGE_LABEL, WHEELS_LABEL


def _holder(engine: Engine, image: str) -> tuple[str, str]:
    """The image that holds the wheels, and where in it."""
    labels = engine.inspect(image).labels
    if place := labels.get(WHEELS_LABEL):
        return image, place
    sibling = labels.get(WHEELS_IMAGE_LABEL, "")
    if not sibling:
        raise UsageError(
            f"{image} holds no wheels that torchsmith built",
            "Images of a recipe that builds something are; this one has what was published.",
        )
    found = engine.find(sibling)
    if found is None:
        raise ContainerToolError(
            f"{image} has its wheels installed; the image that keeps them, {sibling}, is not here",
            f"Pull {sibling}, or run `torchsmith image build --only wheels` with the recipe.",
        )
    return sibling, found.labels.get(WHEELS_LABEL, "/")


def extract_wheels(engine: Engine, image: str, output: Path) -> list[Path]:
    """Write the wheels of an image into a folder, each whole or not at all."""
    holder, place = _holder(engine, image)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written: {error.strerror}", "Name another place."
        ) from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(room(output))
        # Beside their target, so that a rename brings them there.
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=output, prefix=".wheels-"))
        engine.copy_out(holder, f"{place.rstrip('/')}/.", Path(folder))
        found = sorted(Path(folder).rglob("*.whl"))
        made = [wheel.replace(output / wheel.name) for wheel in found]
    if not made:
        raise ContainerToolError(f"{holder} holds no wheels at {place}")
    return made
