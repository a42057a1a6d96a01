"""The list of the files a compiler read, as it writes it for make."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torchsmith.toolchain.accel.files import write_text


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
