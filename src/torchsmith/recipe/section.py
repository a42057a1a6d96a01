"""What every table of a recipe has in common."""

from __future__ import annotations

from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table that takes only the keys it knows, each of exactly its type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def unique_names(items: list[_Named]) -> list[_Named]:
    """Entries of a list are told apart by name; two of one name are a mistake."""
    names = [item.name for item in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"entries {names.index(name) + 1} and {index + 1} are both {name!r}")
    return items
