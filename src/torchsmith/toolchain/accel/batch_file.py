"""A batch as its file says it: written with the build file, read by who compiles it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

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
