"""Keeping secrets out of everything that is kept or shown: the values of a plan by themselves,
others by their form (`torchsmith.redact`).
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator

from torchsmith.redact import MASK as MASK_TEXT
from torchsmith.redact import cleaned, open_key_block

MASK = MASK_TEXT.encode()
_LONGEST_LINE = 1 << 16


def _disguises(value: str) -> Iterator[str]:
    """A value in the forms programs print it in: plain, in a URL, in JSON, in a header."""
    yield value
    # A key with several lines is also printed one line at a time.
    yield from (line for line in value.splitlines() if len(line) >= 8)
    yield urllib.parse.quote(value, safe="")
    yield urllib.parse.quote(value)
    yield urllib.parse.quote_plus(value)
    yield json.dumps(value)[1:-1]
    if len(value) >= 4:
        yield base64.b64encode(value.encode(errors="surrogateescape")).decode()


class Redactor:
    """Takes secret values out of text, wherever in it they stand."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values if value for form in _disguises(value)}
        # Longest first: a secret that contains another must not leave its own rest behind.
        self._forms = sorted(
            (form.encode(errors="surrogateescape") for form in forms), key=len, reverse=True
        )
        self.longest = len(self._forms[0]) if self._forms else 0
        self.several_lines = any(b"\n" in form or b"\r" in form for form in self._forms)

    def clean(self, content: bytes) -> bytes:
        """The same bytes without any secret."""
        for form in self._forms:
            content = content.replace(form, MASK)
        return cleaned(content)

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
        return self._redactor.clean(ready)

    def finish(self) -> bytes:
        """What is left at the end of the stream."""
        ready, self._rest = self._rest, b""
        return self._redactor.clean(ready)
