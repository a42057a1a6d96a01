"""Kill the build of torch itself at random moments, go on each time, and compare the wheels.

    python -m benchmarks.kill_torch recipe.toml --store STORE --seed 7

Builds a recipe through `torchsmith build`, undisturbed; then a second time in a tree of its own,
where it gets SIGKILL, with everything it started, at random moments of torch's compilation, and is
then left to finish. The compiler cache makes the second shorter. What ninja had finished at a kill
must not have been made again, and the two wheels must be the same, byte for byte.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kill_and_resume import BenchmarkError, kill_all, read_events

from torchsmith.engine.store import Store


@dataclass
class Bench:
    """A recipe, the store it is built in and where the events of each run go."""

    recipe: Path
    store: Path
    logs: Path
    step: str
    runs: int = 0

    @property
    def variant(self) -> str:
        """The name the recipe's one build has."""
        return self.step.removeprefix("compile-torch-")

    def start(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the build in a session of its own, its events in a file."""
        self.runs += 1
        events = self.logs / f"run-{self.runs}.jsonl"
        command = [sys.executable, "-m", "torchsmith", "build", str(self.recipe), "--json"]
        with events.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--store", str(self.store)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return process, events

    def tree(self) -> Path:
        """Where torch is compiled."""
        (found,) = self.store.glob(f"work/*/build/{self.variant}/torch/build")
        return found

    def made(self) -> dict[str, int]:
        """What ninja knows to be made, each with the moment it was last written."""
        log = self.tree() / ".ninja_log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        names = {line.split("\t")[3] for line in lines if line.count("\t") >= 4}
        objects = (name for name in names if name.endswith(".o"))
        return {
            name: (self.tree() / name).stat().st_mtime_ns
            for name in objects
            if (self.tree() / name).exists()
        }

    def finish(self) -> float:
        """Build to the end; the seconds it took."""
        began = time.monotonic()
        process, events = self.start()
        if process.wait() != 0:
            raise BenchmarkError(f"the build failed: see {events}")
        return time.monotonic() - began

    def wheel(self) -> str:
        """The SHA-256 of the wheel that was made."""
        (path,) = self.store.glob(f"work/*/dist/{self.variant}/torch-*.whl")
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def forget(self) -> None:
        """Make it as if torch had never been compiled here; what compilers said stays cached."""
        store = Store(self.store)
        for entry in list(store.entries()):
            if entry.step in (self.step, f"configure-torch-{self.variant}"):
                store.remove(entry.key)
        for folder in self.store.glob(f"work/*/build/{self.variant}"):
            shutil.rmtree(folder)
        for folder in self.store.glob(f"work/*/dist/{self.variant}"):
            shutil.rmtree(folder)


def compiling(events: Path, step: str) -> bool:
    """Whether a run has come to the compilation and made something there."""
    return any(
        event.get("event") == "step-progress" and event.get("step") == step
        for event in read_events(events)
    )


def killed(bench: Bench, seconds: float) -> dict[str, int]:
    """Build, kill so many seconds into the compilation; what was made by then."""
    process, events = bench.start()
    while not compiling(events, bench.step):
        if process.poll() is not None:
            raise BenchmarkError(f"the build ended before it was killed: see {events}")
        time.sleep(1)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        count = kill_all(process)
    else:
        raise BenchmarkError(f"the build ended before it was killed: see {events}")
    made = bench.made()
    print(
        f"killed {seconds:.1f} s into it: {count} processes, {len(made)} objects made", flush=True
    )
    return made


def run(bench: Bench, seed: int, kills: int, longest: float) -> None:
    """Do all of it; raises where something is not as it should be."""
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    print(f"undisturbed: {bench.finish():.0f} s", flush=True)
    first = bench.wheel()
    bench.forget()
    before = [killed(bench, chance.uniform(1, longest)) for _ in range(kills)]
    seconds = bench.finish()
    after, second = bench.made(), bench.wheel()
    print(f"finished {seconds:.0f} s after the last: {len(after)} objects", flush=True)
    again = {name for made in before for name, when in made.items() if after.get(name) != when}
    if again:
        raise BenchmarkError(f"made, and made again: {', '.join(sorted(again)[:5])}")
    print(f"none of the {len(before[-1])} objects made by the last kill was made again", flush=True)
    if first != second:
        raise BenchmarkError(f"the wheels differ: {first[:12]} and {second[:12]}")
    print(f"the same wheel, byte for byte: sha256 {first[:12]}", flush=True)


def main() -> int:
    """Read the arguments, run, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--variant", default="torch", help="the recipe's name")
    parser.add_argument("--logs", type=Path, help="a folder for the events of each run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--longest", type=float, default=300, help="seconds between two kills")
    given = parser.parse_args()
    logs = given.logs or Path(f"kill-torch-{os.getpid()}")
    logs.mkdir(parents=True, exist_ok=True)
    bench = Bench(given.recipe, given.store.absolute(), logs, f"compile-torch-{given.variant}")
    try:
        run(bench, given.seed, given.kills, given.longest)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
