"""Before anything is run it is said what will be, and how long that takes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from torchsmith.cli.show_build import display
from torchsmith.engine import events
from torchsmith.engine.expected import Known, expectation, share_left
from torchsmith.engine.journal import Journal, StepRecord
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.errors import StepFailed
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Cost, Plan, Step

pytestmark = pytest.mark.unit


def compiling(*commands: str) -> Step:
    return Step(
        id="compile",
        kind="compile",
        title="Compile",
        commands=commands,
        outputs=("made",),
        cost=Cost(core_seconds=600, basis="estimated"),
    )


def record(status: str = "done", *, at: float = 0, took: float = 10, log: str = "") -> StepRecord:
    return StepRecord("r", "compile", "k", "Compile", status, at, at + took, None, None, log, "")


def test_the_first_time_the_facts_estimate_and_every_core_compiles() -> None:
    first = expectation(compiling(), 4, Known())
    assert (first.seconds, first.basis) == (150, "estimated")
    other = Step(id="f", kind="fetch", title="Fetch", cost=Cost(core_seconds=8, basis="a download"))
    assert expectation(other, 4, Known()).seconds == 8


def test_what_it_took_before_counts_more_than_an_estimate() -> None:
    known = Known(same=[record(took=33)], like=[record(took=99)])
    assert expectation(compiling(), 4, known).seconds == 33
    assert expectation(compiling(), 4, Known(like=[record(took=99)])).seconds == 99


def test_a_run_that_only_finished_another_is_no_measure_of_the_whole() -> None:
    known = Known(same=[record(at=100, took=2), record("interrupted", at=50)])
    assert expectation(compiling(), 4, known).seconds == 150


def test_of_a_stopped_compilation_only_the_rest_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_text("[1/200] c++ a\n[50/200] c++ b\n", encoding="utf-8")
    # Ninja counts anew, and only what was left.
    second.write_text("[100/150] c++ c\nnoise\n", encoding="utf-8")
    attempts = [
        record("interrupted", at=20, log=str(second)),
        record("interrupted", at=10, log=str(first)),
    ]
    assert share_left(attempts) == 50 / 200
    assert share_left([record("interrupted", log=str(tmp_path / "gone.log"))]) == 1
    rest = expectation(compiling(), 4, Known(), 0.25)
    assert rest.seconds == 150 / 4
    assert rest.basis == "estimated; 75% is done"


class Bench:
    """A store, a journal and a work folder; each run's events are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.journal = Journal(folder / "store/journal.sqlite")
        self.told: list[events.Event] = []

    def run(self, step: Step) -> events.RunExpected:
        self.told.clear()
        plan = with_keys(Plan("tiny", (), (step,)), {})
        with contextlib.suppress(StepFailed):
            run_plan(
                plan,
                self.store,
                self.journal,
                work=self.folder / "work",
                on_event=self.told.append,
                environment={"PATH": "/usr/bin:/bin"},
                cores=3,
            )
        names = [events.event_name(event) for event in self.told]
        assert names.index("run-expected") < min(
            (names.index(name) for name in names if name.startswith("step-")), default=len(names)
        )
        (found,) = [event for event in self.told if isinstance(event, events.RunExpected)]
        return found


def test_a_run_says_first_what_it_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path)
    failing = compiling("echo '[30/40] c++ x.o'", "test -e allowed", "echo yes > made")
    first = bench.run(failing)
    assert (first.cores, first.seconds) == (3, 200)
    assert events.as_json(first)["steps"] == (
        {"step": "compile", "title": "Compile", "seconds": 200, "basis": "estimated"},
    )
    again = bench.run(failing)
    assert again.seconds == 50
    (tmp_path / "work/allowed").touch()
    bench.run(failing)
    done = bench.run(failing)
    assert (done.steps, done.seconds) == ((), 0)
    with display(json=False, quiet=False) as shown:
        shown.event(again)
        shown.event(done)
    said = capsys.readouterr().err
    assert "1 step to be run, about 50 s on 3 cores" in said
    assert "Compile (estimated; 75% is done)" in said
    assert "nothing to be run" in said


def test_a_rebuild_is_expected_to_take_what_the_last_one_took(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(compiling("echo 1 > made"))
    second = bench.run(compiling("echo 2 > made"))
    assert second.seconds < 60
    assert second.steps[0].basis == "as one like it took"
