"""Trees and colours on the terminal, for the commands that must answer at once.

`plan` is asked again and again while a recipe takes shape; importing rich would be a tenth of
what it takes. Tables and live displays are rich's.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def coloured() -> bool:
    """Whether standard output shows colours; https://no-color.org is honoured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def style(name: str, text: str) -> str:
    """Text in a style, plain where colours are not shown."""
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if coloured() else text


def width() -> int:
    """Columns to write in; a pipe gets wide lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 160


def wrapped(text: str, margin: int) -> list[str]:
    """A text as lines that fit beside a margin of so many columns."""
    room = max(20, width() - margin)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


class Branch:
    """A node of a tree: a line of text and what hangs below it."""

    def __init__(self, text: str, look: str = "") -> None:
        self.text = text
        self.look = look
        self.below: list[Branch] = []

    def add(self, text: str, look: str = "") -> Branch:
        """Hang a line below this one."""
        branch = Branch(text, look)
        self.below.append(branch)
        return branch

    def lines(self, first: str = "", rest: str = "") -> Iterator[str]:
        """The tree as lines."""
        for number, line in enumerate(wrapped(self.text, len(first))):
            shown = style(self.look, line) if self.look else line
            # Continued lines keep the bar that leads to what hangs below.
            bar = "│   " if self.below else "    "
            yield (first if number == 0 else f"{rest}{bar}" if rest else rest) + shown
        for branch in self.below:
            last = branch is self.below[-1]
            corner, bar = ("└── ", "    ") if last else ("├── ", "│   ")
            yield from branch.lines(rest + corner, rest + bar)


def say(text: str = "", look: str = "") -> None:
    """Print one paragraph, wrapped."""
    first, *others = wrapped(text, 2)
    for line in (first, *(f"  {other}" for other in others)):
        print(style(look, line) if look else line)
