"""The governor and its launcher with real processes, and the jobserver with real clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.test_jobserver import free_slots

from torchsmith.toolchain.admission_server import Jobserver
from torchsmith.toolchain.governor import Governor, launcher
from torchsmith.toolchain.governor_events import Event, Finished, GaveUp, Retried, Started
from torchsmith.toolchain.memory_book import MemoryBook

pytestmark = pytest.mark.integration


@pytest.fixture
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the governor puts its pipe and socket, seen to be empty afterwards."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def launch(governor: Governor | None, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(governor.environment() if governor else {})}
    return subprocess.run(
        [*launcher(), *command], env=environment, capture_output=True, text=True, check=False
    )


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("length", [60, 70, 75, 79, 90, 200])
def test_a_governor_can_be_reached_however_long_the_temporary_folders_name_is(
    length: int, own_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = own_temporary_folder / ("x" * (length - len(str(own_temporary_folder)) - 1))
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Governor(cores=1) as governor:
        assert launch(governor, "true").returncode == 0
    assert list(long.iterdir()) == []


def test_without_a_governor_the_launcher_is_the_compiler(tmp_path: Path) -> None:
    compiler = script(tmp_path, 'echo out "$@"; echo err >&2; exit 3')
    done = launch(None, compiler, "-c", "a b.c")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out -c a b.c\n", "err\n")


def test_a_compile_keeps_its_output_and_status(tmp_path: Path) -> None:
    events: list[Event] = []
    compiler = script(tmp_path, "echo out; echo 'a.c:1: error: no' >&2; exit 3")
    with Governor(listener=events.append) as governor:
        done = launch(governor, compiler, "-c", "a.c")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "a.c:1: error: no\n")
    assert [type(event) for event in events] == [Started, Finished]


def test_gcc_collects_garbage_late_where_there_is_memory_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int f() { return 1; }\n")
    command = ("g++", "-v", "-c", str(tmp_path / "a.cpp"), "-o", str(tmp_path / "a.o"))
    plenty, little = 64 << 30, 2 << 30
    for budget, late, expected in ((plenty, True, 2), (little, True, 0), (plenty, False, 0)):
        with Governor(budget=budget, cores=2, late_collection=late) as governor:
            done = launch(governor, *command)
        assert done.returncode == 0
        (ran,) = [
            line for line in done.stderr.splitlines() if "cc1plus" in line and " -quiet" in line
        ]
        assert ran.count("ggc-min-") == expected


def test_what_is_not_gcc_gets_no_option_of_gccs(tmp_path: Path) -> None:
    compiler = script(tmp_path, 'echo "$@"')
    with Governor(budget=64 << 30, cores=2, late_collection=True) as governor:
        done = launch(governor, compiler, "-c", "a.cpp")
    assert done.stdout == "-c a.cpp\n"


def test_a_missing_compiler_is_named() -> None:
    with Governor() as governor:
        done = launch(governor, "no-such-compiler", "-c", "a.c")
    assert done.returncode == 127
    assert "no-such-compiler: No such file" in done.stderr


def test_a_compile_is_measured_with_all_it_starts(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("#include <map>\nint f() { return 1; }\n")
    book = MemoryBook()
    events: list[Event] = []
    with Governor(book=book, roots=[tmp_path], listener=events.append) as governor:
        source, output = str(tmp_path / "a.cpp"), str(tmp_path / "a.o")
        assert launch(governor, "g++", "-c", source, "-o", output).returncode == 0
    assert (tmp_path / "a.o").exists()
    # The driver itself takes a few MB; the compiler proper, its child, takes tens.
    peak = book.percentile(1.0, "c++", folder=".")
    assert peak is not None
    assert peak > 20 << 20
    (found,) = [event for event in events if isinstance(event, Finished)]
    assert found.cpu_seconds > 0


def test_what_is_killed_once_succeeds_the_second_time(tmp_path: Path) -> None:
    events: list[Event] = []
    compiler = script(
        tmp_path, f"[ -e {tmp_path}/been ] && exit 0\n: > {tmp_path}/been\nkill -9 $$"
    )
    with Governor(listener=events.append) as governor:
        done = launch(governor, compiler, "-c", "a.c")
    assert (done.returncode, done.stderr) == (0, "")
    assert [type(event) for event in events] == [Started, Retried, Started, Finished]


def test_what_is_killed_every_time_fails_with_cause_and_cure(tmp_path: Path) -> None:
    events: list[Event] = []
    compiler = script(tmp_path, "echo part > a.o; kill -9 $$")
    with Governor(listener=events.append) as governor:
        environment = {**os.environ, **governor.environment()}
        done = subprocess.run(
            [*launcher(), compiler, "-c", "a.c", "-o", "a.o"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert isinstance(events[-1], GaveUp)
    assert "a.c: killed for memory 3 times" in events[-1].cause
    assert events[-1].cause in done.stderr
    assert events[-1].cure in done.stderr
    assert not (tmp_path / "a.o").exists()


def test_a_broken_display_is_told_after_the_build() -> None:
    def broken(event: Event) -> None:
        raise ValueError("no terminal")

    with pytest.raises(ValueError, match="no terminal"), Governor(listener=broken) as governor:
        assert launch(governor, "true").returncode == 0


def test_nothing_is_left_behind(own_temporary_folder: Path) -> None:
    with Governor() as governor:
        environment = {**os.environ, **governor.environment()}
        waiting = subprocess.Popen([*launcher(), "sleep", "1000"], env=environment)
        while not _children(waiting.pid):
            time.sleep(0.01)
        (child,) = _children(waiting.pid)
    assert waiting.wait(timeout=60) == 128 + signal.SIGTERM
    assert _ends(child)
    assert not list(own_temporary_folder.iterdir())


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(own_temporary_folder: Path, kind: signal.Signals) -> None:
    program = (
        "import os, subprocess\n"
        "from torchsmith.toolchain.governor import Governor, launcher\n"
        "with Governor() as governor:\n"
        "    environment = {**os.environ, **governor.environment()}\n"
        "    command = [*launcher(), 'sleep', '1000']\n"
        "    subprocess.run(command, env=environment, start_new_session=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    build = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while not (started := [pid for each in _children(build.pid) for pid in _children(each)]):
        time.sleep(0.01)
    build.send_signal(kind)
    assert build.wait(timeout=60) != 0
    assert _ends(started[0])
    assert not list(own_temporary_folder.iterdir())


def _ends(pid: int) -> bool:
    """Whether a process that was told to end does so: on a busy machine not at once."""
    until = time.monotonic() + 60
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not _alive(pid)


def _alive(pid: int) -> bool:
    """Whether it runs; one that nobody has asked about yet after its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


_JOB = "echo + >> log; sleep 0.2; echo - >> log"


def most_at_once(log: Path) -> int:
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    return most


def test_ninja_takes_its_jobs_from_the_jobserver(build_tools: None, tmp_path: Path) -> None:
    builds = "".join(f"build o{number}: job\n" for number in range(9))
    (tmp_path / "build.ninja").write_text(f"rule job\n  command = {_JOB}\n{builds}")
    with Jobserver(tmp_path / "jobs", 3) as jobserver:
        environment = {**os.environ, "MAKEFLAGS": jobserver.makeflags}
        subprocess.run(["ninja"], env=environment, cwd=tmp_path, check=True)
        assert free_slots(jobserver) == 2
    assert most_at_once(tmp_path / "log") == 3


def test_make_takes_its_jobs_from_the_jobserver_whatever_its_age(tmp_path: Path) -> None:
    names = " ".join(f"o{number}" for number in range(9))
    (tmp_path / "Makefile").write_text(f"all: {names}\n{names}:\n\t@{_JOB}\n")
    with Governor(cores=3) as governor:
        environment = {**os.environ, **governor.environment()}
        done = subprocess.run(
            ["make"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert most_at_once(tmp_path / "log") == 3


def test_the_launcher_is_the_same_in_every_run() -> None:
    commands = []
    for _ in range(2):
        with Governor() as governor:
            commands.append(governor.environment(cache=["ccache"])["CMAKE_CXX_COMPILER_LAUNCHER"])
    assert commands[0] == commands[1]
    assert re.search(r"launch\.py;ccache$", commands[0])
