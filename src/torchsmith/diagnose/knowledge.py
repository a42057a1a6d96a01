"""What is known of failures, and of messages in other languages: read once, when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from torchsmith.diagnose.models import Failure, FailuresFile
from torchsmith.facts.files import load_table

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Pattern:
    """An expression for one line, and the text that every such line contains."""

    text: str
    literal: bytes

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled when a line first contains the text."""
        return re.compile(self.text)


class Knowledge:
    """Every known failure, by its id and by its area."""

    def __init__(self) -> None:
        self.areas: dict[str, tuple[Failure, ...]] = {
            path.stem: tuple(msgspec.convert(load_table(path), FailuresFile).failure)
            for path in sorted(DATA.glob("*.toml"))
        }
        self.failures = {item.id: item for items in self.areas.values() for item in items}
        self.area_of = {item.id: area for area, items in self.areas.items() for item in items}
        self.kinds = tuple(item for item in self.failures.values() if item.standing == "kind")

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every expression to look for in a whole log, each once."""
        texts = dict.fromkeys(
            text
            for item in self.failures.values()
            if item.standing != "kind"
            for text in texts_of(item)
        )
        return tuple(Pattern(text, required_literal(text).encode()) for text in texts)

    @cached_property
    def overcoming(self) -> frozenset[str]:
        """The expressions that say that a failure was overcome."""
        return frozenset(text for item in self.failures.values() for text in item.overcome_by)


def texts_of(failure: Failure) -> Iterator[str]:
    """Every expression a failure asks for."""
    yield from failure.any_of
    yield from failure.all_of
    yield from failure.none_of
    yield from failure.overcome_by
    yield from (cause.line for cause in failure.cause if cause.line)


@lru_cache(maxsize=1)
def shipped() -> Knowledge:
    """What this torchsmith was shipped with."""
    return Knowledge()


# Looking for a hundred plain texts in a log of a gigabyte takes seconds; trying a hundred
# expressions on each of its lines takes an hour.
_SPECIAL = frozenset(".^$*+?{}[]\\|()")
# `\.` is a dot; `\d` is not text.
_CLASSES = frozenset("dDwWsSbBAZ0123456789")


def required_literal(pattern: str) -> str:
    """The longest such text; empty where the expression has alternatives at its top."""
    runs = [""]
    at, depth = 0, 0
    while at < len(pattern):
        char = pattern[at]
        width, text = 1, ""
        if char == "\\":
            width = 2
            text = "" if pattern[at + 1] in _CLASSES else pattern[at + 1]
        elif char == "[":
            width = _class_end(pattern, at) - at
        elif char == "{":
            width = pattern.index("}", at) + 1 - at
        elif char not in _SPECIAL:
            text = char
        if char == "|" and not depth:
            return ""
        depth += (char == "(") - (char == ")")
        following = pattern[at + width] if at + width < len(pattern) else ""
        if depth or not text or following in ("?", "*", "{"):
            runs.append("")
        else:
            runs[-1] += text
            if following == "+":
                runs.append("")
        at += width
    return max(runs, key=len)


def _class_end(pattern: str, start: int) -> int:
    """Where a ``[…]`` ends; a bracket right after the opening is one of its members."""
    at = start + 1
    if pattern[at] == "^":
        at += 1
    if pattern[at] == "]":
        at += 1
    while pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


# What common programs say in German, French, Chinese and Japanese, read as if in English.
_LANGUAGES = Path(__file__).parent / "languages.toml"
_GAP = re.compile(r"\{(\d)\}")


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one program says: its words in English, and the others for them."""

    name: str
    source: str
    messages: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Translation:
    """A message; `literal` is the longest text it always contains."""

    literal: bytes
    expression: re.Pattern[bytes] | None
    english: bytes


_COLON = re.compile("\uff1a ?|(?:\u00a0|\u202f): | : (?=No such file or dir)".encode())


def _translation(english: str, foreign: str) -> Translation:
    pieces = _GAP.split(foreign)
    literal = max(pieces[::2], key=lambda piece: len(piece.encode())).encode()
    if len(pieces) == 1:
        return Translation(literal, None, english.encode())
    # Names in the message: never over a line's end.
    text = "".join(
        f"(?P<g{piece}>[^\\r\\n]{{1,300}}?)" if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
    if foreign.endswith("}"):
        text += r"(?=[\s:]|$)"
    return Translation(
        literal, re.compile(text.encode(), re.MULTILINE), _GAP.sub(r"\\g<g\1>", english).encode()
    )


@lru_cache(maxsize=1)
def translations() -> tuple[Translation, ...]:
    """Every message that is known."""
    programs = msgspec.convert(load_table(_LANGUAGES)["program"], list[Program])
    return tuple(
        _translation(english, foreign)
        for program in programs
        for english, others in program.messages.items()
        for foreign in others
    )


def in_english(chunk: bytes) -> bytes:
    """The same lines, with the messages that are known in English."""
    plain = chunk.isascii()
    original = chunk
    for item in translations():
        if (plain and not item.literal.isascii()) or item.literal not in chunk:
            continue
        if item.expression is None:
            chunk = chunk.replace(item.literal, item.english)
        else:
            chunk = item.expression.sub(item.english, chunk)
    if chunk is original:
        return chunk
    # Chinese has a colon of its own, and French a space before it.
    return _COLON.sub(b": ", chunk)
