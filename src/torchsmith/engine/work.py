"""The folder a plan is run in, and the marks that tell how the last run left it.

.torchsmith/lock             held for the length of a run
.torchsmith/started/STEP     the key of a step that was begun and not finished
.torchsmith/placed/STEP      the key and the mark of a step's outputs as they were put here
.torchsmith/scripts/STEP.sh  what the step runs, to be read or run by hand
.torchsmith/tools/           links to torchsmith's own programs, for what a build keeps paths of
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from torchsmith.engine.disk import room, write_whole
from torchsmith.engine.locks import Lock
from torchsmith.engine.store import find_outputs, inside
from torchsmith.engine.trees import remove, signature
from torchsmith.foreign import MalformedError, decode
from torchsmith.plan.attest import attestations
from torchsmith.plan.models import Step
from torchsmith.plan.torch import reports


def plain_name(text: str) -> str:
    """A text as the name of one file."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", text).lstrip(".") or "_"


@dataclass(frozen=True, slots=True)
class _Placed:
    key: str
    roots: tuple[str, ...]
    mark: str


class WorkFolder:
    """One plan's work folder."""

    def __init__(self, path: Path, lock: Callable[[Path], Lock] = Lock) -> None:
        # Resolved: programs write the real path into what they make, and the store looks for it.
        self.path = path.resolve()
        self._own = self.path / ".torchsmith"
        self.lock = lock(self._own / "lock")

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Lay out the plan's own files; one that is there already keeps its time."""
        with room(self.path, sum(map(len, files.values()))):
            self.path.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                path = self.path / name
                with contextlib.suppress(OSError):
                    if path.read_bytes() == content:
                        continue
                write_whole(path, content)

    def write_script(self, step: Step, text: str) -> Path:
        """Write what a step runs."""
        path = self._own / "scripts" / f"{plain_name(step.id)}.sh"
        with room(self.path, len(text)):
            write_whole(path, text.encode())
        return path

    def link_tools(self, python: Path, toolchain: Path, *, inside: bool) -> Path:
        """Link a Python and torchsmith's toolchain; return the folder of the links.

        CMake writes the names of both into a configured tree. By these names the tree goes on, and
        compiles nothing again, when torchsmith has moved or is another release.
        """
        folder = self._own / "tools" / ("inside" if inside else "here")
        with room(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            for link, target in ((folder / "python", python), (folder / "toolchain", toolchain)):
                if not link.is_symlink() or link.readlink() != target:
                    link.unlink(missing_ok=True)
                    link.symlink_to(target)
        return folder

    def _started(self, step: Step) -> Path:
        return self._own / "started" / plain_name(step.id)

    def was_started(self, step: Step) -> bool:
        """Whether this step, with this key, was begun here and never finished.

        There is one mark for each step: an attempt with another key writes over the tree.
        """
        try:
            return self._started(step).read_text() == step.key
        except OSError:
            return False

    def mark_started(self, step: Step) -> None:
        """Note that a step begins."""
        with room(self.path):
            write_whole(self._started(step), step.key.encode())

    def mark_finished(self, step: Step) -> None:
        """Note that a step is done."""
        with contextlib.suppress(FileNotFoundError):
            self._started(step).unlink()

    def _placed_file(self, step: Step) -> Path:
        return self._own / "placed" / f"{plain_name(step.id)}.json"

    def _placed(self, step: Step) -> _Placed | None:
        try:
            placed = decode(self._placed_file(step).read_bytes(), _Placed)
        except (OSError, MalformedError):
            return None
        return placed if placed.key == step.key else None

    def mark_placed(self, step: Step, roots: tuple[str, ...]) -> None:
        """Note that a step's outputs are here as they should be."""
        placed = _Placed(step.key, roots, signature(self.path, roots))
        with room(self.path):
            write_whole(self._placed_file(step), msgspec.json.encode(placed))

    def forget_placed(self, step: Step) -> None:
        """Note that a step's outputs are about to change: a kill now leaves half of them."""
        with contextlib.suppress(FileNotFoundError):
            self._placed_file(step).unlink()

    def placed_roots(self, step: Step, *, untouched: bool = True) -> tuple[str, ...] | None:
        """Where a step's outputs are, if they are here and unchanged.

        Without `untouched`, changes are allowed: a compilation goes on in the tree it was writing
        to.
        """
        placed = self._placed(step)
        if placed is None:
            return None
        try:
            mark = signature(self.path, placed.roots)
        except OSError:
            return None
        return placed.roots if mark == placed.mark or not untouched else None

    def clear(self, step: Step, *, trees: bool) -> None:
        """Remove what lies where this step will write; without `trees`, folders stay."""
        self.forget_placed(step)
        for root in find_outputs(step, self.path, must=False):
            path = self.path / root
            if inside(root) and (trees or path.is_symlink() or not path.is_dir()):
                remove(path)
                # A wheel's reports go with it.
                for report in (*reports(root), *attestations(root)):
                    (self.path / report).unlink(missing_ok=True)

    def clear_staging(self, step: Step) -> None:
        """Remove what setuptools had gathered for a wheel when a compilation was stopped.

        It would take a half-copied file for a whole one. Objects and libraries lie elsewhere and
        stay.
        """
        tree = self.path / "build" / step.variant / step.project / "build"
        if step.variant and step.project:
            for pattern in ("lib.*", "bdist.*"):
                for path in tree.glob(pattern):
                    remove(path)
