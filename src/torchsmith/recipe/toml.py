"""TOML: values as it writes them, keys and values as messages show them, and the lines of keys."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress


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


KeyPath = tuple[str | int, ...]

_KEY = re.compile(r'[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|\'([^\'\n]*)\'|([A-Za-z0-9_-]+))[ \t]*')


def _unescaped(quoted: str) -> str:
    return next(iter(tomllib.loads(f'"{quoted}" = 0'))) if "\\" in quoted else quoted


class _Scanner:
    """Finds the lines of keys, which `tomllib` does not tell.

    It reads only the skeleton of a text that `tomllib` accepted: headers, keys, and enough of
    values to skip them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.found: dict[KeyPath, int] = {}
        self.counts: dict[KeyPath, int] = {}

    def advance(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def dotted_key(self) -> list[str]:
        parts: list[str] = []
        while match := _KEY.match(self.text, self.at):
            quoted, literal, bare = match.groups()
            parts.append(_unescaped(quoted) if quoted else quoted or literal or bare or "")
            self.advance(match.end())
            if not self.text.startswith(".", self.at):
                break
            self.advance(self.at + 1)
        return parts

    def located(self, path: KeyPath) -> KeyPath:
        """Insert the index of the newest element below every array of tables."""
        result: KeyPath = ()
        for part in path:
            result = (*result, part)
            if result in self.counts:
                result = (*result, self.counts[result])
        return result

    def string(self) -> None:
        quote = self.text[self.at]
        if self.text.startswith(quote * 3, self.at):
            end = self.at + 3
            while not self.text.startswith(quote * 3, end):
                end += 2 if quote == '"' and self.text[end] == "\\" else 1
            end += 3
            while self.text.startswith(quote, end):
                end += 1
        else:
            end = self.at + 1
            while self.text[end] != quote:
                end += 2 if quote == '"' and self.text[end] == "\\" else 1
            end += 1
        self.advance(end)

    def blank(self) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#":
                end = self.text.find("\n", self.at)
                self.advance(len(self.text) if end < 0 else end)
            elif char in " \t\r\n":
                self.advance(self.at + 1)
            else:
                return

    def value(self, path: KeyPath) -> None:
        self.blank()
        char = self.text[self.at]
        if char in "\"'":
            self.string()
        elif char == "[":
            self.advance(self.at + 1)
            index = 0
            self.blank()
            while self.text[self.at] != "]":
                self.found.setdefault((*path, index), self.line)
                self.value((*path, index))
                index += 1
                self.blank()
                if self.text[self.at] == ",":
                    self.advance(self.at + 1)
                    self.blank()
            self.advance(self.at + 1)
        elif char == "{":
            self.advance(self.at + 1)
            self.blank()
            while self.text[self.at] != "}":
                self.pair(path)
                self.blank()
                if self.text[self.at] == ",":
                    self.advance(self.at + 1)
                    self.blank()
            self.advance(self.at + 1)
        else:
            end = self.at
            while end < len(self.text) and self.text[end] not in ",]}#\n":
                end += 1
            self.advance(end)

    def pair(self, table: KeyPath) -> None:
        line = self.line
        path = table
        for part in self.dotted_key():
            path = (*path, part)
            self.found.setdefault(path, line)
        self.advance(self.at + 1)  # the equals sign
        self.value(path)

    def document(self) -> None:
        table: KeyPath = ()
        self.blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                line = self.line
                array = self.text.startswith("[[", self.at)
                self.advance(self.at + (2 if array else 1))
                header = tuple(self.dotted_key())
                self.advance(self.at + (2 if array else 1))
                if array:
                    plain = (*self.located(header[:-1]), header[-1])
                    self.counts[plain] = self.counts.get(plain, -1) + 1
                    self.found.setdefault(plain, line)
                table = self.located(header)
                for length in range(1, len(table) + 1):
                    self.found.setdefault(table[:length], line)
            else:
                self.pair(table)
            self.blank()


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of every key and array element of a valid TOML text."""
    scanner = _Scanner(text)
    # A construct this skeleton reader does not know: fewer line numbers, nothing worse.
    with suppress(IndexError, RecursionError, ValueError):
        scanner.document()
    return scanner.found


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a path, or of the nearest enclosing table that is written down."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None
