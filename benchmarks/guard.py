"""What `torchsmith guard` costs where memory is plenty: CPU time with it, and without.

    python benchmarks/guard.py                    # prints both and their ratio
    python benchmarks/guard.py --files 20 --rounds 3

Files that each read a good part of the C++ library are compiled one at a time by ninja, in turn
with and without guard. The compiler cache is off in both. Starting and ending a guard takes about
a second whatever is built, and is told apart.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def main() -> int:
    """Measure, print, and say whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, store = Path(name), Path(name) / "store"
        write_project(folder, chosen.files)
        guard = [sys.executable, "-m", "torchsmith", "guard", "-q", "--store", str(store), "--"]
        ninja = ["ninja", f"-j{chosen.jobs}"]
        # The first guard compiles its library.
        measured([*guard, "true"], folder)
        start = min(measured([*guard, "true"], folder)[0] for _ in range(chosen.rounds))
        best = {"plain": float("inf"), "guard": float("inf")}
        for number in range(chosen.rounds):
            for kind, words in (("plain", ninja), ("guard", [*guard, *ninja])):
                measured(["sh", "-c", "rm -f *.o .ninja_log"], folder)
                cpu, wall = measured(words, folder)
                best[kind] = min(best[kind], cpu)
                print(f"round {number + 1} {kind}: {cpu:.2f} CPU s, {wall:.2f} s")
    compiling = (best["guard"] - start) / best["plain"]
    print(f"plain {best['plain']:.2f} CPU s, guard {best['guard']:.2f} CPU s", end="")
    print(f" of which {start:.2f} to start and end")
    print(f"guard / plain: {best['guard'] / best['plain']:.3f}; each compile: {compiling:.3f}")
    return 0 if compiling <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
