"""What watching costs: a build that writes 2,000 lines a second, and 50 readers of it.

    python benchmarks/portal.py [--readers 50] [--rate 2000] [--seconds 20] [--rounds 3]

A real run of the engine writes numbered lines and computes in between. It is timed alone and with
a portal and its readers, in turns. Every reader must get every line once, in order. The slowdown is
the ratio of the medians of what computing took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

# As a compiler: work, and now and then lines.
STEP = """
import sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
began = time.perf_counter(); number = 0; busy = 0.0
for turn in range(int(seconds * 20)):
    for _ in range(rate // 20):
        print(f"line {number}"); number += 1
    sys.stdout.flush()
    at = time.perf_counter()
    total = 0
    for value in range(150_000):
        total += value * value
    busy += time.perf_counter() - at
    ahead = began + (turn + 1) / 20 - time.perf_counter()
    time.sleep(max(0.0, ahead))
print(f"busy {busy:.4f}")
"""
RUN = """
import sys
from pathlib import Path
from msgspec.structs import replace
from torchsmith.engine.build import build
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan, Step
folder, step, rate, seconds, key = Path(sys.argv[1]), *sys.argv[2:]
command = f"python3 {step} {rate} {seconds}; touch out"
made = Step(id="lines", kind="fetch", title="Write lines", commands=(command,), outputs=("out",))
made = replace(made, key=key)
build(Plan("lines", (), (made,)), Store(folder / "store"), project=folder)
"""


async def reader(client: httpx.AsyncClient, run: str) -> tuple[int, bool]:
    """How many lines came, and whether each came once and in order."""
    expected, whole = 0, True
    async with client.stream("GET", "/build/live", params={"run": run, "step": "lines"}) as answer:
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: ") and kind == "log":
                for said in json.loads(line[6:])["text"].splitlines():
                    if said.startswith("line "):
                        whole = whole and said == f"line {expected}"
                        expected += 1
    return expected, whole


async def watch(address: str, run: str, readers: int) -> list[tuple[int, bool]]:
    """All readers at once."""
    limits = httpx.Limits(max_connections=readers)
    async with httpx.AsyncClient(base_url=address, timeout=None, limits=limits) as client:
        return await asyncio.gather(*(reader(client, run) for _ in range(readers)))


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_id(folder: Path, known: set[str]) -> str:
    """The run that has begun."""
    while True:
        new = {path.name for path in (folder / "store/logs").glob("*-*-*")} - known
        if new:
            return new.pop()
        time.sleep(0.05)


def one(
    folder: Path, options: argparse.Namespace, number: int, *, watched: bool
) -> dict[str, float]:
    """One build, alone or watched."""
    known = {path.name for path in (folder / "store/logs").glob("*-*-*")}
    words = [str(options.rate), str(options.seconds), f"{number:064x}"]
    portal: subprocess.Popen[str] | None = None
    address = ""
    if watched:
        portal = subprocess.Popen(
            [sys.executable, "-m", "torchsmith", "portal", "--quiet", "--port", "0"],
            env={**os.environ, "TORCHSMITH_STORE": str(folder / "store")},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert portal.stdout is not None
        address = portal.stdout.readline().removeprefix("portal at ").strip()
    build = subprocess.Popen(
        [sys.executable, "-c", RUN, folder, folder / "step.py", *words],
        stdout=subprocess.DEVNULL,
    )
    run = run_id(folder, known)
    answers: list[tuple[int, bool]] = []
    used = 0.0
    if portal is not None:
        before = cpu_seconds(portal.pid)
        answers = asyncio.run(watch(address, run, options.readers))
        used = cpu_seconds(portal.pid) - before
        portal.terminate()
    assert build.wait() == 0
    (log,) = (folder / "store/logs" / run).glob("*.log")
    busy = float(log.read_text().rpartition("busy ")[2])
    wanted = options.rate // 20 * int(options.seconds * 20)
    lost = sum(count != wanted or not whole for count, whole in answers)
    return {"busy": busy, "lost": lost, "portal": used, "lines": wanted}


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "step.py").write_text(STEP)
        alone, watched = [], []
        for number in range(options.rounds):
            alone.append(one(folder, options, 2 * number + 1, watched=False))
            watched.append(one(folder, options, 2 * number + 2, watched=True))
    lines = int(watched[0]["lines"])
    lost = int(sum(item["lost"] for item in watched))
    print(f"{options.readers} readers of {lines:,} lines at {options.rate:,} a second")
    print(f"readers that missed a line, or had one twice: {lost}")
    used = statistics.median(item["portal"] for item in watched)
    print(f"portal: {used:.1f} CPU s in {options.seconds:.0f} s")
    before, after = (statistics.median(item["busy"] for item in side) for side in (alone, watched))
    print(
        f"the build computes {before:.2f} s alone, {after:.2f} s watched: {after / before - 1:+.1%}"
    )


if __name__ == "__main__":
    main()
