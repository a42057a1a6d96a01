"""CPU-seconds of a whole build of torch in batches, as a ratio to the same build without.

    python -m benchmarks.whole_torch RECIPE --work WORK [--bundle FILE] [--cores 11,5]

Builds a recipe twice through `torchsmith build`, from the source to the verified wheel: as PyTorch
builds itself (--no-accel), and as torchsmith does; each in a store of its own, without a compiler
cache. With --cores both are built at once, the first on so many cores and the second on so many
others. Then the two wheels are compared: symbols, operators, schemas, the dispatcher's table, and
the outcome of some of PyTorch's own tests (see same_torch.py, also for what this Python must have).
Stopped or killed, it goes on when called again with the same WORK. Ends with 0 if nothing differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.same_torch import TESTS, compare

from torchsmith.bench.timeline import Timeline, lay_out
from torchsmith.engine.compile_log import CompileRecord, read_compiles


@dataclass(frozen=True)
class Side:
    """One of the two builds."""

    name: str
    options: tuple[str, ...]
    work: Path

    @property
    def store(self) -> Path:
        """Where it is built."""
        return self.work / self.name

    def start(self, recipe: Path, bundle: Path | None, cpus: set[int]) -> subprocess.Popen[bytes]:
        """Start the build on these cores, its events in a file."""
        command = [sys.executable, "-m", "torchsmith", "build", str(recipe), "--json"]
        command += ["--store", str(self.store), *self.options]
        command += ["--bundle", str(bundle)] if bundle else []
        with self.events.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CCACHE_DISABLE": "1"},
            )
        os.sched_setaffinity(process.pid, cpus)
        return process

    @property
    def events(self) -> Path:
        """What the build said."""
        return self.work / f"{self.name}.jsonl"

    def records(self) -> list[list[CompileRecord]]:
        """Every compile that ended, of each run it took."""
        logs = self.store / "logs"
        runs = sorted(path.name for path in logs.iterdir() if path.is_dir())
        return [list(read_compiles(logs, run)) for run in runs]

    def timelines(self) -> list[Timeline]:
        """The compiles of each run that had any."""
        return [found for found in map(lay_out, self.records()) if found is not None]

    def wheel(self) -> Path:
        """The wheel that was made."""
        (found,) = self.store.glob("work/*/dist/*/torch-*.whl")
        return found

    def tree(self) -> Path:
        """The source it was made from."""
        (found,) = self.store.glob("entries/*/*/outputs/sources/torch-*")
        return found

    def verified(self) -> str:
        """What the build's own verification came to."""
        (found,) = self.store.glob("work/*/dist/*/torch-*.verify.json")
        report = json.loads(found.read_text(encoding="utf-8"))
        held = sum(check["status"] == "pass" for check in report["checks"])
        return f"{report['rating']}, {held} checks hold"


def build(sides: list[Side], recipe: Path, bundle: Path | None, cores: list[int]) -> None:
    """Build both, one after the other, or at once where each has cores of its own."""
    free = sorted(os.sched_getaffinity(0))
    running: list[tuple[Side, subprocess.Popen[bytes]]] = []
    for number, side in enumerate(sides):
        if cores:
            mine, free = free[: cores[number]], free[cores[number] :]
        else:
            mine = free
        process = side.start(recipe, bundle, set(mine))
        running.append((side, process))
        if not cores:
            process.wait()
    failed = [side for side, process in running if process.wait() != 0]
    if failed:
        raise SystemExit("\n".join(f"a build failed: see {side.events}" for side in failed))


def tell(side: Side) -> float:
    """Say what a build took; its CPU-seconds."""
    lines = side.timelines()
    cpu = sum(line.cpu_seconds for line in lines)
    longest = max(lines, key=lambda line: line.seconds)
    print(
        f"{side.name}: {sum(len(line.bars) for line in lines)} compiles and links, {cpu:.0f} CPU-s;"
        f" {longest.cores} cores busy {longest.busy:.0%} of {longest.seconds:.0f} s,"
        f" at most {longest.peak / 2**30:.1f} GiB at once; verified: {side.verified()}"
    )
    return cpu


def main() -> int:
    """Build both ways, compare, print the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--cores", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--tests", nargs="*", default=TESTS)
    given = parser.parse_args()
    work = given.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    stock, ours = Side("stock", ("--no-accel",), work), Side("ours", (), work)
    began = time.monotonic()
    build([stock, ours], given.recipe, given.bundle, given.cores or [])
    print(f"both built after {time.monotonic() - began:.0f} s", flush=True)
    theirs, mine = tell(stock), tell(ours)
    print(f"ours / stock = {mine / theirs:.3f}", flush=True)
    place = work / "compared"
    differ = compare(stock.wheel(), ours.wheel(), place, stock.tree(), given.tests)
    print("the same" if not differ else f"{differ} differences")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
