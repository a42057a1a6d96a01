"""The statements of a build.ninja, and the commands ninja makes of them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

# A dollar before the end of a line goes on in the next one; before anything else it escapes it.
_CONTINUED = re.compile(r"\$\r?\n[ \t]*")
_WORD = re.compile(r"(?:\$[ :$|]|[^\s:|$]|\$\{?[\w.-]+\}?)+|\|\||\|@|\||:")
_ESCAPE = re.compile(r"\$([ :$|])")


@dataclass(frozen=True, slots=True)
class Statement:
    """One `build` statement: the lines it takes, and what it reads and makes.

    Names are as ninja writes them, escapes included, so that they can be written out again.
    """

    first: int
    last: int
    outputs: tuple[str, ...]
    rule: str
    inputs: tuple[str, ...]
    implicit: tuple[str, ...]
    order_only: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """What ninja would run to make `output`."""

    directory: str
    command: str
    file: str
    output: str


def plain(name: str) -> str:
    """A name without ninja's escapes."""
    return _ESCAPE.sub(r"\1", name)


def escaped(name: str) -> str:
    """A name with ninja's escapes."""
    return re.sub(r"([ :$|])", r"$\1", name)


def read_statements(lines: list[str]) -> list[Statement]:
    """The build statements of a file; those with variables in their names are left out."""
    found: list[Statement] = []
    number = 0
    while number < len(lines):
        if not lines[number].startswith("build "):
            number += 1
            continue
        first = number
        text = lines[number]
        while text.endswith("$") and not text.endswith("$$") and number + 1 < len(lines):
            number += 1
            text = text[:-1] + lines[number].lstrip()
        while number + 1 < len(lines) and lines[number + 1].startswith((" ", "\t")):
            number += 1
        statement = _statement(first, number, text)
        if statement is not None:
            found.append(statement)
        number += 1
    return found


def _statement(first: int, last: int, text: str) -> Statement | None:
    words = _WORD.findall(text.removeprefix("build "))
    if ":" not in words:
        return None
    colon = words.index(":")
    outputs, rest = words[:colon], words[colon + 1 :]
    if not rest or "|" in outputs or any("$" in _ESCAPE.sub("", word) for word in words):
        return None
    kinds: dict[str, list[str]] = {"": [], "|": [], "||": [], "|@": []}
    kind = ""
    for word in rest[1:]:
        if word in kinds:
            kind = word
        else:
            kinds[kind].append(word)
    if kinds["|@"]:
        return None
    return Statement(
        first,
        last,
        tuple(outputs),
        rest[0],
        tuple(kinds[""]),
        tuple(kinds["|"]),
        tuple(kinds["||"]),
    )


def read_commands(ninja: str, folder: Path) -> dict[str, Command]:
    """Every command of a build folder by its first output, as ninja itself expands them."""
    output = subprocess.run(
        [ninja, "-t", "compdb"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    return {item["output"]: Command(**item) for item in json.loads(output)}
