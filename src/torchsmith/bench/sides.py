"""The sides of a comparison, as people write them: `ours=PATH,set:threads=1`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.bench.worker.script import SETTINGS
from torchsmith.errors import UsageError

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]*)=(.+)", re.DOTALL)
_HINT = "For example: torchsmith bench ours=ENVIRONMENT pip,env:OMP_NUM_THREADS=1"


@dataclass(frozen=True, slots=True)
class Side:
    """A torch installation with its settings.

    `target` is a path, `image:` and a name, or `pip`, which may be followed by `:` and a release.
    """

    name: str
    target: str
    environ: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The image's name, if it is one."""
        return self.target.removeprefix("image:") if self.target.startswith("image:") else ""

    @property
    def published(self) -> str | None:
        """The release that pip is to bring; empty for that of the first side."""
        word, _, release = self.target.partition(":")
        return release if word == "pip" else None


def parse_side(text: str) -> Side:
    """Read one side; its name, if none is given, is made of what it is."""
    named = _NAMED.fullmatch(text)
    # A file may have such a name itself.
    if named and Path(text.partition(",")[0]).exists():
        named = None
    name, rest = (named[1], named[2]) if named else ("", text)
    # Commas divide only where a setting follows: a path may have one.
    target, *changes = re.split(r",(?=(?:env|set):)", rest)
    if not target:
        raise UsageError(f"{text!r} names no installation", _HINT)
    environ, settings = read_changes(changes)
    if not name:
        name = _short(target)
        name += "".join(f",{key}={value}" for key, value in {**environ, **settings}.items())
    return Side(name, target, environ, settings)


def read_changes(texts: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Read `env:NAME=VALUE` and `set:NAME=VALUE`: environment variables and torch's settings."""
    environ: dict[str, str] = {}
    settings: dict[str, str] = {}
    for text in texts:
        kind, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if kind not in ("env", "set") or not key or not equals:
            raise UsageError(
                f"{text!r} is not a setting", "Write env:NAME=VALUE, or set:NAME=VALUE for torch's."
            )
        if kind == "set" and key not in SETTINGS:
            raise UsageError(f"torch has no setting {key!r} here", f"Known: {', '.join(SETTINGS)}.")
        (environ if kind == "env" else settings)[key] = value
    return environ, settings


def _short(target: str) -> str:
    """The part of a target that tells it apart."""
    path = Path(target.removeprefix("image:"))
    if path.parent.name == "bin":
        path = path.parent.parent
    if path.suffix == ".whl":
        return "-".join(path.name.split("-")[:2])
    return path.name or str(path)


def parse_sides(texts: Sequence[str], common: Sequence[str] = ()) -> tuple[Side, ...]:
    """Read all sides; `common` are settings of each, unless it says otherwise itself."""
    environ, settings = read_changes(common)
    found = [
        Side(side.name, side.target, {**environ, **side.environ}, {**settings, **side.settings})
        for side in map(parse_side, texts)
    ]
    if len(found) < 2:
        raise UsageError(
            "a comparison needs two sides",
            "Name two installations, or yours and pip; or one twice with other settings "
            "(PATH,set:NAME=VALUE).",
        )
    names = [side.name for side in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            f"two sides are called {twice[0]!r}", "Give them names: a=PATH b=PATH,set:NAME=VALUE."
        )
    return tuple(found)
