"""The attempts at the variants of a farm, read from the files that their jobs write.

events.jsonl   what its build tells, as `--json` does
said.log       what it tells people
node           where it runs
ended          its exit code; there when it is over, and only then
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from torchsmith.engine.failure import explain_log
from torchsmith.engine.store import Store
from torchsmith.engine.tail import new_lines
from torchsmith.errors import StepFailed
from torchsmith.foreign import Table, read_json, table
from torchsmith.verify.report import content_beside, from_json

# In the folder of a farm: its recipe, and a folder for each variant, in it one for each attempt.
RECIPE = "recipe.toml"
VARIANTS = "variants"
EVENTS = "events.jsonl"
# Where a line says which event it is.
_HEAD = 64
MESSAGES = "said.log"
NODE = "node"
ENDED = "ended"
_REPORTED = "told"
# What a shell reports of a program ended by a signal.
_SIGNALLED = 128


@dataclass(frozen=True)
class Failure:
    """Why a variant was not built."""

    reason: str
    excerpt: tuple[str, ...] = ()
    log: str = ""
    exit_code: int = StepFailed.exit_code


class Attempt:
    """What is known of one attempt; `look` reads what came since the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.step = ""
        self.seconds = 0.0
        self.artifacts: tuple[Path, ...] = ()
        self.failure: Failure | None = None
        # Steps found in the store and steps run; compiles found in the compiler cache, of all.
        self.cached = self.ran = self.hits = self.compiles = 0
        # The titles of those steps, and whether this attempt found the result in the store.
        self.found: dict[str, bool] = {}
        self._finished = False
        self._error = ""
        self._offset = 0

    @property
    def number(self) -> int:
        """The first attempt is one."""
        return int(self.folder.name)

    @property
    def exit_code(self) -> int | None:
        """How its build ended; None while it has not, or its machine died."""
        try:
            return int((self.folder / ENDED).read_text())
        except (OSError, ValueError):
            return None

    @property
    def stopped(self) -> bool:
        """Whether it was ended from outside: nothing is said about what it builds."""
        return (self.exit_code or 0) > _SIGNALLED

    @property
    def reported(self) -> bool:
        """Whether somebody knows that it came to nothing, and may have mended the cause."""
        return (self.folder / _REPORTED).exists()

    def report(self) -> None:
        """Note that somebody knows."""
        (self.folder / _REPORTED).touch()

    @property
    def node(self) -> str:
        """Where it ran last."""
        try:
            return (self.folder / NODE).read_text().strip()
        except OSError:
            return ""

    def look(self) -> None:
        """Read on in its events."""
        lines, self._offset = new_lines(self.folder / EVENTS, self._offset)
        for line in lines:
            # A line for every line of a compiler is passed over, and what is no event at all.
            if line.startswith(b"{") and b'"event": "step-line"' not in line[:_HEAD]:
                with contextlib.suppress(ValueError):
                    self._heed(table(read_json(line)))

    def _heed(self, event: Table) -> None:
        match event:
            case {"event": "step-started", "title": str(title)}:
                self.step = title
            case {"event": "step-cached", **more}:
                self.cached += 1
                self.found[str(more.get("title"))] = True
            case {"event": "step-finished", **more}:
                self.ran += 1
                self.found[str(more.get("title"))] = False
            case {"event": "compiler-cache-used", "hits": int(hits), "misses": int(misses)}:
                self.hits, self.compiles = hits, hits + misses
            case {"event": "waiting", "message": str(message)}:
                self.step = message
            case {"event": "step-progress", "done": int(done), "total": int(total)}:
                self.step = f"{self.step.partition(' [')[0]} [{done}/{total}]"
            case {"event": "step-failed", "title": str(title), "reason": str(reason), **more}:
                excerpt = more.get("excerpt")
                lines = tuple(map(str, excerpt)) if isinstance(excerpt, list) else ()
                self.failure = Failure(f"{title}: {reason}", lines, str(more.get("log", "")))
            case {"event": "run-finished", "artifacts": list(paths), **more}:
                self._finished = True
                self.artifacts = tuple(Path(str(path)) for path in paths)
                self._error = str(more.get("error", ""))
                seconds = more.get("seconds")
                self.seconds = float(seconds) if isinstance(seconds, int | float) else 0.0

    def why(self) -> Failure:
        """Why it failed: what its step said, or what it said to people."""
        self.look()
        code = self.exit_code or StepFailed.exit_code
        if self.failure is not None:
            failure = self.failure
            return Failure(failure.reason, failure.excerpt, failure.log, code)
        log = self.folder / MESSAGES
        reason = self._error.partition("\n")[0] or f"its build ended with exit status {code}"
        return Failure(reason, tuple(explain_log(log)), str(log), code)

    def proven(self) -> int | None:
        """How many checks prove its results; None if one is not there, or not proven."""
        self.look()
        if not self._finished or not all(path.exists() for path in self.artifacts):
            return None
        checks = 0
        for path in self.artifacts:
            try:
                report = from_json(content_beside(path))
            except OSError:
                # Not everything that is built has a report: an archive's is its wheel's.
                continue
            except msgspec.MsgspecError:
                return None
            if report.failed:
                return None
            checks += len(report.checks)
        return checks


@dataclass(frozen=True)
class VariantSeen:
    """A variant of a farm: its state, its latest attempt, what it found in the store."""

    name: str
    state: str
    attempt: int = 0
    node: str = ""
    step: str = ""
    seconds: float = 0.0
    cached: int = 0
    ran: int = 0
    hits: int = 0
    compiles: int = 0
    failure: Failure | None = None
    # The titles of its steps, and whether the result was in the store.
    found: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class FarmSeen:
    """A farm: its folder's name and its variants."""

    name: str
    variants: tuple[VariantSeen, ...]

    @property
    def shared(self) -> dict[str, tuple[list[str], list[str]]]:
        """The steps that one variant did for others: who ran each, and who found its result."""
        steps: dict[str, tuple[list[str], list[str]]] = {}
        for item in self.variants:
            for title, found in item.found.items():
                steps.setdefault(title, ([], []))[found].append(item.name)
        return {
            title: sides for title, sides in steps.items() if sides[1] and len(self.variants) > 1
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where they are, or were, built."""
        return tuple(sorted({item.node for item in self.variants if item.node}))


def farms(store: Store) -> list[Path]:
    """The folders of a store's farms, the latest first."""
    found = [path for path in (store.root / "farm").glob("[!.]*") if (path / RECIPE).is_file()]
    return sorted(found, key=_changed, reverse=True)


def survey(folder: Path) -> FarmSeen:
    """Look at a farm; its jobs go on as they did."""
    names = [path.name for path in sorted((folder / VARIANTS).glob("[!.]*")) if path.is_dir()]
    return FarmSeen(folder.name, tuple(_seen(folder / VARIANTS, name) for name in names))


def _seen(folder: Path, name: str) -> VariantSeen:
    numbers: Sequence[int] = [
        int(path.name) for path in (folder / name).glob("[0-9]*") if path.name.isdecimal()
    ]
    if not numbers:
        return VariantSeen(name, "waiting")
    attempt = Attempt(folder / name / str(max(numbers)))
    attempt.look()
    code = attempt.exit_code
    state = "running" if attempt.node else "waiting"
    failure: Failure | None = None
    if code == 0:
        state = "built" if attempt.proven() is not None else "failed"
    elif code is not None:
        state = "interrupted" if attempt.stopped else "failed"
        failure = attempt.why()
    return VariantSeen(
        *(name, state, max(numbers), attempt.node, attempt.step, attempt.seconds),
        *(attempt.cached, attempt.ran, attempt.hits, attempt.compiles, failure),
        attempt.found,
    )


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
