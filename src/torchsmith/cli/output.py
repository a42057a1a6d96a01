"""Printing and writing: tables for people, JSON for scripts, files that appear whole."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsmith.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Where people read. Wide enough in a pipe that no line of a log is cut."""
    from torchsmith.cli.terminal import rich_console

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


def begin_output() -> None:
    """Forget what an earlier command of this process has printed."""
    _json_printed.clear()


def _write_json(document: str) -> None:
    from torchsmith.printable import printable_json

    print_content(printable_json(document) + "\n")


def print_content(text: str) -> None:
    """The content of a file: unchanged into a pipe, printable on a terminal."""
    from torchsmith.cli.terminal import unfiltered

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
    """Write a folder of files; one that holds other things is left alone."""
    from torchsmith.files import write_result

    if folder.is_file():
        raise OutputError(f"{folder} is a file, where a folder would be written")
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
    """Say on standard error what is going on; it is seen at once."""
    print(text, file=sys.stderr, flush=True)


def moment(seconds: float) -> str:
    """A moment, in UTC, given in seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


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
