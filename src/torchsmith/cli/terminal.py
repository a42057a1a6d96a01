"""Trees and colours on the terminal, for the commands that must answer at once.

`plan` is asked again and again while a recipe takes shape; importing rich would be a tenth of
what it takes. Tables and live displays are rich's.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

from torchsmith.printable import printable_lines

if TYPE_CHECKING:
    from rich.console import Console

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def coloured() -> bool:
    """Whether standard output shows colours; https://no-color.org is honoured."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def style(name: str, text: str) -> str:
    """Text in a style, plain where colours are not shown."""
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if coloured() else text


_OWN = frozenset(f"\x1b[{code}m" for code in ("0", *_CODES.values()))


# For terminals and pipes that know neither lines nor dashes.
_PLAIN = str.maketrans(
    {"│": "|", "├": "|", "└": "`", "─": "-", "…": "...", "—": "-", "–": "-", "×": "x", "→": "->"}
)


def _can_draw(stream: TextIO) -> bool:
    try:
        "│├└─…—–×→".encode(stream.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class PrintableStream:
    """A standard stream that passes on no control characters but line ends, tabs and our styles."""

    def __init__(self, unfiltered: TextIO) -> None:
        self.unfiltered = unfiltered
        self._draws = _can_draw(unfiltered)

    def write(self, text: str) -> int:
        """Write a text, made printable."""
        shown = printable_lines(text, _OWN.__contains__)
        self.unfiltered.write(shown if self._draws else shown.translate(_PLAIN))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def guard_streams() -> None:
    """From here on, foreign text cannot command the terminal, and any text can be written."""
    for stream in (unfiltered(sys.stdout), unfiltered(sys.stderr)):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, PrintableStream(unfiltered(sys.stdout)))
    sys.stderr = cast(TextIO, PrintableStream(unfiltered(sys.stderr)))


def unfiltered(stream: TextIO) -> TextIO:
    """The stream behind a guarded one, for those who make their text printable themselves."""
    return stream.unfiltered if isinstance(stream, PrintableStream) else stream


def rich_console(stream: TextIO, **options: Any) -> Console:
    """A rich console whose own control sequences pass, and none of those in a text."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PrintableConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the program, as a failure.
            raise BrokenPipeError

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(printable_lines(segment.text), segment.style)

    return PrintableConsole(file=unfiltered(stream), **options)


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
