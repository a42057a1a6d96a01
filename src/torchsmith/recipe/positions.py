"""Where in a TOML text each key stands, for error messages.

`tomllib` gives values without positions. This reads only the skeleton of a document that
`tomllib` has already accepted: headers, keys, and enough of values to skip them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress

Path = tuple[str | int, ...]

_KEY = re.compile(r'[ \t]*(?:"((?:[^"\\\n]|\\.)*)"|\'([^\'\n]*)\'|([A-Za-z0-9_-]+))[ \t]*')


def _unescaped(quoted: str) -> str:
    return next(iter(tomllib.loads(f'"{quoted}" = 0'))) if "\\" in quoted else quoted


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.found: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}

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

    def located(self, path: Path) -> Path:
        """Insert the index of the newest element below every array of tables."""
        result: Path = ()
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

    def value(self, path: Path) -> None:
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

    def pair(self, table: Path) -> None:
        line = self.line
        path = table
        for part in self.dotted_key():
            path = (*path, part)
            self.found.setdefault(path, line)
        self.advance(self.at + 1)  # the equals sign
        self.value(path)

    def document(self) -> None:
        table: Path = ()
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


def key_lines(text: str) -> dict[Path, int]:
    """Return the line of every key and array element of a valid TOML text."""
    scanner = _Scanner(text)
    # A construct this skeleton reader does not know: fewer line numbers, nothing worse.
    with suppress(IndexError, RecursionError, ValueError):
        scanner.document()
    return scanner.found


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """Return the line of a path, or of the nearest enclosing table that is written down."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return None
