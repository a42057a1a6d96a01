"""Try thousands of combinations: is the nearest one of every refusal really planned to its end?

    python tools/try_nearest.py              every combination of the grid
    python tools/try_nearest.py --every 40   each fortieth: seconds instead of minutes

For every combination that is refused, the changes the refusal names are written into the recipe,
which is then resolved and planned. What is not cured is listed, and the exit code is 1 where a
nearest combination was named that is refused in its turn, or whose Python nobody brings.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torchsmith.facts.files import Facts, shipped
from torchsmith.host.models import Compiler, Host, Python
from torchsmith.plan.build import make_plan
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.build_rules import find_system, from_uv, pythons_of
from torchsmith.resolve.models import Refusal, Resolution
from torchsmith.resolve.refusal import changed
from torchsmith.resolve.resolve import resolve

TORCHES = ("1.0.1", "1.4.0", "1.8.1", "1.10.2", "1.13.1", "2.1.2", "2.6.0", "2.9.1", "2.13.0")
PYTHONS = ("3.6", "3.9", "3.12", "3.14t")
CUDAS = ("none", "10.2", "11.8", "12.6", "13.0")
GPUS = ("published", "6.1", "8.9", "12.0")
SYSTEMS = ("", "ubuntu-18.04", "ubuntu-22.04", "debian-13")
PLATFORMS = ("linux-x86_64", "linux-aarch64")
GRID = tuple(itertools.product(TORCHES, PYTHONS, CUDAS, GPUS, SYSTEMS, PLATFORMS))

GCC = Compiler(kind="gcc", version="12.2.0", path="/usr/bin/gcc", cxx="/usr/bin/g++")
OWN = Python(version="3.11.2", path="/usr/bin/python3.11", headers=True)


@dataclass
class Tally:
    """What came of a grid."""

    count: Counter[str] = field(default_factory=Counter)
    uncured: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def wish(cell: tuple[str, ...]) -> dict[str, Any]:
    """A cell of the grid as a recipe; without CUDA no GPU is asked for."""
    torch, python, cuda, gpu, system, platform = cell
    asked = {"torch": torch, "python": python, "cuda": cuda, "platform": platform}
    if system:
        asked["system"] = system
    if cuda != "none":
        asked["gpus"] = gpu
    return asked


def tried(facts: Facts, cells: Iterator[tuple[str, ...]]) -> Tally:
    """Resolve every cell; plan what is accepted, and the nearest of what is refused."""
    made = Tally()
    seen: set[str] = set()
    for cell in cells:
        asked = wish(cell)
        key = repr(asked)
        if key in seen:
            continue
        seen.add(key)
        here = Host(platform=cell[-1], system="debian-12", pythons=(OWN,), compilers=(GCC,))
        recipe = Recipe.model_validate(asked)
        outcome = resolve(Variant("grid", recipe), facts, here)
        if isinstance(outcome, Resolution):
            made.count["accepted"] += 1
            made.broken += [f"{asked}: {text}" for text in _flaws(facts, recipe, outcome, here)]
            continue
        made.count["refused"] += 1
        if not outcome.nearest:
            reasons = ", ".join(item.kind for item in outcome.conflicts)
            made.uncured.append(f"{asked}: {reasons}")
            continue
        made.count["cured"] += 1
        made.count["torch kept"] += not any(item.key == "torch" for item in outcome.changes)
        cured = changed(recipe, outcome.changes)
        again = resolve(Variant("grid", cured), facts, here)
        if isinstance(again, Refusal):
            kinds = ", ".join(item.kind for item in again.conflicts)
            made.broken.append(f"{asked}: nearest {outcome.nearest} is refused: {kinds}")
        else:
            made.broken += [f"{asked}: {text}" for text in _flaws(facts, cured, again, here)]
    return made


def _flaws(facts: Facts, recipe: Recipe, made: Resolution, here: Host) -> Iterator[str]:
    """What is wrong with a resolution although nothing was refused."""
    system = find_system(facts, made.system)
    own = pythons_of(system) if system is not None else (OWN.name,)
    if made.python_from == "uv" and not from_uv(made.python):
        yield f"uv has no Python {made.python}"
    if made.python_from == "system" and made.python not in own:
        yield f"Python {made.python} is none that {made.system or here.system} packages"
    if not make_plan(recipe, [made], facts, "0").steps:
        yield "nothing is planned"


def main() -> int:
    """Run the grid and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="Take each N-th combination only.")
    every = parser.parse_args().every
    made = tried(shipped(), iter(GRID[::every]))
    print(
        f"{len(GRID[::every])} combinations: "
        + ", ".join(f"{v} {k}" for k, v in made.count.items())
    )
    for title, lines in (("not cured", made.uncured), ("wrong", made.broken)):
        print(f"{len(lines)} {title}")
        for line in lines:
            print(f"  {line}")
    return 1 if made.broken else 0


if __name__ == "__main__":
    sys.exit(main())
