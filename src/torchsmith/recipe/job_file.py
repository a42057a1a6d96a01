"""A job written down as a job file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from torchsmith.recipe.job import Job


def job_file(job: Job) -> str:
    """The file that holds what was set of a job; what has its default is left out."""
    table = job.model_dump(by_alias=True, exclude_defaults=True)
    roles = table.pop("role")
    # What is kept of OpenPAI can be long: a line for each of its keys.
    kept = {name: table.pop(name) for name in ("openpai", "openpai_v1") if name in table}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in table.items()]
    for name, inner in kept.items():
        lines += [f"{name}.{_key(key)} = {_value(value)}" for key, value in inner.items()]
    for role in roles:
        lines += ["", "[[role]]"]
        lines += [f"{_key(name)} = {_value(value)}" for name, value in role.items()]
    return "\n".join([*lines, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    # DEL is the one character JSON allows in a string and TOML does not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case int() | float():
            return repr(value)
        case Mapping():
            inner = ", ".join(f"{_key(str(name))} = {_value(item)}" for name, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"TOML has no {type(value).__name__}")
