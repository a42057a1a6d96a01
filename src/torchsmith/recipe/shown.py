"""Keys and values of a recipe in messages: short, and harmless to a terminal."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable

_LONGEST = 60
_BARE = re.compile(r"[A-Za-z0-9_-]{1,60}")


class Written(float):
    """A number that remembers how it was written: 3.10 is not 3.1 when it stands for a version."""

    text: str

    def __new__(cls, text: str) -> Written:
        """Read a TOML float."""
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def shortened(value: object) -> str:
    """A value as a person wrote it, cut where it is long."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 256:
            return f"a number of {value.bit_length():,} bits"
        case str():
            return _cut(ascii(value) if not value.isprintable() else repr(value))
        case dict():
            return "a table"
        case list():
            return "a list"
        case datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            return _cut(repr(value))


def _part(part: str | int) -> str:
    text = str(part)
    return text if _BARE.fullmatch(text) else _cut(json.dumps(text))


def dotted(path: Iterable[str | int]) -> str:
    """A key as TOML writes it; `job#2` is the second entry of a list."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"#{part + 1}"
        else:
            shown += f".{_part(part)}" if shown else _part(part)
    return shown
