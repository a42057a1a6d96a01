"""A full disk, a real compiler, a real ninja: the engine with what it meets in life."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torchsmith.engine import Event, Journal, Stop, Store, events, run_plan
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes where one can be mounted, else a limit on the size of files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEGABYTE, limits[1]))
    try:
        yield disk
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_store_without_room_stays_as_it_was(small_disk: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    with (work / "src/a").open("wb") as file:
        # Sparse where file sizes are limited: it only has to be too big.
        for _ in range(3):
            subprocess.run(["head", "-c", str(MEGABYTE), "/dev/zero"], stdout=file, check=False)
    step = BIG.steps[0]
    store = Store(small_disk / "store")
    if (work / "src/a").stat().st_size < 3 * MEGABYTE:
        pytest.fail("this machine can neither mount a small disk nor hold a big file")
    with pytest.raises(DiskFullError) as error:
        store.put(step.key, step, work)
    assert error.value.needed == 3 * MEGABYTE
    assert str(small_disk) in str(error.value)
    assert store.get(step.key, work) is None
    assert list(store.entries()) == []


def test_room_that_runs_out_on_the_way_leaves_nothing_half(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when another program fills the disk after we looked.
    monkeypatch.setattr("torchsmith.engine.store.check_room", lambda *_: None)
    work = tmp_path / "work"
    (work / "src").mkdir(parents=True)
    for name in range(30):
        (work / f"src/{name}").write_bytes(os.urandom(100_000))
    step = BIG.steps[0]
    store = Store(small_disk / "store")
    with pytest.raises(DiskFullError):
        store.put(step.key, step, work)
    assert list(store.entries()) == []
    assert list((store.root / "incoming").iterdir()) == []


def test_a_run_without_room_stops_cleanly_and_goes_on_with_room(
    small_disk: Path, tmp_path: Path
) -> None:
    seen: list[Event] = []
    journal = Journal(tmp_path / "journal.sqlite")
    with pytest.raises(DiskFullError) as error:
        run_plan(
            BIG, Store(tmp_path / "store"), journal, work=small_disk / "work", on_event=seen.append
        )
    assert error.value.exit_code == 7
    assert journal.runs()[0].status == "failed"
    assert isinstance(seen[-1], events.RunFinished)
    result = run_plan(BIG, Store(tmp_path / "store"), journal, work=tmp_path / "roomy")
    assert result.steps == {"fetch": "done"}


def test_a_journal_and_logs_without_room_are_told_as_that(small_disk: Path, tmp_path: Path) -> None:
    talk = plan_of(Step("talk", "fetch", "Talk", commands=("head -c 4000000 /dev/zero | base64",)))
    store = Store(small_disk / "store")
    with pytest.raises(DiskFullError):
        run_plan(talk, store, Journal(store.root / "journal.sqlite"), work=tmp_path / "work")
    assert list(store.entries()) == []


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
