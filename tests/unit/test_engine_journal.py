"""The journal remembers every run, and says what became of it."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchsmith.engine import events
from torchsmith.engine.journal import Journal
from torchsmith.errors import TorchsmithError

pytestmark = pytest.mark.unit


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.sqlite")


def test_a_run_is_told_as_it_was(journal: Journal) -> None:
    run = journal.begin("plan", "recipe.toml", "8 cores")
    journal.step(run, "a", "waiting", key="k", title="A")
    journal.step(run, "a", "running", key="k", title="A", log="a.log")
    journal.step(run, "a", "done", key="k", title="A", cpu_seconds=1.5, peak_rss=7)
    journal.step(run, "b", "failed", key="l", title="B", error="no")
    journal.end(run, "failed", "B: no")
    record = journal.run(run)
    assert record is not None
    assert (record.plan, record.recipe, record.host) == ("plan", "recipe.toml", "8 cores")
    assert (record.status, record.error) == ("failed", "B: no")
    first, second = journal.steps(run)
    assert (first.status, first.cpu_seconds, first.peak_rss, first.log) == ("done", 1.5, 7, "a.log")
    assert first.started is not None
    assert first.ended is not None
    assert (second.status, second.error) == ("failed", "no")
    assert journal.run("nobody") is None


def test_a_run_whose_process_is_gone_was_interrupted(journal: Journal, tmp_path: Path) -> None:
    run = journal.begin("plan")
    journal.step(run, "a", "running")
    assert journal.runs()[0].status == "running"
    # The same number, another process: what a reused process id looks like.
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("UPDATE runs SET born = 'earlier'")
    assert journal.runs()[0].status == "interrupted"
    assert journal.steps(run)[0].status == "interrupted"


def test_events_are_only_ever_added(journal: Journal, tmp_path: Path) -> None:
    run = journal.begin("plan")
    journal.add(run, events.Warned(message="careful"))
    journal.add(run, events.StepLine(step="a", text="a line is in the log"))
    assert [event["message"] for event in journal.events(run)] == ["careful"]
    with (
        sqlite3.connect(tmp_path / "journal.sqlite") as database,
        pytest.raises(sqlite3.IntegrityError),
    ):
        database.execute("UPDATE events SET content = ''")


def test_runs_of_one_second_are_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    runs = []
    for _ in range(50):
        runs.append(journal.begin("plan"))
        time.sleep(0.001)
    assert runs == sorted(runs)


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> str:
        journal = Journal(tmp_path / "journal.sqlite")
        run = journal.begin(f"plan {number}")
        for step in "abcde":
            journal.step(run, step, "done")
        journal.end(run, "done")
        journal.close()
        return run

    with ThreadPoolExecutor(8) as pool:
        runs = set(pool.map(write, range(16)))
    journal = Journal(tmp_path / "journal.sqlite")
    assert {run.id for run in journal.runs()} == runs
    assert all(len(journal.steps(run)) == 5 for run in runs)


def test_a_journal_of_a_newer_torchsmith_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(TorchsmithError, match="newer"):
        Journal(path)


def test_progress_is_read_from_ninjas_lines() -> None:
    clock = iter([0.0, 10.0, 20.0, 30.0])
    progress = events.Progress("compile", lambda: next(clock))
    assert progress.read("-- Configuring done") is None
    first = progress.read("[1/41] Building CXX object a.o")
    assert first is not None
    assert (first.done, first.total, first.what, first.rate) == (
        1,
        41,
        "Building CXX object a.o",
        None,
    )
    second = progress.read("[21/41] Building CXX object b.o")
    assert second is not None
    assert (second.rate, second.seconds_left) == (2.0, 10.0)
    again = progress.read("[1/5] Linking")
    assert again is not None
    assert again.rate is None
    assert progress.read("[7/5] nonsense") is None


def test_time_left_is_as_expected_first_and_as_it_took_at_last() -> None:
    # Twice as slow as expected, half of it for the heavier third of the files.
    times = {0: 0.0, 1: 2.0, 37: 100.0, 60: 150.0, 100: 200.0}
    clock = iter([0.0, *times.values()])
    progress = events.Progress("compile", lambda: next(clock), expected=100.0)
    told = [progress.read(f"[{done}/100] heavy ones first") for done in times]
    assert [round(item.seconds_left or 0) for item in told if item] == [100, 99, 100, 51, 0]
