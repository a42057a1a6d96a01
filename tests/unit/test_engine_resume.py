"""A run that fails or is stopped says why, leaves nothing running, and goes on later."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine import events
from torchsmith.engine.execute import NO_NETWORK
from torchsmith.engine.journal import Journal
from torchsmith.engine.process import Stop
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.engine.view import Reach
from torchsmith.errors import InterruptedRunError, StepFailed
from torchsmith.plan.models import Kind, Plan, Step, step_key

pytestmark = pytest.mark.unit


def step(
    identity: str,
    *commands: str,
    kind: Kind = "fetch",
    needs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Step:
    return Step(
        id=identity,
        kind=kind,
        title=identity.capitalize(),
        commands=commands,
        needs=tuple(needs),
        outputs=tuple(outputs),
    )


def plan_of(*steps: Step) -> Plan:
    keys: dict[str, str] = {}
    keyed = []
    for item in steps:
        keys[item.id] = step_key(item, keys, {})
        keyed.append(replace(item, key=keys[item.id]))
    return Plan("tiny", (), tuple(keyed))


class Bench:
    """A store, a journal and a work folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.journal = Journal(folder / "store/journal.sqlite")
        self.work = folder / "work"
        (folder / "marks").touch()

    def run(self, plan: Plan, *, fresh: bool = False) -> None:
        marks = self.folder / "marks"
        run_plan(
            plan,
            self.store,
            self.journal,
            work=self.work,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "MARKS": str(marks)},
            fresh=fresh,
            reach=Reach(writable=(marks,)),
        )

    def marks(self) -> list[str]:
        return (self.folder / "marks").read_text().split()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_step_that_does_not_make_its_output_has_failed(bench: Bench) -> None:
    with pytest.raises(StepFailed, match=r"it made no dist/\*\.whl"):
        bench.run(plan_of(step("compile", "true", kind="compile", outputs=["dist/*.whl"])))
    assert bench.journal.runs()[0].status == "failed"


def test_a_failure_is_told_with_the_compilers_words_and_its_log(bench: Bench) -> None:
    says = 'echo "[1/3] Building"; echo "a.cpp:3:5: error: nothing works" >&2; false'
    with pytest.raises(StepFailed) as error:
        bench.run(plan_of(step("compile", says, kind="compile", outputs=["x"])))
    assert error.value.excerpt == ("a.cpp:3:5: error: nothing works",)
    assert error.value.exit_code == 6
    logged = Path(error.value.log).read_text().splitlines()
    assert logged == [NO_NETWORK, "[1/3] Building", "a.cpp:3:5: error: nothing works"]
    assert "same command" in error.value.hint
    record = bench.journal.steps(bench.journal.runs()[0].id)[0]
    assert record.status == "failed"
    assert "nothing works" in record.error
    assert list(bench.store.entries()) == []


def test_a_command_that_fails_ends_the_step(bench: Bench) -> None:
    with pytest.raises(StepFailed):
        bench.run(plan_of(step("a", "false", 'echo later >> "$MARKS"')))
    with pytest.raises(StepFailed):
        bench.run(plan_of(step("a", "false | cat", 'echo later >> "$MARKS"')))
    with pytest.raises(StepFailed):
        bench.run(plan_of(step("a", 'echo "$UNSET"', 'echo later >> "$MARKS"')))
    assert bench.marks() == []


def test_a_failed_compilation_goes_on_unless_told_to_start_over(bench: Bench) -> None:
    plan = plan_of(
        step(
            "compile",
            'echo "resume=${TORCHSMITH_RESUME:-}" >> "$MARKS"; test -e allowed; echo ok > made',
            kind="compile",
            outputs=["made"],
        )
    )
    for fresh in (False, False, True):
        with pytest.raises(StepFailed):
            bench.run(plan, fresh=fresh)
    (bench.work / "allowed").touch()
    bench.run(plan)
    assert bench.marks() == ["resume=", "resume=1", "resume=", "resume=1"]


def test_an_attempt_with_another_key_leaves_nothing_to_go_on_from(bench: Bench) -> None:
    def plan(word: str) -> Plan:
        line = f'echo "{word}${{TORCHSMITH_RESUME:-}}" >> "$MARKS"; false'
        return plan_of(step("compile", line, kind="compile", outputs=["made"]))

    for word in ("a", "b", "a"):
        with pytest.raises(StepFailed):
            bench.run(plan(word))
    assert bench.marks() == ["a", "b", "a"]


def test_a_stopped_compilation_goes_on_in_its_own_configured_tree(bench: Bench) -> None:
    plan = plan_of(
        step("configure", "mkdir -p tree; echo 0 > tree/a", kind="configure", outputs=["tree"]),
        step(
            "compile",
            "cd tree; echo file >> objects; test $(wc -l < objects) = 2; cp objects ../made",
            kind="compile",
            needs=["configure"],
            outputs=["made"],
        ),
    )
    with pytest.raises(StepFailed):
        bench.run(plan)
    bench.run(plan)
    assert (bench.work / "made").read_text() == "file\nfile\n"


def test_stopping_ends_the_processes_and_is_remembered(bench: Bench) -> None:
    stop = Stop()

    def listen(event: events.Event) -> None:
        if isinstance(event, events.StepLine) and event.text == "ready":
            stop.request(signal.SIGTERM)

    plan = plan_of(step("compile", "echo ready; sleep 100", kind="compile", outputs=["made"]))
    with pytest.raises(InterruptedRunError) as error:
        run_plan(plan, bench.store, bench.journal, work=bench.work, on_event=listen, stop=stop)
    assert error.value.exit_code == 143
    run = bench.journal.runs()[0]
    assert run.status == "interrupted"
    assert [item.status for item in bench.journal.steps(run.id)] == ["interrupted"]


def test_a_process_left_behind_does_not_hold_the_run(bench: Bench) -> None:
    bench.run(plan_of(step("a", "setsid sleep 3 & sleep 100 & echo $! > pid; echo started")))
    pid = (bench.work / "pid").read_text().strip()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().split()[2] in ("Z", "X")


def test_when_one_fetch_fails_the_others_are_kept(bench: Bench) -> None:
    plan = plan_of(step("a", "mkdir A", outputs=["A"]), step("b", "false", outputs=["B"]))
    with pytest.raises(StepFailed):
        bench.run(plan)
    assert [entry.step for entry in bench.store.entries()] == ["a"]
