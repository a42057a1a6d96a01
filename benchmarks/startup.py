"""How quickly torchsmith answers: --help, a plan, a matrix of a thousand variants.

    python benchmarks/startup.py

Prints the median of several runs of each, as a person at a terminal would time it, and how
it compares with the budget it has.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7
ROOT = Path(__file__).parents[1]
# 4 torches x 5 Pythons x 5 CUDAs x 10 GPU sets, every one of which can exist.
THOUSAND = """\
torch = "2.6.0"
platform = "linux-x86_64"
system = "ubuntu-22.04"
source = { kind = "git" }

[matrix]
torch = ["2.5.0", "2.5.1", "2.6.0", "2.7.1"]
python = ["3.9", "3.10", "3.11", "3.12", "3.13"]
cuda = ["11.8", "12.1", "12.3", "12.4", "12.6"]
gpus = ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "8.0;8.6", "8.6;8.9", "8.0;9.0", "7.5;8.6"]
"""


def median_seconds(arguments: list[str], runs: int) -> float:
    """The median wall time of a command."""
    command = [sys.executable, "-m", "torchsmith", *arguments]
    seconds: list[float] = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        # As an installed program: Python's own modules are compiled once, not at every start.
        env = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=env)
        seconds.append(time.perf_counter() - begin)
    # The first run fills the caches of the file system.
    return statistics.median(seconds[1:])


def main() -> None:
    """Time each and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        matrix = Path(folder) / "matrix.toml"
        matrix.write_text(THOUSAND, encoding="utf-8")
        cases = [
            ("torchsmith --help", ["--help"], RUNS, 0.3),
            ("torchsmith plan (quickstart)", ["plan", "--preset", "quickstart"], RUNS, 0.5),
            ("torchsmith plan (training-image)", ["plan", "--preset", "training-image"], RUNS, 0.5),
            ("torchsmith plan --json, 1,000 variants", ["plan", str(matrix), "--json"], 3, 5.0),
        ]
        for title, arguments, runs, budget in cases:
            taken = median_seconds(arguments, runs)
            verdict = "within" if taken <= budget else "OVER"
            print(f"{title:<36} {taken:6.3f} s   {taken / budget:4.2f} of {budget:g} s, {verdict}")


if __name__ == "__main__":
    main()
