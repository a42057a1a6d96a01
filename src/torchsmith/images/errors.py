"""What can go wrong between torchsmith and a container engine."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.errors import HostError, TorchsmithError


class NoEngineError(HostError):
    """No container engine can be used here: none is installed, or it is not running."""


class EngineError(TorchsmithError):
    """A container engine refused; `said` holds its last lines."""

    exit_code = 6

    def __init__(self, message: str, hint: str = "", said: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.said = tuple(said)


class NoImageError(EngineError):
    """An image is not in the engine's store."""

    def __init__(self, image: str, engine: str) -> None:
        super().__init__(
            f"{engine} has no image {image}",
            f"`{engine} images` lists those it has; `torchsmith image build` makes a recipe's.",
        )
