"""The farms of a store for whoever looks: their variants, where each is, why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.engine.store import Store
from torchsmith.jobs.farm.attempt import VARIANTS, Attempt, Failure
from torchsmith.jobs.farm.snapshot import RECIPE


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
