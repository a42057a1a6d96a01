"""What watching costs: a build that writes 2,000 lines a second, and 50 readers of it.

    python benchmarks/portal.py [--readers 50] [--rate 2000] [--seconds 20] [--rounds 3]
    python benchmarks/portal.py --pages

A real run of the engine writes numbered lines and computes in between. It is timed alone and with
a portal and its readers, in turns. Every reader must get every line once, in order. The slowdown is
the ratio of the medians of what computing took, by the clock and in CPU time: beside other work on
the machine only the second says something.

With --pages: how long each page takes with 10,000 builds, 10,000 jobs and a log of 200 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import httpx

from torchsmith.engine.journal import Journal
from torchsmith.jobs.client import Status
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Intent, Submissions

# As a compiler: work, and now and then lines.
STEP = """
import sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
began = time.perf_counter(); number = 0; busy = used = 0.0
for turn in range(int(seconds * 20)):
    for _ in range(rate // 20):
        print(f"line {number}"); number += 1
    sys.stdout.flush()
    at, cpu = time.perf_counter(), time.process_time()
    total = 0
    for value in range(150_000):
        total += value * value
    busy += time.perf_counter() - at
    used += time.process_time() - cpu
    ahead = began + (turn + 1) / 20 - time.perf_counter()
    time.sleep(max(0.0, ahead))
print(f"busy {busy:.4f} {used:.4f}")
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


def started(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A portal and its address."""
    portal = subprocess.Popen(
        [sys.executable, "-m", "torchsmith", "portal", "--quiet", "--port", "0"],
        env={**os.environ, "TORCHSMITH_STORE": str(folder / "store")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert portal.stdout is not None
    return portal, portal.stdout.readline().removeprefix("portal at ").strip()


def one(
    folder: Path, options: argparse.Namespace, number: int, *, watched: bool
) -> dict[str, float]:
    """One build, alone or watched."""
    known = {path.name for path in (folder / "store/logs").glob("*-*-*")}
    words = [str(options.rate), str(options.seconds), f"{number:064x}"]
    portal, address = started(folder) if watched else (None, "")
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
    busy, cpu = map(float, log.read_text().rpartition("busy ")[2].split())
    wanted = options.rate // 20 * int(options.seconds * 20)
    lost = sum(count != wanted or not whole for count, whole in answers)
    return {"busy": busy, "cpu": cpu, "lost": lost, "portal": used, "lines": wanted}


def fill(folder: Path) -> str:
    """A store with 10,000 builds and jobs; the id of the build whose log has 200 MB."""
    root = folder / "store"
    with closing(Journal(root / "journal.db")) as journal, closing(Submissions(root)) as jobs:
        run = journal.begin("long")
        intent = Intent("job", "local", "", "", folder, {"main": 1})
        jobs.seen(jobs.intend(intent).id, Status(State.SUCCEEDED))
        log = root / "logs" / run / "compile.log"
        log.parent.mkdir(parents=True)
        lines = [f"[{n}/9999] g++ -O2 -c file{n}.cpp -o file{n}.o\n" for n in range(9999)]
        text = "".join(lines).encode()
        with log.open("wb") as file:
            while file.tell() < 200_000_000:
                file.write(text)
            file.write(b"c++: fatal error: Killed signal terminated program cc1plus\n")
        journal.step(run, "compile", "failed", title="Compile", log=str(log), error="it failed")
        journal.end(run, "failed", "it failed")
    for table, name in (("runs", "journal.db"), ("submissions", "jobs.db")):
        with closing(sqlite3.connect(root / name)) as database:
            database.execute(f"CREATE TEMP TABLE one AS SELECT * FROM {table}")
            token = ", token = ?1" if table == "submissions" else ""
            for number in range(9_999):
                database.execute(f"UPDATE one SET id = ?1{token}", (f"x{number:05}",))
                database.execute(f"INSERT INTO {table} SELECT * FROM one")
            database.commit()
    return run


def pages(folder: Path) -> None:
    """Time each page: the first time, and the best of five after it."""
    run = fill(folder)
    portal, address = started(folder)
    with httpx.Client(base_url=address, timeout=600) as client:
        for path in (
            *("/", "/builds", "/builds?from=9950", "/jobs", "/jobs?from=9950"),
            *(f"/build?run={run}", f"/build?run={run}&before=100000000"),
            *(f"/build/known?run={run}&step=compile", "/recipes", "/doctor"),
        ):
            times = []
            for _ in range(6):
                at = time.perf_counter()
                answer = client.get(path)
                times.append(time.perf_counter() - at)
                assert answer.status_code == 200, answer.text
            first, best = times[0] * 1000, min(times[1:]) * 1000
            size = len(answer.content) >> 10
            print(f"{first:8.0f} ms first {best:7.0f} ms best {size:5} KiB  {path}", flush=True)
    portal.terminate()


def main() -> None:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    if options.pages:
        with tempfile.TemporaryDirectory() as name:
            pages(Path(name))
        return
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
    for kind, words in (("busy", "by the clock"), ("cpu", "in CPU time")):
        before, after = (
            statistics.median(item[kind] for item in side) for side in (alone, watched)
        )
        change = f"{after / before - 1:+.1%}"
        print(f"the build computes {before:.2f} s alone, {after:.2f} s watched {words}: {change}")


if __name__ == "__main__":
    main()
