"""Writing files that another process may read at any moment, and ninja goes by the dates of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torchsmith.files import write_whole


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_whole(path, text.encode(errors="surrogateescape"), sync=False)


def write_if_changed(path: Path, text: str) -> None:
    """Write a file whole or not at all, and leave one alone that says the same."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except OSError:
        pass
    write_text(path, text)


def read_dependencies(path: Path) -> list[str]:
    """The files a compiler read."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", " ")
    words = re.findall(r"(?:\\[ #]|\$\$|[^\s])+", text.partition(":")[2])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def write_dependencies(path: Path, target: str, names: Iterable[str]) -> None:
    """Write such a list, whole or not at all."""
    listed = " \\\n ".join(_quoted(name) for name in names)
    write_text(path, f"{_quoted(target)}: {listed}\n")


def _quoted(path: str) -> str:
    return re.sub(r"([ #])", r"\\\1", path).replace("$", "$$")
