"""Changing one key of a recipe file in its text, so that comments and order stay as they are."""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsmith.diagnose.models import Fix
from torchsmith.errors import UsageError
from torchsmith.recipe.toml import key_lines

Value = str | int | list[str]


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """A recipe's text before and after."""

    key: str
    value: Value
    before: str
    after: str

    @property
    def shown(self) -> str:
        """The new value as a recipe has it."""
        return _toml(self.value)


def difference(before: str, after: str, name: str) -> str:
    """What changes in a recipe, as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), name, name, lineterm="", n=2
    )
    return "\n".join(lines)


def change_for(fix: Fix, text: str, cores: int) -> RecipeChange:
    """The change a fix makes to a recipe; `UsageError` where there is none to make."""
    table = tomllib.loads(text)
    path = tuple(fix.key.split("."))
    old = _get(table, path)
    value = _new_value(fix, old, cores)
    if value == old:
        raise UsageError(
            f"{fix.key} is {_toml(value)} already", "The cure in words says what else helps."
        )
    return RecipeChange(fix.key, value, text, with_key(text, path, value))


def _new_value(fix: Fix, old: object, cores: int) -> Value:
    if fix.how == "halve":
        now = old if isinstance(old, int) else cores
        if now <= 1:
            raise UsageError(
                f"{fix.key} cannot be less than 1", "The cure in words says what else helps."
            )
        return now // 2
    if fix.how == "append":
        added = str(fix.value)
        # An arch list may be one text: "8.0;8.6".
        if isinstance(old, str) and fix.key == "gpus":
            return old if added in re.split(r"[;, ]+", old) else f"{old};{added}"
        kept = [str(item) for item in old] if isinstance(old, list) else []
        return kept if added in kept else [*kept, added]
    return fix.value


def with_key(text: str, path: tuple[str, ...], value: Value) -> str:
    """The same document with one key set; `UsageError` where only a person can do it."""
    table = tomllib.loads(text)
    wanted = copy.deepcopy(table)
    try:
        _put(wanted, path, value)
    except TypeError:
        raise _by_hand(path, value) from None
    newline = "\r\n" if "\r\n" in text else "\n"
    for attempt in (_replaced, _inserted, _appended):
        changed = attempt(text, table, path, _toml(value), newline)
        # However the file is written: what it says afterwards is what counts.
        if changed is not None and _read(changed) == wanted:
            return changed
    raise _by_hand(path, value)


def _by_hand(path: tuple[str, ...], value: Value) -> UsageError:
    return UsageError(
        f"{path[0]} is written in a way that is not changed safely",
        f"Write this into the recipe: {'.'.join(path)} = {_toml(value)}",
    )


def _get(table: Mapping[str, Any], path: tuple[str, ...]) -> object:
    value: Any = table
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _put(table: dict[str, Any], path: tuple[str, ...], value: Value) -> None:
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise TypeError
    table[path[-1]] = value


def _read(text: str) -> dict[str, Any] | None:
    """A document; None where it is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _toml(value: Value) -> str:
    # What JSON writes is TOML, too, but for this one character, which TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replaced(
    text: str, table: Mapping[str, Any], path: tuple[str, ...], value: str, newline: str
) -> str | None:
    """Where the key stands: its value exchanged, the comment after it kept."""
    number = key_lines(text).get(path)
    if number is None or _get(table, path) is None:
        return None
    lines = text.splitlines(keepends=True)
    head, equals, rest = lines[number - 1].partition("=")
    behind = rest + "".join(lines[number:])
    for end in (at for at, char in enumerate(behind) if char in "\r\n#"):
        if _read(f"x = {behind[:end]}") is not None:
            spaces = behind[:end][len(behind[:end].rstrip()) :]
            changed = f"{head}{equals} {value}{spaces}{behind[end:]}"
            return "".join(lines[: number - 1]) + changed
    return f"{''.join(lines[: number - 1])}{head}{equals} {value}{newline}"


def _inserted(
    text: str, table: Mapping[str, Any], path: tuple[str, ...], value: str, newline: str
) -> str | None:
    """Into the table it belongs to: right below its header, or above the first one."""
    lines = text.splitlines(keepends=True)
    found = key_lines(text)
    for depth in range(len(path) - 1, 0, -1):
        at = found.get(path[:depth])
        header = rf"\s*\[\s*{re.escape('.'.join(path[:depth]))}\s*\]"
        if at is not None and re.match(header, lines[at - 1]):
            if not lines[at - 1].endswith("\n"):
                lines[at - 1] += newline
            lines.insert(at, f"{'.'.join(path[depth:])} = {value}{newline}")
            return "".join(lines)
    if len(path) > 1 and path[0] not in table:
        return None
    headers = [at for at in found.values() if re.match(r"\s*\[", lines[at - 1])]
    place = min(headers, default=len(lines) + 1) - 1
    while place and (not lines[place - 1].strip() or lines[place - 1].lstrip().startswith("#")):
        place -= 1
    if place and not lines[place - 1].endswith("\n"):
        lines[place - 1] += newline
    lines.insert(place, f"{'.'.join(path)} = {value}{newline}")
    return "".join(lines)


def _appended(
    text: str, table: Mapping[str, Any], path: tuple[str, ...], value: str, newline: str
) -> str | None:
    """As a table of its own at the end."""
    if len(path) == 1:
        return None
    end = "" if text.endswith("\n") else newline
    return f"{text}{end}{newline}[{'.'.join(path[:-1])}]{newline}{path[-1]} = {value}{newline}"
