"""What waits for what in a ninja file."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass

# A dollar at the end of a line goes on in the next one, unless another escapes it.
_CONTINUED = re.compile(r"(?<!\$)((?:\$\$)*)\$\r?\n[ \t]*")
_WORD = re.compile(r"(?:[^\s:|$]+|\$[ :$|]|\$\{[\w.-]+\}|\$[\w-]+)+|\|\||\|@|\||:")
_DOLLAR = re.compile(r"\$(?:([ :$|])|\{([\w.-]+)\}|([\w-]+))")
_BINDING = re.compile(r"([\w.-]+)[ \t]*=[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class Edge:
    """One `build` statement; names are without escapes, relative to the build folder.

    `also` is what it makes that no command line names; `waits_for` what has to be there before
    it runs besides its inputs, whether or not it reads it.
    """

    rule: str
    outputs: tuple[str, ...]
    also: tuple[str, ...]
    inputs: tuple[str, ...]
    waits_for: tuple[str, ...]


def read_graph(text: str) -> list[Edge]:
    """The statements of a ninja file; not those of files it includes, CMake has none there."""
    found: list[Edge] = []
    variables: dict[str, str] = {}
    for line in _CONTINUED.sub(r"\1", text).split("\n"):
        if line.startswith("build "):
            edge = _edge(line.removeprefix("build "), variables)
            if edge is not None:
                found.append(edge)
        elif binding := _BINDING.match(line):
            variables[binding[1]] = _expanded(binding[2].rstrip("\r"), variables)
    return found


def _edge(line: str, variables: Mapping[str, str]) -> Edge | None:
    made: dict[str, list[str]] = {"": [], "|": []}
    read: dict[str, list[str]] = {"": [], "|": [], "||": [], "|@": []}
    names, kind, rule = made, "", ""
    for word in _WORD.findall(line):
        if word == ":":
            names, kind = read, ""
        elif word in names:
            kind = word
        elif names is read and not rule:
            rule = word
        else:
            names[kind].append(os.path.normpath(_expanded(word, variables)))
    if not rule or not made[""]:
        # Cut short.
        return None
    # What only checks the result (|@) is not waited for.
    waits_for = (*read["|"], *read["||"])
    return Edge(rule, tuple(made[""]), tuple(made["|"]), tuple(read[""]), waits_for)


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    if "$" not in text:
        return text
    return _DOLLAR.sub(lambda found: found[1] or variables.get(found[2] or found[3], ""), text)
