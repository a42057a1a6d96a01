"""Every command there is, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from torchsmith.cli.app import command_line


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _walk(below, (*words, name))


EVERY = dict(_walk(typer.main.get_command(command_line()), ()))
LEAVES = {words: one for words, one in EVERY.items() if not hasattr(one, "commands")}


def options(words: tuple[str, ...]) -> set[str]:
    """The options of a command, as they are written."""
    return {name for item in EVERY[words].params for name in item.opts if name.startswith("-")}
