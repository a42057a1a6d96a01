"""What `torchsmith guard` costs where memory is plenty: CPU time with it, and without.

    python benchmarks/guard.py
    python benchmarks/guard.py --files 20 --rounds 6

Files that each read a good part of the C++ library are compiled one at a time by ninja: plain,
plain again, and with guard, in an order drawn anew each round. The compiler cache is off in all.
Starting and ending a guard takes about a second whatever is built, and is told apart. Printed is
what the ratios of the rounds have in common, with its interval; plain again / plain is noise alone.
On a busy machine that noise hides the rest. So the CPU time of a guarded run that is not its
compilers' is printed, too: what a guard does for each file, without the noise of what they do.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchsmith.bench.verdicts import change, log_ratios, shift
from torchsmith.engine.compile_log import read_compiles

_SOURCE = """
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>
std::map<std::string, std::vector<int>> f{number}(const std::string &text) {{
  std::map<std::string, std::vector<int>> found;
  std::regex words("[a-z]+{number}");
  for (std::sregex_iterator i(text.begin(), text.end(), words), end; i != end; ++i)
    found[i->str()].push_back(int(i->position()));
  for (auto &[word, places] : found) std::sort(places.begin(), places.end(), std::greater<int>());
  return found;
}}
"""
GOAL = 1.03


def write_project(folder: Path, files: int) -> None:
    """Write the sources and a ninja file."""
    lines = ["rule cc", "  command = g++ -std=c++17 -O2 -c $in -o $out"]
    for number in range(files):
        (folder / f"f{number}.cpp").write_text(_SOURCE.format(number=number))
        lines.append(f"build f{number}.o: cc f{number}.cpp")
    (folder / "build.ninja").write_text("\n".join(lines) + "\n")


def measured(command: list[str], folder: Path) -> tuple[float, float]:
    """CPU seconds of a command and all it starts, and seconds on the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    env = {**os.environ, "CCACHE_DISABLE": "1"}
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    wall = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def spread(shares: list[float]) -> str:
    """The least and the most of them."""
    return f"{min(shares):+.1%} to {max(shares):+.1%}"


def of_compilers(store: Path) -> float:
    """CPU seconds that the compilers of the last guard took by themselves."""
    last = max(path.name for path in (store / "logs").iterdir())
    return sum(item.cpu_seconds for item in read_compiles(store / "logs", last))


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    drawn = random.Random(chosen.rounds)
    # By kind, in CPU time and by the clock: guard without what starting and ending one takes.
    took: dict[str, list[tuple[float, float]]] = {"plain": [], "again": [], "guard": []}
    beside: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), Path(name) / "store"
        write_project(folder, chosen.files)
        guard = [sys.executable, "-m", "torchsmith", "guard", "-q", "--store", str(store), "--"]
        ninja = ["ninja", f"-j{chosen.jobs}"]
        # The first guard compiles its library.
        measured([*guard, "true"], folder)
        starts = [measured([*guard, "true"], folder) for _ in range(chosen.rounds)]
        start = tuple(statistics.median(side) for side in zip(*starts, strict=True))
        print(f"a guard starts and ends in {start[0]:.2f} CPU s, {start[1]:.2f} s", flush=True)
        for number in range(chosen.rounds):
            for kind in drawn.sample(sorted(took), len(took)):
                measured(["sh", "-c", "rm -f *.o .ninja_log"], folder)
                cpu, wall = measured([*guard, *ninja] if kind == "guard" else ninja, folder)
                print(f"round {number + 1} {kind}: {cpu:.2f} CPU s, {wall:.2f} s", flush=True)
                took[kind].append((cpu, wall))
                if kind == "guard":
                    compilers = of_compilers(store)
                    beside.append((cpu - start[0] - compilers) / compilers)
    compiling = [(cpu - start[0], wall - start[1]) for cpu, wall in took["guard"]]
    for place, words in ((0, "in CPU time"), (1, "by the clock")):
        plain, again = ([one[place] for one in took[kind]] for kind in ("plain", "again"))
        print(f"guard / plain {words}: {change(plain, [one[place] for one in compiling])}")
        print(f"plain again / plain {words}: {change(plain, again)}")
    share = statistics.median(beside)
    print(
        f"beside its compilers a guard took {share:+.1%} of their CPU time (all: {spread(beside)})"
    )
    met = shift(log_ratios([cpu for cpu, _ in took["plain"]], [cpu for cpu, _ in compiling]))
    return 0 if math.exp(met.middle) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
