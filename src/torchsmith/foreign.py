"""JSON and TOML that others wrote, or a kill cut short: one error whatever is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    from pydantic import JsonValue

T = TypeVar("T")
Table = Mapping[str, "JsonValue"]

MAX_KEY_PARTS = 100
# tomllib takes time by the square of a dotted key's length: a megabyte of `a.a.a…` is hours.
LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]{1,99}+|"[^"\n]{0,99}"|'[^'\n]{0,99}')[ \t]*+\.[ \t]*+)"""
    rf"{{{MAX_KEY_PARTS}}}",
    re.ASCII,
)


class MalformedError(msgspec.ValidationError):
    """It cannot be parsed, has other types than it should, is no text, or nests without end."""


def decode(content: bytes | str, kind: type[T]) -> T:
    """Read JSON of a kind; msgspec alone lets two of the errors through under other names."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MalformedError(str(error)) from None


def read_json(content: bytes | str) -> JsonValue:
    """Read JSON of any kind."""
    return cast("JsonValue", decode(content, object))


def decode_toml(content: bytes, kind: type[T], most_bytes: int) -> T:
    """Read TOML of a kind."""
    import tomllib  # A reader of JSON starts without it.

    if len(content) > most_bytes:
        raise MalformedError("it is too large")
    try:
        text = content.decode()
        if LONG_KEY.search(text):
            raise MalformedError(f"a key has more than {MAX_KEY_PARTS} parts")
        return msgspec.convert(tomllib.loads(text), kind)
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error)) from None


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


def whole(text: str) -> int | None:
    """The whole number that a text is; `str.isdigit` also knows digits that `int` does not."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def number(values: Table, key: str) -> int | None:
    """A whole number of a table."""
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
