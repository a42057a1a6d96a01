"""Printing and writing: text and trees for people, JSON for scripts, files that appear whole.

`plan` is run again and again while a recipe takes shape, and importing rich would add a tenth to
its time. So trees are drawn here; only tables and live displays are rich's.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from torchsmith.errors import OutputError
from torchsmith.printable import printable_json, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from torchsmith.checks import Check

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
    """A standard stream without control characters, except line ends, tabs and our styles."""

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
    """Keep foreign text from commanding the terminal, and let any text be written."""
    for stream in (unfiltered(sys.stdout), unfiltered(sys.stderr)):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = cast(TextIO, PrintableStream(unfiltered(sys.stdout)))
    sys.stderr = cast(TextIO, PrintableStream(unfiltered(sys.stderr)))


def flush_streams() -> None:
    """Write what is still buffered: Python would do so too late to say what goes wrong with it.

    A reader that has gone has seen enough; nothing more is written to it.
    """
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), unfiltered(stream).fileno())
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                raise


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


_MARK_LOOKS = {"pass": "green", "warn": "yellow", "fail": "red", "absent": "dim", "info": "dim"}


def print_checks(checks: Sequence[Check], *, everything: bool = True) -> None:
    """Print what was looked at, as every doctor and proof does."""
    from torchsmith.checks import check_lines

    for line in check_lines(
        checks,
        everything=everything,
        paint=lambda status, mark: style(_MARK_LOOKS[status], mark),
        wrap=wrapped,
    ):
        print(line)


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


def say(text: str) -> None:
    """Print one paragraph, wrapped."""
    first, *others = wrapped(text, 2)
    print("\n  ".join((first, *others)))


def console() -> Console:
    """Where people read. Wide enough in a pipe that no line of a log is cut."""
    piped = not sys.stdout.isatty()
    return rich_console(sys.stdout, width=160 if piped else None, highlight=False, soft_wrap=False)


# Changes when a key of a JSON document changes its meaning or goes; new keys may come.
JSON_VERSION = 1
_json_printed: set[str] = set()


def json_wanted() -> bool:
    """Whether the command line asks for JSON; what follows `--` is another program's."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON document on standard output: docs/json.md says what each command's holds."""
    import msgspec

    _json_printed.add("document")
    # Ten times as quick as json with an indent, which a thousand variants feel.
    packed = msgspec.json.encode({"version": JSON_VERSION, **value})
    _write_json(msgspec.json.format(packed, indent=2).decode())


def answer(value: Mapping[str, Any], text: str, *, json: bool) -> None:
    """A command's one answer: for scripts, or for people."""
    if json:
        print_json(value)
    else:
        print(text)


def print_json_line(value: Mapping[str, Any]) -> None:
    """One of several documents, each a line."""
    _write_json(json.dumps({"version": JSON_VERSION, **value}, ensure_ascii=False))
    sys.stdout.flush()


def print_json_error(message: str, hint: str, exit_code: int, problems: Sequence[str] = ()) -> None:
    """Say in JSON why there is no answer, unless there was one already."""
    if json_wanted() and not _json_printed:
        _json_printed.add("error")
        error = {"message": message, "hint": hint, "exit_code": exit_code}
        more = {"problems": list(problems)} if problems else {}
        print_json_line({"event": "error", "error": {**error, **more}})


@contextmanager
def asking() -> Iterator[None]:
    """Let Ctrl-C at a question end a command as it does anywhere else; so does Ctrl-D."""
    from typer import Abort

    try:
        yield
    except Abort:
        print(file=sys.stderr)
        raise KeyboardInterrupt from None


def begin_output() -> None:
    """Forget what an earlier command of this process has printed."""
    _json_printed.clear()


def _write_json(document: str) -> None:
    print_content(printable_json(document) + "\n")


def print_content(text: str) -> None:
    """The content of a file: unchanged into a pipe, printable on a terminal."""
    if sys.stdout.isatty():
        sys.stdout.write(text)
        return
    # Files are UTF-8, whatever a terminal here would show.
    pipe = unfiltered(sys.stdout)
    if not isinstance(pipe, TextIOWrapper):
        pipe.write(text)
        return
    pipe.flush()
    pipe.buffer.write(text.encode("utf-8", "surrogateescape"))
    pipe.buffer.flush()


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; what else is in it stays."""
    from torchsmith.files import write_result

    if folder.is_file():
        raise OutputError(
            f"{folder} is a file, where a folder would be written", "Name a folder, or a new name."
        )
    for name, content in files.items():
        write_result(folder / name, content, mode=0o755 if name.endswith(".sh") else 0o644)


def show_files(files: Mapping[str, bytes], folder: Path | None) -> None:
    """Write files into a folder and name them; without one, print what they hold."""
    if folder is not None:
        write_tree(folder, files)
        for name in files:
            print(folder / name)
    elif len(files) == 1:
        (content,) = files.values()
        print_content(content.decode())
    else:
        print_files(files)


def print_files(files: Mapping[str, bytes]) -> None:
    """Several files on standard output, each under its name."""
    for name, content in files.items():
        end = "" if content.endswith(b"\n") else "\n"
        print_content(f"# ==== {name}\n{content.decode('utf-8', 'replace')}{end}")


def print_requests(files: Mapping[str, bytes], engine: str, *, as_json: bool) -> None:
    """What a cluster would be asked, where nothing is asked of it."""
    if not as_json:
        print_files(files)
        return
    requests = {name: content.decode() for name, content in files.items()}
    print_json({"dry_run": True, "engine": engine, "files": requests})


def log_line(text: str) -> None:
    """A line about what is going on; with the time of day where a terminal does not show it."""
    stamp = "" if sys.stderr.isatty() else time.strftime("%H:%M:%S ")
    print(f"{stamp}{text}", file=sys.stderr, flush=True)


def tell(text: str) -> None:
    """Print what is going on, to standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Print something worth knowing, to standard error."""
    tell(f"note: {text}")


def moment(seconds: float) -> str:
    """A moment, in UTC, given in seconds since 1970."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        # No calendar has it: somebody made it up.
        return "?"


def counted(count: int, noun: str) -> str:
    """A number of things: 1 core, 2 cores."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A length of time the way people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
