"""Reading what common programs say in German, French, Chinese and Japanese as if in English."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from torchsmith.facts.compiled import load_table

TABLE = Path(__file__).parent / "languages.toml"
_GAP = re.compile(r"\{(\d)\}")


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one program says: its words in English, and the others for them."""

    name: str
    source: str
    messages: dict[str, list[str]]


class Programs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    program: list[Program]


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
    table = msgspec.convert(load_table(TABLE), Programs)
    return tuple(
        _translation(english, foreign)
        for program in table.program
        for english, others in program.messages.items()
        for foreign in others
    )


def in_english(chunk: bytes) -> bytes:
    """The same lines, with the messages that are known in English."""
    plain = chunk.isascii()
    said = chunk
    for item in translations():
        if (plain and not item.literal.isascii()) or item.literal not in chunk:
            continue
        if item.expression is None:
            chunk = chunk.replace(item.literal, item.english)
        else:
            chunk = item.expression.sub(item.english, chunk)
    if chunk is said:
        return chunk
    # Chinese has a colon of its own, and French a space before it.
    return _COLON.sub(b": ", chunk)
