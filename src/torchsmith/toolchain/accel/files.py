"""Sources, batches and lists of dependencies: files that other processes may read at any moment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from torchsmith.files import write_whole


def read_source(path: Path | str) -> str:
    """A C++ file's text; empty where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


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


# In a batch's command these stand for the file, its object and its list of headers.
IN, OUT, DEPS = "\x01in\x01", "\x01out\x01", "\x01deps\x01"


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a batch: its name in lessons, where it lies, and its object."""

    name: str
    path: str
    output: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be compiled, as the build file's writer lays it down."""

    command: tuple[str, ...]
    members: tuple[Member, ...]
    lessons: str = ""
    once: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Batch:
        """A batch from its file."""
        data = json.loads(path.read_text(encoding="utf-8"))
        members = tuple(Member(**item) for item in data["members"])
        return cls(tuple(data["command"]), members, data["lessons"], tuple(data["once"]))

    def text(self) -> str:
        """A batch as its file."""
        return json.dumps(asdict(self), indent=1) + "\n"
