"""What watching costs: a build that writes 2,000 lines a second, and 50 readers of it.

    python benchmarks/portal.py [--readers 50] [--rate 2000] [--rounds 40] [--apart]
    python benchmarks/portal.py --idle [--rounds 3]
    python benchmarks/portal.py --pages

One run of the engine writes numbered lines all the time and compiles C++ files on all cores. Blocks
of compiles are watched, or not, in turns and in an order drawn anew each round: alone, alone again,
watched. The slowdown is what watched / alone has in common over the rounds, with its interval;
alone again / alone says what this machine's noise makes of no change at all. Readers come back
where they were, as a browser does, so each must get every line of the build once and in order.

The portal and its readers share the cores with the build here; readers have machines of their own
elsewhere. With --apart they have the last core, and nothing else has it. What the portal itself
took of all cores is the most that it can slow a build; with --idle nothing is compiled and that
alone is measured, in a minute and on a busy machine, too.

With --pages: how long each page takes with 10,000 builds, 10,000 jobs and a log of 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from torchsmith.bench.verdicts import change
from torchsmith.engine.journal import Journal
from torchsmith.jobs.client import Status
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Intent, Submissions

# Writes lines all the time; compiles a block when it reads a line, and answers with what that took.
STEP = """
import json, os, resource, subprocess, sys, threading, time
rate, cores, folder, idle = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
writing = True
def write():
    began, number, turn = time.perf_counter(), 0, 0
    while writing:
        end = number + rate // 20
        os.write(1, b"".join(b"line %d [17/1118] g++ -O2 -c aten/src/ATen/native/File.cpp\\n" % n
                             for n in range(number, end)))
        number, turn = end, turn + 1
        time.sleep(max(0.0, began + turn / 20 - time.perf_counter()))
writer = threading.Thread(target=write, daemon=True)
writer.start()
with open(folder + "/orders") as orders, open(folder + "/answers", "w") as answers:
    for units in map(int, orders):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        at = time.perf_counter()
        for _ in range(units):
            words = ["g++", "-std=c++17", "-O1", "-c", folder + "/unit.cpp", "-o"]
            words = ["sh", "-c", "sleep 2"] if idle == "idle" else words
            both = [subprocess.Popen([*words, f"{folder}/{n}.o"]) for n in range(cores)]
            assert not any([one.wait() for one in both])
        wall = time.perf_counter() - at
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps([wall, cpu]), file=answers, flush=True)
writing = False
writer.join()
print("the end", flush=True)
"""
UNIT = """
#include <algorithm>
#include <map>
#include <string>
#include <vector>
std::map<std::string, std::vector<int>> found(const std::vector<std::string> &words) {
  std::map<std::string, std::vector<int>> all;
  for (auto &word : words) all[word].push_back(int(word.size()));
  for (auto &[word, places] : all) std::sort(places.begin(), places.end());
  return all;
}
"""
RUN = """
import sys
from pathlib import Path
from msgspec.structs import replace
from torchsmith.engine.build import build
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan, Step
folder, rate, cores, idle = Path(sys.argv[1]), *sys.argv[2:]
command = f"python3 {folder}/step.py {rate} {cores} {folder} {idle}; touch out"
made = Step(id="lines", kind="fetch", title="Write lines", commands=(command,), outputs=("out",))
made = replace(made, key="1" * 64)
build(Plan("lines", (), (made,)), Store(folder / "store"), project=folder)
"""
UNITS = 3


@lru_cache(maxsize=256)
def numbers(frame: bytes) -> tuple[int, int, int, bool]:
    """The first and last line of a message of the log, the place behind it, whether it is whole."""
    name, place, data = frame.split(b"\n", 2)
    assert name == b"event: log"
    text = json.loads(data.removeprefix(b"data: "))["text"]
    lines = [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]
    if not lines:
        return -1, -1, int(place[4:]), True
    whole = lines == list(range(lines[0], lines[-1] + 1))
    return lines[0], lines[-1], int(place[4:]), whole


class Reader:
    """One reader: what a browser does with a live page, without drawing it."""

    def __init__(self) -> None:
        self.expected = 0
        self.place = 0
        self.whole = True
        self.over = False
        self._left = b""
        self._body = b""

    def come(self, address: str, run: str) -> socket.socket:
        """Ask for all from where it was."""
        self._left = self._body = b""
        where = urlsplit(address)
        found = socket.create_connection((where.hostname, where.port))
        words = f"GET /build/live?run={run}&step=lines&start={self.place} HTTP/1.1"
        found.sendall(f"{words}\r\nHost: {where.netloc}\r\n\r\n".encode())
        found.setblocking(False)
        return found

    def heed(self, content: bytes) -> None:
        """Take what came: chunks, and the messages in them."""
        self._left += content
        if self._left.startswith(b"HTTP"):
            head, blank, rest = self._left.partition(b"\r\n\r\n")
            if not blank:
                return
            assert head.startswith(b"HTTP/1.1 200"), head
            self._left = rest
        while (end := self._left.find(b"\r\n")) >= 0:
            length = int(self._left[:end], 16)
            if len(self._left) < end + length + 4:
                return
            self._body += self._left[end + 2 : end + 2 + length]
            self._left = self._left[end + 4 + length :]
        *frames, self._body = self._body.split(b"\n\n")
        for frame in frames:
            if frame.startswith(b"event: log"):
                first, last, self.place, whole = numbers(frame)
                self.whole = self.whole and whole and first in (self.expected, -1)
                self.expected = max(self.expected, last + 1)
            self.over = self.over or frame.startswith(b"event: over")


class Readers:
    """All readers, in a thread of their own."""

    def __init__(self, address: str, run: str, count: int) -> None:
        self.all = [Reader() for _ in range(count)]
        self._address, self._run = address, run
        self._leave = threading.Event()
        self._thread = threading.Thread()

    def come(self) -> None:
        """All of them, at once."""
        self._leave.clear()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def settle(self, log: Path) -> None:
        """Wait until all have what was written before they came; that is not measured."""
        size = log.stat().st_size
        while min(reader.place for reader in self.all) < size:
            time.sleep(0.1)
        time.sleep(1)

    def go(self) -> None:
        """All of them away."""
        self._leave.set()
        self._thread.join()

    def _read(self) -> None:
        with selectors.DefaultSelector() as ready:
            for reader in self.all:
                ready.register(reader.come(self._address, self._run), selectors.EVENT_READ, reader)
            while ready.get_map() and not self._leave.is_set():
                for key, _ in ready.select(0.5):
                    assert isinstance(key.fileobj, socket.socket)
                    with suppress(BlockingIOError):
                        content = key.fileobj.recv(1 << 20)
                        key.data.heed(content)
                        if not content or key.data.over:
                            ready.unregister(key.fileobj)
                            key.fileobj.close()
            for key in list(ready.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def watch(folder: Path, options: argparse.Namespace) -> bool:
    """One build, watched by turns; whether nobody missed a line."""
    every = sorted(os.sched_getaffinity(0))
    shared = every[:-1] if options.apart else every
    cores = len(shared)
    # What is started has the cores of who starts it.
    os.sched_setaffinity(0, shared)
    (folder / "step.py").write_text(STEP)
    (folder / "unit.cpp").write_text(UNIT)
    for name in ("orders", "answers"):
        os.mkfifo(folder / name)
    portal, address = started(folder)
    build = subprocess.Popen(
        [
            *(sys.executable, "-c", RUN, folder, str(options.rate), str(cores)),
            "idle" if options.idle else "busy",
        ],
        stdout=subprocess.DEVNULL,
    )
    if options.apart:
        os.sched_setaffinity(0, every[-1:])
    drawn = random.Random(options.rounds)
    took: dict[str, list[tuple[float, float]]] = {"alone": [], "again": [], "watched": []}
    portal_cpu = watched_s = own_cpu = 0.0
    with (folder / "orders").open("w") as orders, (folder / "answers").open() as answers:

        def block() -> tuple[float, float]:
            print(UNITS, file=orders, flush=True)
            # Nothing comes where a compile failed.
            wall, cpu = json.loads(answers.readline() or "[]")
            return wall, cpu

        (run,) = (path.name for path in (folder / "store/logs").glob("*-*-*"))
        readers = Readers(address, run, options.readers)
        block()
        (log,) = (folder / "store/logs" / run).glob("*.log")
        for _ in range(options.rounds):
            for kind in drawn.sample(sorted(took), len(took)):
                if kind != "watched":
                    took[kind].append(block())
                    continue
                readers.come()
                readers.settle(log)
                before, own = cpu_seconds(portal.pid), time.process_time()
                took[kind].append(block())
                portal_cpu += cpu_seconds(portal.pid) - before
                own_cpu += time.process_time() - own
                watched_s += took[kind][-1][0]
                readers.go()
        readers.come()
        readers.settle(log)
    assert build.wait() == 0
    deadline = time.monotonic() + 60
    while not all(reader.over for reader in readers.all) and time.monotonic() < deadline:
        time.sleep(0.1)
    readers.go()
    portal.terminate()
    wanted = sum(line.startswith("line ") for line in log.read_text().splitlines())
    lost = sum(not item.whole or item.expected != wanted for item in readers.all)
    print(f"{options.readers} readers of {wanted:,} lines at {options.rate:,} a second")
    print(f"readers that missed a line, or had one twice: {lost}")
    for number, words in () if options.idle else ((0, "by the clock"), (1, "in CPU time")):
        for kind, name in (("watched", "watched / alone"), ("again", "alone again / alone")):
            alone, other = ([one[number] for one in took[side]] for side in ("alone", kind))
            print(f"{name} {words}: {change(alone, other)}")
    print(f"portal: {portal_cpu / watched_s:.2%} of a core", end=", ")
    print(f"{portal_cpu / watched_s / cores:.2%} of the {cores} here", end="; ")
    print(f"the {options.readers} readers of this program: {own_cpu / watched_s:.2%} of a core")
    return lost == 0


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


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.pages:
            pages(Path(name))
            return 0
        return 0 if watch(Path(name), options) else 1


if __name__ == "__main__":
    sys.exit(main())
