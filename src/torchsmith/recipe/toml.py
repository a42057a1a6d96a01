"""Writing TOML: recipes, job files and locks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping


def toml_lines(table: Mapping[str, object]) -> list[str]:
    """A table's keys, each on a line; tables inside it are inline ones."""
    return [f"{toml_key(name)} = {toml_value(value)}" for name, value in table.items()]


def toml_key(name: str) -> str:
    """A key, quoted where it must be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: object) -> str:
    """A value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # DEL is the one character JSON allows in a string and TOML does not.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int() | float():
            return repr(value)
        case Mapping():
            inner = ", ".join(toml_lines({str(name): item for name, item in value.items()}))
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")
