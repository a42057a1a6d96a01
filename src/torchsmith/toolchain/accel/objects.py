"""The objects of a batch: of each part one that holds the code, and empty ones beside it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Part:
    """Files that compile together, and the digest of each file that went into their object.

    One that has read nothing is still to be compiled.
    """

    names: tuple[str, ...]
    read: dict[str, str] = field(default_factory=dict)


class Objects:
    """Puts code where ninja looks for it.

    A part's code lies beside the batch under a name of its own. Ninja removes the objects of a
    batch that is stopped, and whoever compiles a file by itself writes over them: they are put
    back from there. `empty` gives the object of a file with nothing in it.
    """

    def __init__(
        self, place: Path, outputs: Mapping[str, Path], empty: Callable[[], bytes]
    ) -> None:
        self._place = place
        self._outputs = outputs
        self._empty = empty

    def code(self, part: Part) -> Path:
        """Where a part's code lies; other files make another name."""
        made_of = json.dumps([part.names, sorted(part.read.items())])
        label = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        return self._place.with_name(f"{self._place.stem}-{label}.o")

    def put(self, part: Part) -> None:
        """Give each file of a part its object; one that is right already is left alone."""
        first, *others = (self._outputs[name] for name in part.names)
        code = self.code(part)
        if _mark(first) != _mark(code):
            new = first.with_name(first.name + ".part")
            new.unlink(missing_ok=True)
            try:
                os.link(code, new)
            except OSError:
                shutil.copy2(code, new)
            new.replace(first)
        nothing = self._empty() if others else b""
        for output in others:
            if not output.exists() or output.read_bytes() != nothing:
                new = output.with_name(output.name + ".part")
                new.write_bytes(nothing)
                new.replace(output)

    def are_there(self, part: Part) -> bool:
        """Whether a part's objects are there, or could be put back."""
        if self.code(part).exists():
            self.put(part)
            return True
        return all(self._outputs[name].exists() for name in part.names)

    def clear_up(self, parts: Iterable[Part]) -> None:
        """Remove the code of parts other than these."""
        wanted = {self.code(part) for part in parts}
        for path in self._place.parent.glob(f"{self._place.stem}-*"):
            if path not in wanted:
                path.unlink()


def _mark(path: Path) -> tuple[int, int] | None:
    """What two names of one file, or a file and its copy, have in common."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
