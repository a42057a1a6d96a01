"""CPU-seconds of building a companion with torchsmith, as a ratio to `setup.py bdist_wheel`.

    python -m benchmarks.companion RECIPE --work WORK

RECIPE has one companion, torchvision say, and a torch that need not be built. Environment and
source are prepared first. Then the companion is built both ways, one after the other, in the same
environment and without a compiler cache: by `torchsmith build`, and by its own setup.py with the
same variables but for CFLAGS and CXXFLAGS, which are Python's own there. Both use every core.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = ("CFLAGS", "CXXFLAGS")


@dataclass(frozen=True)
class Took:
    """What a command and everything it started took."""

    wall: float
    cpu: float


def run(command: list[str], log: Path, env: Mapping[str, str], folder: Path | None = None) -> Took:
    """Run a command to its end; what it says goes into a file."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with log.open("ab") as file:
        done = subprocess.run(
            command, cwd=folder, env=dict(env), stdout=file, stderr=file, check=False
        )
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(time.monotonic() - began, cpu)


def planned(recipe: Path) -> dict[str, Any]:
    """The plan of a recipe."""
    command = [sys.executable, "-m", "torchsmith", "plan", str(recipe), "--json"]
    plan: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True).stdout
    )
    return plan


def main() -> int:
    """Build both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    place = given.work.absolute()
    store = place / "store"
    place.mkdir(parents=True, exist_ok=True)
    if store.exists():
        raise SystemExit(f"{store} is there already: what is built in it would be taken from it")
    plan = planned(given.recipe)
    (compiling,) = (step for step in plan["steps"] if step["kind"] == "compile")
    before = [step["id"] for step in plan["steps"] if step["kind"] in ("environment", "fetch")]
    quiet = {**os.environ, "CCACHE_DISABLE": "1"}
    build = [sys.executable, "-m", "torchsmith", "build", str(given.recipe), "--store", str(store)]
    log = place / "log"
    run([*build, *(word for name in before for word in ("--step", name))], log, quiet)
    ours = run([*build, "--step", compiling["id"]], log, quiet)
    print(f"torchsmith: {ours.wall:.0f} s, {ours.cpu:.0f} CPU-s", flush=True)
    (work,) = (store / "work").iterdir()
    (source,) = (work / "sources").iterdir()
    tree = place / "stock"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(source, tree, symlinks=True)
    folders = [str(work / name) for name in compiling["path"]]
    plans = {name: text for name, text in compiling["env"].items() if name not in FLAGS}
    variables = {**quiet, **plans, "PATH": ":".join([*folders, os.environ["PATH"]])}
    stock = run(["python", "setup.py", "bdist_wheel"], log, variables, tree)
    print(f"setup.py: {stock.wall:.0f} s, {stock.cpu:.0f} CPU-s")
    print(
        f"ours / stock = {ours.cpu / stock.cpu:.2f} of the CPU, {ours.wall / stock.wall:.2f} wall"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
