"""Taking secrets out of text that is kept or shown: logs, the journal, reports, messages.

A `Redactor` takes out values that are known. `cleaned` knows secrets by their form: by the word
before them (`password=…`) or the command they belong to (`sshpass -p …`), which `secret_places`
has, or by how the service that issues them begins them (`ghp_…`): `secret_names` has those.

The time it takes grows with the length of the text, whatever the text: a rule is tried only where
its key stands, and every expression is bounded or stops where the next key could begin.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator

from torchsmith.secret_names import issued_secrets
from torchsmith.secret_places import LONGEST_KEY_BLOCK, after_words, of_commands, of_keys, of_places

MASK = "***"
_MASK = MASK.encode()
_JWT = re.compile(rb"(?<![\w-])eyJ[\w-]{10,4096}\.[\w-]{10,8192}(?:\.[\w-]{0,8192}){0,3}")
# A line of a key in base64, without the line that says so: mixed, so that no hash is one.
_KEY_LINE = re.compile(
    rb"(?m)^[ \t]*(?=[^\n]{0,80}[A-Z])(?=[^\n]{0,80}[a-z])(?=[^\n]{0,80}[0-9])(?=[^\n]{0,80}[+/])"
    rb"(?P<secret>[A-Za-z0-9+/]{64}(?:[A-Za-z0-9+/]{6,12})?={0,2})[ \t]*\r?$"
)
_KEY_BEGIN = re.compile(rb"-----BEGIN[ A-Z0-9]{0,60}PRIVATE KEY(?: BLOCK)?-----")


def _by_beginning(content: bytes) -> Iterator[tuple[int, int]]:
    yield from issued_secrets(content)
    if b"eyJ" in content:
        yield from (found.span() for found in _JWT.finditer(content))
    yield from (found.span("secret") for found in _KEY_LINE.finditer(content))


def cleaned(content: bytes, before: bytes = b"") -> bytes:
    """The same bytes without what looks like a secret; the line `before` may say what they are."""
    start = len(before)
    found = _secrets(before + content)
    spans = ((max(first, start) - start, end - start) for first, end in found if end > start)
    return _masked(content, spans)


def _last_line(content: bytes) -> bytes:
    """The line that stands before what comes next."""
    last = content.removesuffix(b"\n").rpartition(b"\n")[2]
    return last[-_LONGEST_BEFORE:] + b"\n" if last else b""


def _secrets(content: bytes) -> set[tuple[int, int]]:
    lower = content.lower()
    finders = (after_words, of_commands, of_places, of_keys)
    found = (span for finder in finders for span in finder(content, lower))
    return {*found, *_by_beginning(content)}


def without_keys(content: bytes) -> bytes:
    """The same lines, those of private keys masked: for who looks at each line by itself."""
    if b"PRIVATE KEY" not in content:
        return content
    return _masked(content, of_keys(content, content.lower()), line_by_line=True)


def _masked(
    content: bytes, found: Iterable[tuple[int, int]], *, line_by_line: bool = False
) -> bytes:
    # Two rules may see one secret: the one that sees more of it first.
    spans = sorted(found, key=lambda span: (span[0], -span[1]))
    if not spans:
        return content
    parts: list[bytes] = []
    done = 0
    for start, end in spans:
        if end <= done:
            continue
        if start >= done:
            ends = content.count(b"\n", start, end) if line_by_line else 0
            parts += (content[done:start], _MASK, (b"\n" + _MASK) * ends)
        done = end
    return b"".join([*parts, content[done:]])


def redacted(text: str) -> str:
    """The same text without what looks like a secret."""
    return cleaned(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def redacted_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines as they come, without what looks like a secret; a private key's are left out."""
    in_key = False
    before = b""
    for line in lines:
        if in_key:
            in_key = "-----END" not in line
            continue
        content = line.encode(errors="surrogateescape")
        in_key = open_key_block(content) != -1
        yield cleaned(content, before).decode(errors="surrogateescape")
        before = _last_line(content)


_LONGEST_BEFORE = 200


def open_key_block(content: bytes) -> int:
    """Where a private key begins that has not ended yet; -1 if there is none."""
    at = content.rfind(b"PRIVATE KEY")
    begin = content.rfind(b"-----BEGIN")
    if begin == -1 or at < begin or b"-----END" in content[begin:]:
        return -1
    found = _KEY_BEGIN.match(content, begin)
    return begin if found is not None and len(content) - begin < LONGEST_KEY_BLOCK else -1


_LONGEST_LINE = 1 << 16


# X_TOKEN=1 switches something: no 1 would be left in a log.
_NO_SECRET = re.compile(r".{0,2}|true|false|yes|none|null", re.IGNORECASE)


def _disguises(value: str) -> Iterator[str]:
    """A value in the forms programs print it in: plain, in a URL, in JSON, in a header."""
    yield value
    # A key with several lines is also printed one line at a time.
    yield from (line for line in value.splitlines() if len(line) >= 8)
    yield urllib.parse.quote(value, safe="")
    yield urllib.parse.quote(value)
    yield urllib.parse.quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield value.replace("'", "\\'")
    yield value.replace("'", "'\"'\"'")
    yield html.escape(value)
    if len(value) >= 4:
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(value.encode(errors="surrogateescape")).decode()
    if len(value) >= 8:
        # Behind `user:` it begins one or two bytes later: what depends on neighbours is left off.
        for before in range(3):
            content = b"\0" * before + value.encode(errors="surrogateescape")
            first, last = (before * 8 + 5) // 6, len(content) * 8 // 6
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                yield encode(content).decode()[first:last]


class Redactor:
    """Takes secret values out of text, wherever in it they stand."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {
            form
            for value in values
            if not _NO_SECRET.fullmatch(value.strip())
            for meant in {value, value.strip()}
            for form in _disguises(meant)
        }
        # Longest first: a secret that contains another must not leave its own rest behind.
        self._forms = sorted(
            (form.encode(errors="surrogateescape") for form in forms), key=len, reverse=True
        )
        self.longest = len(self._forms[0]) if self._forms else 0
        self.several_lines = any(b"\n" in form or b"\r" in form for form in self._forms)

    def clean(self, content: bytes, before: bytes = b"") -> bytes:
        """The same bytes without any secret; `before` is the line they follow."""
        for form in self._forms:
            content = content.replace(form, _MASK)
        return cleaned(content, before)

    def uncut(self, content: bytes, end: int) -> int:
        """The last place not after `end` where no secret is cut in two."""
        moved = True
        while moved:
            moved = False
            for form in self._forms:
                start = content.find(form, max(end - len(form) + 1, 0), end + len(form) - 1)
                if start != -1 and start < end:
                    end, moved = start, True
        return end

    def text(self, content: str) -> str:
        """The same text without any secret."""
        return self.clean(content.encode(errors="surrogateescape")).decode(errors="replace")


class LineReader:
    """Cuts a stream into clean lines; a secret split over two reads is found all the same."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""
        self._before = b""

    def feed(self, chunk: bytes) -> bytes:
        """Take what was read, return what may be kept: whole lines."""
        pending = self._rest + chunk
        # What may be the beginning of a secret that has not come whole stays back.
        whole = max(len(pending) - self._redactor.longest, 0)
        if self._redactor.several_lines:
            end = self._redactor.uncut(pending, pending.rfind(b"\n", 0, whole) + 1)
        else:
            end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if end == 0 and whole > _LONGEST_LINE:
            # Between two words, so that a secret known by its form is not cut either.
            end = self._redactor.uncut(pending, pending.rfind(b" ", 0, whole) + 1 or whole)
        # A private key comes in lines, none of which says what it is.
        if (key := open_key_block(pending[:end])) != -1:
            end = key
        ready, self._rest = pending[:end], pending[end:]
        return self._clean(ready)

    def finish(self) -> bytes:
        """What is left at the end of the stream."""
        ready, self._rest = self._rest, b""
        return self._clean(ready)

    def _clean(self, ready: bytes) -> bytes:
        clean = self._redactor.clean(ready, self._before)
        self._before = _last_line(ready) if ready else self._before
        return clean
