"""A full disk, a real compiler, a real ninja: the engine with what it meets in life."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine import events
from torchsmith.engine.events import Event
from torchsmith.engine.journal import Journal
from torchsmith.engine.process import Stop
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.errors import DiskFullError, InterruptedRunError, StepFailed
from torchsmith.plan.models import Plan, Step, step_key

pytestmark = pytest.mark.integration

MEGABYTE = 1_000_000


def plan_of(*steps: Step) -> Plan:
    keys: dict[str, str] = {}
    keyed = []
    for step in steps:
        keys[step.id] = step_key(step, keys, {})
        keyed.append(replace(step, key=keys[step.id]))
    return Plan("tiny", (), tuple(keyed))


BIG = plan_of(
    Step(
        "fetch",
        "fetch",
        "Fetch",
        commands=("mkdir -p src; head -c 3000000 /dev/urandom > src/a; echo b > src/b",),
        outputs=("src",),
    )
)


class SmallDisk:
    """A disk of two megabytes; where none can be mounted, a limit on the size of files."""

    def __init__(self, path: Path, *, mount: bool) -> None:
        self.path = path
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
        self._mounted = mount and subprocess.run(command, check=False).returncode == 0
        self.limit()

    def limit(self) -> None:
        if not self._mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEGABYTE, self._limits[1]))

    def lift(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)

    def close(self) -> None:
        self.lift()
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


@pytest.fixture
def big_work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    for number in range(10):
        (work / f"src/{number}").write_bytes(os.urandom(1000))
    (work / "src/big").write_bytes(os.urandom(3 * MEGABYTE))
    return work


@pytest.fixture(params=["limit", "mount"] if os.geteuid() == 0 else ["limit"])
def small_disk(
    tmp_path: Path, big_work: Path, request: pytest.FixtureRequest
) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk", mount=request.param == "mount")
    try:
        yield disk
    finally:
        disk.close()


def test_a_store_without_room_stays_as_it_was(small_disk: SmallDisk, big_work: Path) -> None:
    step = BIG.steps[0]
    store = Store(small_disk.path / "store")
    with pytest.raises(DiskFullError) as error:
        store.put(step.key, step, big_work)
    assert error.value.needed == 3 * MEGABYTE + 10_000
    assert str(small_disk.path) in str(error.value)
    assert store.get(step.key, big_work) is None
    assert list(store.entries()) == []


def test_room_that_runs_out_on_the_way_leaves_nothing_half(
    small_disk: SmallDisk, big_work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when another program fills the disk after we looked.
    monkeypatch.setattr("torchsmith.engine.store.check_room", lambda *_: None)
    step = BIG.steps[0]
    store = Store(small_disk.path / "store")
    with pytest.raises(DiskFullError):
        store.put(step.key, step, big_work)
    assert list(store.entries()) == []
    assert list((store.root / "incoming").iterdir()) == []


def test_a_result_without_room_to_go_is_not_half_given_back(
    small_disk: SmallDisk, big_work: Path, tmp_path: Path
) -> None:
    step = BIG.steps[0]
    store = Store(tmp_path / "store")
    small_disk.lift()
    entry = store.put(step.key, step, big_work)
    small_disk.limit()
    with pytest.raises(DiskFullError) as error:
        store.restore(entry, small_disk.path / "other")
    assert error.value.needed == entry.bytes
    assert not (small_disk.path / "other/src").exists()
    assert store.verify(step.key) == []


def test_a_run_without_room_stops_cleanly_and_goes_on_with_room(
    small_disk: SmallDisk, tmp_path: Path
) -> None:
    seen: list[Event] = []
    journal = Journal(tmp_path / "journal.sqlite")
    store = Store(tmp_path / "store")
    with pytest.raises(DiskFullError) as error:
        run_plan(BIG, store, journal, work=small_disk.path / "work", on_event=seen.append)
    assert error.value.exit_code == 7
    assert journal.runs()[0].status == "failed"
    assert isinstance(seen[-1], events.RunFinished)
    small_disk.lift()
    assert run_plan(BIG, store, journal, work=tmp_path / "roomy").steps == {"fetch": "done"}


def test_a_journal_and_logs_without_room_are_told_as_that(
    small_disk: SmallDisk, tmp_path: Path
) -> None:
    talk = plan_of(Step("talk", "fetch", "Talk", commands=("head -c 4000000 /dev/zero | base64",)))
    store = Store(small_disk.path / "store")
    with pytest.raises(DiskFullError):
        run_plan(talk, store, Journal(store.root / "journal.sqlite"), work=tmp_path / "quiet")
    assert list(store.entries()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk of few inodes")
def test_a_disk_without_inodes_is_told_as_that(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    options = "size=100m,nr_inodes=40"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
    many = Step("many", "compile", "Many", commands=("mkdir a; touch a/{1..100}",), outputs=("a",))
    try:
        store = Store(tmp_path / "store")
        with pytest.raises(DiskFullError) as error:
            run_plan(plan_of(many), store, Journal(tmp_path / "journal.db"), work=disk / "work")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert "MB free" in error.value.message
    assert "inodes free, one for each file" in error.value.message


def test_what_g_plus_plus_says_is_what_is_told(tmp_path: Path) -> None:
    assert shutil.which("g++"), "this test needs g++"
    source = (
        "#include <vector>\\n#include <string>\\nstruct A { int x; };\\n"
        "int main() {\\n  std::vector<A> v;\\n  std::string s = v.front();\\n"
        "  return undeclared;\\n}\\n"
    )
    step = Step(
        "compile",
        "compile",
        "Compile a",
        commands=(
            f"printf '{source}' > a.cpp",
            'for i in $(seq 500); do echo "[$i/501] Building CXX object x$i.o"; done',
            "g++ -Wall -c a.cpp -o a.o",
        ),
        outputs=("a.o",),
    )
    store = Store(tmp_path / "store")
    with pytest.raises(StepFailed) as error:
        run_plan(
            plan_of(step), store, Journal(store.root / "j.sqlite"), work=tmp_path / "work",
            environment={**os.environ, "LC_ALL": "de_DE.UTF-8", "LANGUAGE": "de"},
        )  # fmt: skip
    excerpt = error.value.excerpt
    assert len(excerpt) <= 15
    assert "In function" in excerpt[0]
    assert "a.cpp:6:" in excerpt[1]
    assert "error: conversion from" in excerpt[1]
    assert not any("Building CXX" in line for line in excerpt)


def test_a_stopped_ninja_goes_on_at_the_file_it_was_at(tmp_path: Path) -> None:
    ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert ninja, "this test needs ninja"
    source = tmp_path / "source"
    source.mkdir()
    rules = ["rule cc", "  command = sleep 0.02 && cp $in $out && echo $out >> ../made"]
    for number in range(20):
        (source / f"{number}.c").write_text(f"// {number}\n")
        rules.append(f"build {number}.o: cc {number}.c")
    (source / "build.ninja").write_text("\n".join(rules) + "\n")
    step = Step(
        "compile",
        "compile",
        "Compile",
        commands=(
            'if [ -z "${TORCHSMITH_RESUME:-}" ] || ! [ -d build ]; then rm -rf build build.part; '
            f"cp -a {source} build.part; mv build.part build; fi",
            f"cd build; {ninja} -j1; cat *.o > ../all",
        ),
        outputs=("all",),
    )
    store = Store(tmp_path / "store")
    journal = Journal(store.root / "journal.sqlite")
    stop = Stop()

    def stop_at_seven(event: Event) -> None:
        if isinstance(event, events.StepProgress) and event.done == 7:
            stop.request()

    with pytest.raises(InterruptedRunError):
        run_plan(
            plan_of(step), store, journal, work=tmp_path / "work", on_event=stop_at_seven, stop=stop
        )
    before = (tmp_path / "work/made").read_text().split()
    assert 7 <= len(before) < 20
    run_plan(plan_of(step), store, journal, work=tmp_path / "work")
    after = (tmp_path / "work/made").read_text().split()
    # Only the file that was being made when it stopped may be made twice.
    assert len(set(after)) == 20
    assert len(after) <= 21
