"""What every table of a recipe has in common."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


class Section(BaseModel):
    """A table that takes only the keys it knows, each of exactly its type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class WhenThere:
    """Marks a table whose own checks are made ready only where a recipe has that table.

    Making all of them ready takes longer than planning, and most recipes have few of the tables.
    """

    def __get_pydantic_core_schema__(
        self, table: type[Section], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def of_table(_: CoreSchema, describe: GetJsonSchemaHandler) -> dict[str, Any]:
            table.model_rebuild()
            return describe(table.__pydantic_core_schema__)

        return core_schema.no_info_plain_validator_function(
            table.model_validate,
            # The name the schema for editors knows the table by.
            ref=f"{table.__module__}.{table.__qualname__}:{id(table)}",
            metadata={"pydantic_js_functions": [of_table]},
        )


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
