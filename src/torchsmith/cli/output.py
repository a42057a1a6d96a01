"""Printing and writing: tables for people, JSON for scripts, files that appear whole."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
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


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print_json_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_json_text(document: str) -> None:
    """The same for a document that is text already."""
    from torchsmith.printable import printable_json

    sys.stdout.write(printable_json(document))


def print_content(text: str) -> None:
    """The content of a file: unchanged into a pipe, printable on a terminal."""
    from torchsmith.cli.terminal import unfiltered

    (sys.stdout if sys.stdout.isatty() else unfiltered(sys.stdout)).write(text)


def write_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old one or the new one, never half."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).chmod(mode)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "Name another place."
        ) from None


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files; one that holds other things is left alone."""
    if folder.is_file():
        raise OutputError(f"{folder} is a file, and a folder is to be written there")
    for name, content in files.items():
        write_file(folder / name, content, mode=0o755 if name.endswith(".sh") else 0o644)


def print_files(files: Mapping[str, bytes]) -> None:
    """Several files on standard output, each under its name."""
    for name, content in files.items():
        end = "" if content.endswith(b"\n") else "\n"
        print_content(f"# ==== {name}\n{content.decode('utf-8', 'replace')}{end}")


def duration(seconds: float) -> str:
    """A length of time the way people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
