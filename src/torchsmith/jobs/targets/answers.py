"""Values out of a target's JSON, which may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

Table = Mapping[str, JsonValue]


def table(value: JsonValue) -> Table:
    """A table, or an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def tables(value: JsonValue) -> Sequence[Table]:
    """A list of tables, empty in place of anything else."""
    return [table(item) for item in value] if isinstance(value, list) else []


def text(values: Table, key: str) -> str:
    """A text of a table, empty where there is none."""
    value = values.get(key)
    return value if isinstance(value, str) else ""


def number(values: Table, key: str) -> int | None:
    """A whole number of a table."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
