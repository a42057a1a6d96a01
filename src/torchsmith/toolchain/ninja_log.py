"""What ninja knows of a build: how long commands took, what they read, what waits for what.

Both logs are only ever added to, so one that is being written, or was cut short by a kill, is
good up to its last whole record. See ninja's src/build_log.cc and src/deps_log.cc.
"""

from __future__ import annotations

import os.path
import re
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

_DEPS = b"# ninjadeps\n" + (4).to_bytes(4, sys.byteorder)
_IS_LIST = 1 << 31


@dataclass(frozen=True, slots=True)
class Line:
    """How long the command behind an output ran, and when: seconds, and seconds since 1970.

    `at` is when the command began. Where ninja looks whether an output changed (`restat`), it is
    when that was last written: later, but never before the command began.
    """

    seconds: float
    at: float


def read_log(folder: Path) -> dict[str, Line]:
    """The last line about each output of a build folder; none where there is no log."""
    try:
        text = (folder / ".ninja_log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, Line] = {}
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) != 5:
            continue
        try:
            began, ended, at = map(int, fields[:3])
        except ValueError:
            continue
        found[os.path.normpath(fields[3])] = Line((ended - began) / 1e3, at / 1e9)
    return found


def read_dependencies(folder: Path, outputs: Container[str]) -> dict[str, list[str]]:
    """The files that were read to make each of `outputs`, as the compiler listed them."""
    try:
        data = memoryview((folder / ".ninja_deps").read_bytes())
    except OSError:
        return {}
    if data[: len(_DEPS)] != _DEPS:
        return {}
    paths: list[str] = []
    lists: dict[int, memoryview] = {}
    place = len(_DEPS)
    while place + 4 <= len(data):
        head = int.from_bytes(data[place : place + 4], sys.byteorder)
        size = head & ~_IS_LIST
        record = data[place + 4 : place + 4 + size]
        place += 4 + size
        if len(record) < size or size < 4 or size % 4:
            break
        if head & _IS_LIST:
            # The number of the output, its date in two words, the numbers of what was read.
            numbers = record.cast("I")
            lists[numbers[0]] = numbers[3:]
        else:
            # A path, filled up with zeros to whole words, and a word to check its number by.
            paths.append(bytes(record[:-4]).rstrip(b"\0").decode(errors="replace"))
    known = len(paths)
    return {
        paths[output]: [paths[number] for number in numbers if number < known]
        for output, numbers in lists.items()
        if output < known and paths[output] in outputs
    }


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
