"""Going through a log once, whatever its length, and keeping the few lines that matter.

A log is looked at as bytes, a mebibyte at a time: only lines that contain the text of some
pattern are decoded and matched. Colours are taken out; a line number is the one an editor shows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from torchsmith.diagnose.knowledge import Knowledge, Pattern

_CHUNK = 1 << 20
# A line without an end, such as a progress bar without returns, is cut here.
_LONGEST = 4 << 20
# More of one line is not looked at: no message is longer, and commands are.
_AROUND = 4000
_HITS = 3
_SUSPECTS = 300
_TAIL = 40
# So many kinds of lines are remembered; a log with more is looked at line by line from there on.
_FORMS = 200_000
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\n]*\x07|[()][0-9A-Z])")
# Lines with one of these are kept for logs that nothing known explains.
_SUSPICIOUS = (
    *(b"error:", b"Error:", b"error :", b"ERROR", b"CMake Error", b"fatal", b"FAILED", b"Killed"),
    *(b"undefined reference", b"multiple definition", b"cannot find", b"No space left"),
    *(b"Exception", b"Segmentation fault", b"Traceback", b"E: ", b"curl: ("),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log and its number, from 1."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that a pattern matched, and what its groups caught."""

    line: Line
    groups: Mapping[str, str]


@dataclass(slots=True)
class Seen:
    """What a log holds of what is looked for."""

    hits: dict[str, list[Hit]] = field(default_factory=dict)
    suspects: list[Line] = field(default_factory=list)
    tail: tuple[Line, ...] = ()
    lines: int = 0


def scan_file(file: BinaryIO, knowledge: Knowledge) -> Seen:
    """Look through a stream of bytes."""
    return _scan(_chunks(iter(lambda: file.read(_CHUNK), b"")), knowledge)


def scan_lines(lines: Iterable[str], knowledge: Knowledge) -> Seen:
    """Look through lines, with or without their ends."""
    pieces = (line.rstrip("\r\n").encode(errors="replace") + b"\n" for line in lines)
    return _scan(_chunks(pieces), knowledge)


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, about a mebibyte of them at a time."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size < _CHUNK:
            continue
        block = b"".join(waiting)
        end = block.rfind(b"\n") + 1
        if not end and size < _LONGEST:
            waiting = [block]
            continue
        end = end or block.rfind(b" ") + 1 or size
        yield block[:end]
        waiting, size = [block[end:]], size - end
    if size:
        yield b"".join(waiting)


def _scan(chunks: Iterable[bytes], knowledge: Knowledge) -> Seen:
    seen = Seen()
    tail: deque[Line] = deque(maxlen=_TAIL)
    open_patterns = list(knowledge.patterns)
    forms: set[int] = set()
    ended = True
    for raw in chunks:
        chunk = raw.replace(b"\r\n", b"\n")
        if b"\x1b" in chunk:
            chunk = _ANSI.sub(b"", chunk)
        fresh = _without_repetitions(chunk, forms)
        for pattern in open_patterns:
            if pattern.literal in fresh:
                _match(pattern, fresh, seen)
        open_patterns = [
            item for item in open_patterns if len(seen.hits.get(item.text, ())) < _HITS
        ]
        if len(seen.suspects) < _SUSPECTS and any(word in fresh for word in _SUSPICIOUS):
            _suspect(chunk, seen)
        last = chunk.rstrip(b"\n").rsplit(b"\n", _TAIL)[-_TAIL:]
        ends = seen.lines + chunk.rstrip(b"\n").count(b"\n") + 1
        tail.extend(
            Line(ends - len(last) + 1 + index, _text(item)) for index, item in enumerate(last)
        )
        seen.lines += chunk.count(b"\n")
        ended = chunk.endswith(b"\n")
    # A last line without an end is one, too.
    seen.lines += not ended
    seen.tail = tuple(tail)
    return seen


def _without_repetitions(chunk: bytes, forms: set[int]) -> bytes:
    """The same lines, empty where all but the numbers in one was there before.

    Gigabytes are written by loops; a message that comes again says nothing new.
    """
    lines = chunk.split(b"\n")
    for index, form in enumerate(chunk.translate(None, b"0123456789").split(b"\n")):
        key = hash(form)
        if key in forms:
            lines[index] = b""
        elif len(forms) < _FORMS:
            forms.add(key)
    return b"\n".join(lines)


def _match(pattern: Pattern, chunk: bytes, seen: Seen) -> None:
    """Try an expression on the lines that contain its text."""
    at = chunk.find(pattern.literal)
    while at != -1 and len(seen.hits.get(pattern.text, ())) < _HITS:
        start = max(chunk.rfind(b"\n", 0, at), chunk.rfind(b"\r", 0, at), at - _AROUND) + 1
        ends = [chunk.find(mark, at) for mark in (b"\n", b"\r")]
        end = min([item for item in ends if item != -1] + [len(chunk), at + _AROUND])
        text = _text(chunk[start:end])
        if found := pattern.expression.search(text):
            groups = {name: value for name, value in found.groupdict().items() if value}
            number = seen.lines + chunk.count(b"\n", 0, start) + 1
            seen.hits.setdefault(pattern.text, []).append(Hit(Line(number, text), groups))
        at = chunk.find(pattern.literal, max(end, at + 1))


def _suspect(chunk: bytes, seen: Seen) -> None:
    """Keep the lines that sound like a failure, with what stands around each."""
    lines = chunk.split(b"\n")
    kept: set[int] = set()
    for index, line in enumerate(lines):
        if len(line) < _AROUND and any(word in line for word in _SUSPICIOUS):
            kept.update(range(max(0, index - 2), min(len(lines), index + 4)))
            if len(kept) + len(seen.suspects) >= _SUSPECTS:
                break
    seen.suspects += [Line(seen.lines + index + 1, _text(lines[index])) for index in sorted(kept)]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").replace("\x00", "")
