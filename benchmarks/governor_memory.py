"""Build a memory-hungry C++ project where memory is short, with and without the governor.

    python benchmarks/governor_memory.py            # prints the comparison

A project of a few heavy files (about 1.1 GiB in the compiler each) among light ones is built
inside a memory control group: by plain Ninja, then governed with nothing known, then governed
with what the run before taught. Where no control group can be made, a watchman that kills the
largest compiler once the build's processes together pass the limit stands in for the kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from torchsmith.host.limits import control_groups
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event
from torchsmith.toolchain.memory_book import GUESSES, MemoryBook
from torchsmith.toolchain.processes import process_tree

MIB = 1 << 20
GIB = 1 << 30
# Concatenated string literals: cc1plus takes about 4.3 MiB for each MiB of text, quickly. The
# loop then keeps it alive for a second or two.
_LITERAL_MIB_OF_HEAVY = 256
_SOURCE = """\
#define K {literal}
#define K16 K K K K K K K K K K K K K K K K
#define M K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 \\
  K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 \\
  K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 \\
  K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16 K16
constexpr unsigned long size = sizeof({words});
constexpr int spin(int n) {{
  int s = 0;
  for (int i = 0; i < n; ++i) s = (s * 7 + i) % 9973;
  return s;
}}
constexpr unsigned long value = spin({spin}) + size;
unsigned long {name}() {{ return value; }}
"""
_CMAKE = """\
cmake_minimum_required(VERSION 3.21)
project(heavy LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
add_library(everything STATIC {files})
target_compile_options(everything PRIVATE
  -fconstexpr-loop-limit=100000000 -fconstexpr-ops-limit=1000000000)
"""


def source_of(name: str, mib: int, spin: int) -> str:
    """A C++ file for which the compiler takes about 4.3 times so many MiB."""
    literal = '"' + "x" * 1023 + 'y"'
    return _SOURCE.format(literal=literal, words=" ".join(["M"] * mib), spin=spin, name=name)


def write_project(folder: Path, heavy: int, light: int) -> None:
    """Write the sources and the CMakeLists.txt."""
    folder.mkdir(parents=True)
    names = [f"heavy_{number}" for number in range(heavy)]
    names += [f"light_{number}" for number in range(light)]
    for name in names:
        mib = _LITERAL_MIB_OF_HEAVY if name.startswith("heavy") else 1
        spin = 200_000 if name.startswith("heavy") else 80_000
        (folder / f"{name}.cpp").write_text(source_of(name, mib, spin))
    files = " ".join(f"{name}.cpp" for name in names)
    (folder / "CMakeLists.txt").write_text(_CMAKE.format(files=files))


@dataclass
class Confinement:
    """A limit on the memory of everything started through it."""

    limit: int
    group: Path | None
    kills: int = 0
    _processes: list[int] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What enforces the limit."""
        return "a memory control group" if self.group else "a watchman"

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command within the limit, and return what it said."""
        if self.group is not None:
            entry = f'echo $$ > {self.group}/cgroup.procs && exec "$@"'
            command = ["/bin/sh", "-c", entry, "sh", *command]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
        self._processes.append(process.pid)
        said, _ = process.communicate()
        self._processes.remove(process.pid)
        return subprocess.CompletedProcess(command, process.returncode, said)

    def watch(self, ended: threading.Event) -> None:
        """Do the kernel's work where there is no group."""
        while not ended.wait(0.02):
            held = {pid: _anonymous(pid) for top in self._processes for pid in process_tree(top)}
            if sum(held.values()) > self.limit:
                self.kills += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(max(held, key=lambda pid: held[pid]), signal.SIGKILL)


def _anonymous(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    return 0


@contextlib.contextmanager
def confined(limit: int) -> Iterator[Confinement]:
    """A place where no more than `limit` bytes can be used, taken down at the end."""
    group = _new_group(limit)
    place = Confinement(limit, group)
    ended = threading.Event()
    watchman = threading.Thread(target=place.watch, args=(ended,))
    if group is None:
        watchman.start()
    try:
        yield place
    finally:
        ended.set()
        if group is None:
            watchman.join()
        else:
            _remove(group)


def _new_group(limit: int) -> Path | None:
    for parent in control_groups("memory"):
        group = parent / f"torchsmith-{os.getpid()}-{time.monotonic_ns()}"
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                group.mkdir(exist_ok=True)
                if (group / name).exists():
                    (group / name).write_text(str(limit))
                    with contextlib.suppress(OSError):
                        (group / "memory.swap.max").write_text("0")
                    return group
            except OSError:
                break
        with contextlib.suppress(OSError):
            group.rmdir()
    return None


def _remove(group: Path) -> None:
    # The kernel needs a moment after the last process has gone.
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def governed_build(source: Path, build: Path, book: Path, cores: int, budget: int | None) -> int:
    """Configure and build in this process's limits, and print every event as a JSON line."""
    events: list[Event] = []
    with (
        mock.patch.dict(GUESSES, {"c++": 250 * MIB}),
        MemoryBook(book, "heavy") as learned,
        Governor(
            budget=budget,
            cores=cores,
            book=learned,
            roots=[source, build],
            listener=events.append,
        ) as governor,
    ):
        environment = {**os.environ, **governor.environment()}
        configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build)]
        subprocess.run(configure, env=environment, check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(["ninja", "-C", str(build)], env=environment, check=False)
        print(json.dumps({"event": "Budget", "budget": governor.budget}))
    for event in events:
        print(json.dumps({"event": type(event).__name__, **dataclasses.asdict(event)}))
    return done.returncode


@dataclass(frozen=True)
class Outcome:
    """How a build went."""

    name: str
    status: int
    seconds: float
    said: str
    events: tuple[dict[str, Any], ...] = ()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event["event"] == kind]


def plain(place: Confinement, source: Path, build: Path, jobs: int) -> Outcome:
    """Build with Ninja as it is."""
    configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(build)]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    began = time.monotonic()
    done = place.run(["ninja", "-C", str(build), f"-j{jobs}"])
    return Outcome(f"plain ninja -j{jobs}", done.returncode, time.monotonic() - began, done.stdout)


def governed(
    place: Confinement, source: Path, build: Path, book: Path, cores: int, name: str = "governed"
) -> Outcome:
    """Build under the governor, all of it within the limit."""
    command = [sys.executable, __file__, "--inside", str(source), str(build), str(book)]
    command += [f"--cores={cores}"]
    if place.group is None:
        command += [f"--budget={place.limit * 95 // 100}"]
    began = time.monotonic()
    done = place.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"event"')]
    events = tuple(json.loads(line) for line in lines)
    return Outcome(name, done.returncode, time.monotonic() - began, done.stdout, events)


def main() -> int:
    """Compare, or be the build inside the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inside", nargs=3, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--limit-gib", type=float, default=4.0)
    parser.add_argument("--heavy", type=int, default=6)
    parser.add_argument("--light", type=int, default=12)
    chosen = parser.parse_args()
    if chosen.inside:
        source, build, book = chosen.inside
        return governed_build(source, build, book, chosen.cores, chosen.budget)
    with tempfile.TemporaryDirectory() as name, confined(int(chosen.limit_gib * GIB)) as place:
        folder = Path(name)
        write_project(folder / "source", chosen.heavy, chosen.light)
        print(
            f"{chosen.heavy} heavy and {chosen.light} light files; {chosen.limit_gib:g} GiB", end=""
        )
        print(f" held by {place.kind}; {chosen.cores} jobs at once")
        outcomes = [plain(place, folder / "source", folder / "plain", chosen.cores)]
        for run, title in (("first", "governed, nothing known"), ("second", "governed, learned")):
            outcomes.append(
                governed(
                    place, folder / "source", folder / run, folder / "book", chosen.cores, title
                )
            )
        for outcome in outcomes:
            print(_row(outcome))
    return 0 if all(outcome.status == 0 for outcome in outcomes[1:]) else 1


def _row(outcome: Outcome) -> str:
    verdict = "built" if outcome.status == 0 else "FAILED"
    if outcome.events:
        detail = f"{len(outcome.of('Retried'))} killed and compiled again alone"
        detail += f", {len(outcome.of('WaitingForMemory'))} waited for memory"
        detail += f", up to {max(event['running'] for event in outcome.of('Started'))} at once"
    else:
        detail = f"{len(re.findall('Killed', outcome.said))} compilers killed"
    return f"{outcome.name:26} {verdict:7} {outcome.seconds:6.1f} s  {detail}"


if __name__ == "__main__":
    sys.exit(main())
