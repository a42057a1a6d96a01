"""The recipes shipped with torchsmith."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchsmith.errors import UsageError
from torchsmith.names import nearest

# Inside the installed package, or at the top of a checkout.
_PLACES = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes")


@dataclass(frozen=True)
class Preset:
    """A shipped recipe."""

    name: str
    path: Path

    @property
    def summary(self) -> str:
        """Its first line, which says what it is for."""
        with self.path.open(encoding="utf-8") as file:
            return file.readline().lstrip("# ").strip()


@cache
def folder() -> Path:
    """Where the presets are."""
    return next(place for place in _PLACES if (place / "quickstart.toml").is_file())


def presets() -> list[Preset]:
    """Every preset, by name."""
    return [Preset(path.stem, path) for path in sorted(folder().glob("*.toml"))]


def is_shipped(path: Path) -> bool:
    """Whether a recipe is one of the presets, whose folder is not for anybody to write to."""
    return path.parent == folder()


def find_preset(name: str) -> Preset:
    """Return a preset by name, or say which one was probably meant."""
    every = {preset.name: preset for preset in presets()}
    if name not in every:
        close = nearest(name, every)
        meant = f"Did you mean {close!r}? " if close else ""
        raise UsageError(
            f"there is no preset {name!r}", f"{meant}Presets: {', '.join(sorted(every))}."
        )
    return every[name]
