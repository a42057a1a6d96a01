"""Headers that do not see to it that they are read once, made to from outside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchsmith.toolchain.accel.clash import absolute
from torchsmith.toolchain.accel.files import write_if_changed

_FOLDERS = ("-isystem", "-iquote")


def guard(headers: Iterable[str], command: Sequence[str], folder: str, place: Path) -> list[str]:
    """A compiler's command with which these headers, absolute names, are read once.

    For each there is a file in `place` under the name it is included by. It is found first, and
    includes the header where it was not. `folder` is where the compiler runs.
    """
    searched = [absolute(name, folder) for name in _searched(command)]
    for header in headers:
        for name in _included_as(header, searched):
            write_if_changed(place / name, f"#pragma once\n#include_next <{name}>\n")
    # A launcher before the compiler may have an option -I of its own, a word by itself.
    first = next((at for at, word in enumerate(command) if _names_folder(word)), len(command))
    return [*command[:first], f"-I{os.path.relpath(place, folder)}", *command[first:]]


def can_be_guarded(header: str, command: Sequence[str], folder: str) -> bool:
    """Whether a header, an absolute name, is in a folder that the compiler was told to search."""
    searched = [absolute(name, folder) for name in _searched(command)]
    return any(_included_as(header, searched))


def _included_as(header: str, searched: Iterable[str]) -> Iterator[str]:
    for name in dict.fromkeys(searched):
        if header.startswith(f"{name}/"):
            yield header.removeprefix(f"{name}/")


def _names_folder(word: str) -> bool:
    return word in _FOLDERS or (word.startswith("-I") and word != "-I")


def _searched(command: Sequence[str]) -> Iterator[str]:
    """The folders a command names, of those that are searched for headers."""
    before = ""
    for word in command:
        if before in _FOLDERS:
            yield word
        elif word.startswith("-I") and word != "-I":
            yield word.removeprefix("-I")
        before = word
