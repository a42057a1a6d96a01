"""Reading what is known, once and only when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from torchsmith.diagnose.literal import required_literal
from torchsmith.diagnose.models import Failure, FailuresFile
from torchsmith.facts.compiled import load_table

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Pattern:
    """An expression for one line, and the text that every such line contains."""

    text: str
    literal: bytes

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """Compiled when a line first contains the text."""
        return re.compile(self.text)


class Knowledge:
    """Every known failure, by its id and by its area."""

    def __init__(self, folder: Path = DATA) -> None:
        self.areas: dict[str, tuple[Failure, ...]] = {
            path.stem: tuple(msgspec.convert(load_table(path), FailuresFile).failure)
            for path in sorted(folder.glob("*.toml"))
        }
        self.failures = {item.id: item for items in self.areas.values() for item in items}
        self.area_of = {item.id: area for area, items in self.areas.items() for item in items}

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every expression to look for, each once."""
        texts = dict.fromkeys(text for item in self.failures.values() for text in texts_of(item))
        return tuple(Pattern(text, required_literal(text).encode()) for text in texts)

    @cached_property
    def overcoming(self) -> frozenset[str]:
        """The expressions that say that a failure was overcome."""
        return frozenset(text for item in self.failures.values() for text in item.overcome_by)


def texts_of(failure: Failure) -> Iterator[str]:
    """Every expression a failure asks for."""
    yield from failure.any_of
    yield from failure.all_of
    yield from failure.none_of
    yield from failure.overcome_by
    yield from (cause.line for cause in failure.cause if cause.line)


@lru_cache(maxsize=1)
def shipped() -> Knowledge:
    """What this torchsmith was shipped with."""
    return Knowledge()
