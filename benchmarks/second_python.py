"""CPU-seconds of torch for a second Python, as a ratio to those for the first.

    python -m benchmarks.second_python RECIPE --work WORK [OPTIONS OF BUILD]

RECIPE has a matrix of Pythons. It is built through `torchsmith build` in a store of its own, with a
compiler cache that is empty at first; WORK must be new. Of each variant it says what its steps
took: the compiling with its links alone, and everything, from the environment to the verified
wheel. What all variants share (fetching, patching) counts for none.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def build(recipe: Path, work: Path, options: list[str]) -> Path:
    """Build the matrix; the file of its events."""
    events = work / "events.jsonl"
    command = [sys.executable, "-m", "torchsmith", "build", str(recipe), "--json"]
    with events.open("xb") as file:
        done = subprocess.run([*command, "--store", str(work / "store"), *options], stdout=file)
    if done.returncode:
        sys.exit(f"error: the build failed: see {events}")
    return events


def tell(events: Path) -> list[str]:
    """One line for each variant in the order in which they were compiled, each but the first with
    its ratios."""
    finished = [
        event
        for event in map(json.loads, events.read_text(encoding="utf-8").splitlines())
        if event["event"] == "step-finished"
    ]
    prefix = "compile-torch-"
    variants = [
        event["step"].removeprefix(prefix) for event in finished if event["step"].startswith(prefix)
    ]
    if len(variants) < 2:
        sys.exit(f"error: {len(variants)} variants compiled torch; the recipe needs two Pythons")
    lines: list[str] = []
    first = 0.0, 0.0
    for variant in variants:
        mine = [event for event in finished if event["step"].endswith(f"-{variant}")]
        compiling = sum(event["cpu_seconds"] for event in mine if event["step"].startswith(prefix))
        everything = sum(event["cpu_seconds"] for event in mine)
        line = f"{variant}: compiling {compiling:.0f} CPU-s, everything {everything:.0f}"
        if lines:
            line += f"; ours / first = {compiling / first[0]:.3f} and {everything / first[1]:.3f}"
        else:
            first = compiling, everything
        lines.append(line)
    return lines


def main() -> None:
    """Build, and print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    given, options = parser.parse_known_args()
    given.work.mkdir(parents=True)
    print("\n".join(tell(build(given.recipe, given.work.absolute(), options))))


if __name__ == "__main__":
    main()
