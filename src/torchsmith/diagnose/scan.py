"""Going through a log once, whatever its length, and keeping the few lines that matter.

A log is looked at as bytes, a mebibyte at a time: only lines that contain the text of some
pattern are decoded and matched. Colours and links are taken out, UTF-16 and gzip are undone, known
messages in other languages are read as English; a line number is the one an editor shows.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO, cast

from torchsmith.diagnose.knowledge import Knowledge, Pattern, in_english, shipped
from torchsmith.redact import without_keys

_CHUNK = 1 << 20
# A line without an end, such as a progress bar without returns, is cut here.
_LONGEST = 4 << 20
# More of one line is not looked at: no message is longer, and commands are.
_AROUND = 4000
_HITS = 3
_TRIES = 50
_SUSPECTS = 300
_TAIL = 40
# So many kinds of lines are remembered; a log with more is looked at line by line from there on.
_FORMS = 200_000
# Colours, links (OSC 8) and what else a terminal is told; also as editors, JSON and web pages
# show them: `^[[31m`, `\\u001b[31m`, `[31m`.
_CONTROLS = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"
    rb"|\x1b[()*+./-][0-9A-Za-z]|\x1b[ -/]?[0-~]"
    rb"|\xc2\x9b[0-?]*[ -/]*[@-~]"
    rb"|(?:\^\[|\\x1b|\\u001b|\\033|\\e|#033)\[[0-9;?]{0,20}[A-Za-z]"
    rb"|\[(?:[0-9]{1,3}(?:;[0-9]{1,3}){1,5}|[0-9]|[34][0-9])m(?=\S|$)"
)
# What is done only to see whether it works (IPv6 before IPv4, one kernel of several that Inductor
# measures), what NCCL and torchrun tell of their settings, the head of a table, what TensorFlow
# says when something imports it, and a warning that says it is no more than that, is no failure.
_IDLE = re.compile(
    r"This is not an error|failed with (?:initial frozen solve|repodata from current_repodata)|"
    r"[Uu]nable to register cu\w+ factory|Could not initialize NNPACK|"
    r"^INFO \d\d-\d\d |CMake (?:Deprecation )?Warning|Turn this warning off|"
    r"\bls(?:mod|pci): (?:command )?not found|"
    r"(?:could not be|cannot be) found[.,]\s+(?:Defaulting to|now searching for) |"
    r"socket\.cpp:\d+\] \[c10d\] .*errno: 97\b|^\s*rdzv_configs\s*: \{|"
    r"\balgbw\s+busbw\s|_inductor/select_algorithm\.py:\d+\] .*out of resource|"
    r"NCCL INFO|\b[IW] (?:external/|tensorflow/)"
    r"|(?:^|[\s|])-- (?:Could NOT|Performing|Looking for|Check|Detecting|Found|Using|Not )"
    r"|(?:^|/)(?:src|Check\w+|cmTC_\w+)\.c(?:xx|u)?:\d+:"
)
# Lines with one of these are kept for logs that nothing known explains.
_SUSPICIOUS = (
    *(b"error:", b"Error:", b"error :", b"ERROR", b"CMake Error", b"fatal", b"FAILED", b"Killed"),
    *(b"undefined reference", b"multiple definition", b"cannot find", b"No space left"),
    *(b"Exception", b"Segmentation fault", b"Traceback", b"curl: (", b"Illegal instruction"),
    *(b"Aborted", b"core dumped", b"panic: ", b"FATAL", b"denied: ", b"Fehler: "),
)
# How apt says it; a key that ends with E, as NAME: does, is none.
_APT = re.compile(rb"(?<![A-Za-z_])E: ")
# A line with one of these is kept, even if it looks like the command of a compiler.
_SAYING = re.compile(
    rb"rror:|Error|ERROR|atal|FATAL|annot |not found|No such|illed|undefined|ailed|arning"
)
# How a log ends that ends well.
_WELL = re.compile(
    r"Successfully (?:installed|built|tagged|uninstalled) \S|Successfully built [0-9a-f]{12}|"
    r"Build files have been written to|Build succeeded|BUILD SUCCE(?:SSFUL|EDED)|"
    r"100% tests passed|Built target \S|Finished processing dependencies for|"
    r"exited with code 0\b|exit(?:ed with)? (?:status|code):? 0\b|"
    r"naming to \S+ done|writing image sha256:\S+ done|Submodule path '\S+': checked out|"
    r"^removing build/bdist\.|^adding '\S+\.dist-info/RECORD'|^Installed \S+\.egg$|"
    r"Job \S+ (?:has )?completed successfully|ninja: no work to do"
)
# A program reports that one it started has failed: no line before it is a good end.
_BAD_END = re.compile(
    r"^g?make(?:\[\d+\])?: \*\*\* |recipe for target .* failed|^Failed to |"
    r"returned (?:a )?non-zero|exited with code [1-9]|exit(?:ed with)? (?:status|code):? [1-9]"
)
# Not all of these are failures, but a log with none of them reports no failure.
_TROUBLE = re.compile(
    r"(?i)\b(?:(?<!-Wno-)errors?|fail(?:ed|ure)?|fatal|exception|traceback|killed|abort(?:ed)?|denied|refused|"
    r"core dumped|cannot|could not|unable to|panic|undefined|timed? ?out|not found|no such|"
    r"\w+error|can.t find|no rule to make|exceeded|exit(?:ed with)? code:? [1-9]\d*|out of memory|"
    r"mismatch|conflicts for|is (?:nan|inf)|unrecogni[sz]ed|not recogni[sz]ed|duplicate symbol|"
    r"\w+Failed|\w*Interrupt|StopIteration|unexpectedly|terminated|not able to|"
    r"restarting kernel|not a directory|truncated to fit|got stuck)\b"
)
# A library warns, and goes on: that is no failure unless the warning itself names one, and
# more than the name of a setting (TORCH_NCCL_ASYNC_ERROR_HANDLING).
_WARNED = re.compile(
    r"\b[A-Z]\w+Warning: |\[W\d{3,4} \d\d:\d\d:\d\d[.\d]* |\[W \w+\.\w+:\d+\] | - WARNING - "
)
_OF_A_FAILURE = re.compile(
    r"(?i)error(?!_handling)|fail|exception|killed|denied|incompatib|too old|not compiled"
)
# What stands in a traceback before the error itself.
_LEADING = re.compile(r"^\s*Traceback \(most recent call last\):$|^\s+(?:File \"|raise )")
_CMAKE_WARNING = re.compile(r"CMake (?:Deprecation )?Warning")
# A program that asks git for the version of a tree that has none goes on without.
_NO_GIT_FOLDER = re.compile(r"^fatal: [Nn]ot a git repository \(or any")
# Words of a language that we cannot read: they may report a failure.
_UNREAD = re.compile("[\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{4}")
_MAGIC = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
_PACKED = ((b"PK\x03\x04", "a zip archive"), (b"\x28\xb5\x2f\xfd", "compressed with zstd"))


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
    """What a log holds of what is looked for.

    `last` has the number of the last line of each pattern that was found. `well` is the line that
    says that all went well, if nothing after it says otherwise. `original` has the lines that are
    not in English, as they were.
    """

    hits: dict[str, list[Hit]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    suspects: list[Line] = field(default_factory=list)
    tail: tuple[Line, ...] = ()
    lines: int = 0
    well: Line | None = None
    original: dict[int, str] = field(default_factory=dict)

    def troubled_besides(self, patterns: Iterable[str]) -> bool:
        """Whether anything in the log sounds like a failure, besides what these patterns match.

        Where they match something, the lines of a traceback that lead to its error do not count.
        """
        known = [re.compile(text) for text in patterns]
        if known:
            known.append(_LEADING)
        left = [line for line in self.suspects if not known or _sounds_bad(line.text)]
        left = [line for line in left if not any(item.search(line.text) for item in known)]
        return bool(left) or any(
            _UNREAD.search(line.text) or (_TROUBLE.search(line.text) and not _is_mild(line.text))
            for line in _without_warnings(self.tail)
            if not any(item.search(line.text) for item in known)
        )


def _without_warnings(lines: Iterable[Line]) -> Iterator[Line]:
    """The lines, without the indented ones that belong to a warning of CMake."""
    warned = False
    for line in lines:
        warned = bool(_CMAKE_WARNING.search(line.text)) or (
            warned and line.text.startswith("  ") and not line.text.isspace()
        )
        if not warned:
            yield line


def _is_mild(text: str) -> bool:
    """Whether a line only sounds like a failure."""
    warned = _WARNED.search(text) is not None and _OF_A_FAILURE.search(text) is None
    return warned or only_tried(text)


def only_tried(text: str) -> bool:
    """Whether a line tells of something that is done only to see whether it works."""
    return bool(_IDLE.search(text))


def scan_file(file: BinaryIO) -> Seen:
    """Look through a stream of bytes, compressed or not, in UTF-8 or UTF-16."""
    begin = file.read(_CHUNK)
    for magic, what in _PACKED:
        if begin.startswith(magic):
            raise ValueError(f"it is {what}; unpack it first")
    whole = chain([begin], iter(lambda: file.read(_CHUNK), b""))
    for magic, unpack in _MAGIC:
        if begin.startswith(magic):
            packed = cast("BinaryIO", unpack(cast("BinaryIO", io.BufferedReader(_Chained(whole)))))
            return scan_file(_Whole(packed))
    return _scan(_chunks(_as_utf8(whole, begin)))


class _Chained(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Whole(io.BytesIO):
    """What can be unpacked of a file that may be cut off: a log is, if its download was."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._packed.read(size or -1)
        except (EOFError, OSError, zlib.error, lzma.LZMAError):
            return b""


def _encoding(begin: bytes) -> str:
    """The encoding a log seems to have, by its mark or by where its NULs are."""
    for mark, name in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
        (codecs.BOM_UTF8, "utf-8-sig"),
    ):
        if begin.startswith(mark):
            return name
    sample = begin[:4096]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if odd * 5 > len(sample) and even * 10 < odd:
        return "utf-16-le"
    if even * 5 > len(sample) and odd * 10 < even:
        return "utf-16-be"
    return ""


def _as_utf8(pieces: Iterable[bytes], begin: bytes) -> Iterator[bytes]:
    name = _encoding(begin)
    if not name:
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    for piece in pieces:
        yield decoder.decode(piece).encode(errors="replace")
    yield decoder.decode(b"", True).encode(errors="replace")


def scan_lines(lines: Iterable[str]) -> Seen:
    """Look through lines, with or without their ends."""
    pieces = (line.rstrip("\r\n").encode(errors="replace") + b"\n" for line in lines)
    return _scan(_chunks(pieces))


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, about a mebibyte of them at a time."""
    pieces_so_far: list[bytes] = []
    size = 0
    for piece in pieces:
        pieces_so_far.append(piece)
        size += len(piece)
        if size < _CHUNK:
            continue
        block = b"".join(pieces_so_far)
        end = block.rfind(b"\n") + 1
        if not end and size < _LONGEST:
            pieces_so_far = [block]
            continue
        end = end or block.rfind(b" ") + 1 or size
        yield block[:end]
        pieces_so_far, size = [block[end:]], size - end
    if size:
        yield b"".join(pieces_so_far)


def _scan(chunks: Iterable[bytes]) -> Seen:
    knowledge, seen = shipped(), Seen()
    tail: deque[Line] = deque(maxlen=_TAIL)
    open_patterns = list(knowledge.patterns)
    forms: set[int] = set()
    ended = True
    for raw in chunks:
        plain = without_keys(raw.replace(b"\r\n", b"\n").replace(b"\x00", b""))
        if b"\x1b" in plain or b"[" in plain:
            plain = _CONTROLS.sub(b"", plain)
        chunk = in_english(plain)
        if chunk is not plain and chunk != plain:
            _keep_original(plain, chunk, seen)
        fresh = _without_repetitions(chunk, forms)
        for pattern in open_patterns:
            if pattern.literal in fresh:
                _match(pattern, fresh, seen)
        _match_last(knowledge, chunk, seen)
        open_patterns = [
            item for item in open_patterns if len(seen.hits.get(item.text, ())) < _HITS
        ]
        if len(seen.suspects) < _SUSPECTS and _suspicious(fresh):
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
    seen.well = _ended_well(seen.tail)
    return seen


def _keep_original(plain: bytes, chunk: bytes, seen: Seen) -> None:
    """Keep the lines that were put into English as they were."""
    pairs = zip(plain.split(b"\n"), chunk.split(b"\n"), strict=False)
    for index, (before, after) in enumerate(pairs):
        if before != after and len(seen.original) < _SUSPECTS * 4:
            seen.original[seen.lines + index + 1] = _text(before)


def _match_last(knowledge: Knowledge, chunk: bytes, seen: Seen) -> None:
    """Note the last line of every pattern found so far, and of those that say it is overcome."""
    for pattern in knowledge.patterns:
        if pattern.text not in seen.hits and pattern.text not in knowledge.overcoming:
            continue
        at = chunk.rfind(pattern.literal)
        for _ in range(_TRIES):
            if at == -1:
                break
            start, end = _line_around(chunk, at)
            text = _text(chunk[start:end])
            if pattern.expression.search(text) and not _IDLE.search(text):
                seen.last[pattern.text] = seen.lines + chunk.count(b"\n", 0, start) + 1
                break
            at = chunk.rfind(pattern.literal, 0, max(start, 0))


def _line_around(chunk: bytes, at: int) -> tuple[int, int]:
    """Where the line begins and ends that a place is in."""
    least, most = max(at - _AROUND, 0), min(at + _AROUND, len(chunk))
    before = max(chunk.rfind(b"\n", least, at), chunk.rfind(b"\r", least, at))
    after = [chunk.find(mark, at, most) for mark in (b"\n", b"\r")]
    return before + 1 if before != -1 else least, min(
        (end for end in after if end != -1), default=most
    )


def _ended_well(tail: Iterable[Line]) -> Line | None:
    """The last line that says all went well, unless one after it sounds like a failure."""
    well: Line | None = None
    for line in tail:
        if _WELL.search(line.text):
            well = line
        elif well and _sounds_bad(line.text) and not _NO_GIT_FOLDER.search(line.text):
            well = None
    return well


def _sounds_bad(text: str) -> bool:
    bad = _BAD_END.search(text) or _suspicious(text.encode())
    return bool(bad) and not _IDLE.search(text)


def _without_repetitions(chunk: bytes, forms: set[int]) -> bytes:
    """The same lines, empty where all but the numbers in one was there before.

    Gigabytes are written by loops; a message that comes again says nothing new. Nor does the
    command that calls a compiler, of which most of a build's log is made.
    """
    lines = chunk.split(b"\n")
    for index, form in enumerate(chunk.translate(None, b"0123456789").split(b"\n")):
        key = hash(form)
        if key in forms:
            lines[index] = b""
            continue
        if b" -c " in form and b" -o " in form and not _SAYING.search(form):
            lines[index] = b""
        if len(forms) < _FORMS:
            forms.add(key)
    return b"\n".join(lines)


def _match(pattern: Pattern, chunk: bytes, seen: Seen) -> None:
    """Try an expression on the lines that contain its text."""
    at = chunk.find(pattern.literal)
    while at != -1 and len(seen.hits.get(pattern.text, ())) < _HITS:
        start, end = _line_around(chunk, at)
        text = _text(chunk[start:end])
        if (found := pattern.expression.search(text)) and not _IDLE.search(text):
            groups = {name: value for name, value in found.groupdict().items() if value}
            number = seen.lines + chunk.count(b"\n", 0, start) + 1
            seen.hits.setdefault(pattern.text, []).append(Hit(Line(number, text), groups))
        at = chunk.find(pattern.literal, max(end, at + 1))


def _suspicious(text: bytes) -> bool:
    """Whether it holds a word of a failure."""
    return any(word in text for word in _SUSPICIOUS) or (
        b"E: " in text and _APT.search(text) is not None
    )


def _suspect(chunk: bytes, seen: Seen) -> None:
    """Keep the lines that sound like a failure, with what stands around each."""
    lines = chunk.split(b"\n")
    kept: set[int] = set()
    warned = False
    for index, line in enumerate(lines):
        warned = b"CMake Warning" in line or (warned and line[:2] == b"  " and not line.isspace())
        if len(line) < _AROUND and _suspicious(line):
            if warned or _is_mild(_text(line)):
                continue
            kept.update(range(max(0, index - 2), min(len(lines), index + 4)))
            if len(kept) + len(seen.suspects) >= _SUSPECTS:
                break
    seen.suspects += [Line(seen.lines + index + 1, _text(lines[index])) for index in sorted(kept)]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
