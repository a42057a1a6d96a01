"""Text of strangers on its way to a terminal.

Build logs, job output, package names and error messages are written by others. A terminal obeys
control characters in them: it moves the cursor over earlier lines, sets the clipboard or the
title, answers questions into the shell. What is shown to people therefore holds none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

# A colour carries nothing that is lost without it; any other sequence stays visible as text.
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
# C0, DEL and C1 controls; what changes the direction or the existence of the text around it
# (https://trojansource.codes); separators that some terminals take for a new line; surrogates.
_HIDDEN = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_LINES = re.compile(f"[{_HIDDEN}]")
_IN_LINE = re.compile(rf"[\t\n\r{_HIDDEN}]")


def printable(text: str) -> str:
    """One line of foreign text: colours removed, `?` for every other control character."""
    if text.isprintable():
        return text
    return _IN_LINE.sub("?", _COLOUR.sub("", text))


def printable_lines(text: str, is_own_style: Callable[[str], bool] = lambda _: False) -> str:
    """The same for several lines; keeps tabs, line ends and what `is_own_style` names.

    A lone carriage return, with which progress bars overwrite their line, becomes a line end.
    """
    if text.isprintable():
        return text
    parts: list[str] = []
    end = 0
    for found in _COLOUR.finditer(text):
        parts.append(_IN_LINES.sub("?", text[end : found.start()]))
        parts.append(found[0] if is_own_style(found[0]) else "")
        end = found.end()
    parts.append(_IN_LINES.sub("?", text[end:]))
    return "".join(parts).replace("\r\n", "\n").replace("\r", "\n")


def printable_json(text: str) -> str:
    r"""A JSON document with the same meaning and every control character as `\u….`."""
    if text.isprintable():
        return text
    return _IN_LINES.sub(_as_escape, text)


def _as_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
