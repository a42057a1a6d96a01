"""A build as people and logs see it."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from torchsmith.cli import main
from torchsmith.cli.output import counted
from torchsmith.cli.show_build import display
from torchsmith.engine import events
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import outlook, run_plan
from torchsmith.engine.store import Store
from torchsmith.engine.tail import follow_run
from torchsmith.errors import StepFailed
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Cost, Plan, Step

pytestmark = pytest.mark.unit


def plan_of(*steps: Step) -> Plan:
    return with_keys(Plan("p", (), steps), {})


def step(name: str, command: str, *needs: str, seconds: float = 600) -> Step:
    return Step(
        id=name,
        kind="compile",
        title=name.title(),
        commands=(command,),
        needs=needs,
        outputs=(name,),
        cost=Cost(core_seconds=seconds, basis="estimated"),
    )


class Terminal(io.StringIO):
    """What a person looks at."""

    def isatty(self) -> bool:
        return True


def started() -> events.StepStarted:
    return events.StepStarted(step="a", title="Fetch", kind="fetch", log="", resumed=False)


def test_a_step_without_a_count_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with display(json=False, quiet=False) as shown:
        shown.event(started())
        time.sleep(0.3)
    assert "Fetch" in terminal.getvalue()
    assert "?" not in re.sub(r"\x1b\[\?\d+[hl]", "", terminal.getvalue())


def test_lines_of_a_log_have_the_time_and_those_of_a_terminal_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with display(json=False, quiet=False) as shown:
        shown.event(started())
    assert re.fullmatch(r"\d\d:\d\d:\d\d    Fetch\n", capsys.readouterr().err)


def test_a_log_says_what_share_of_the_compiles_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with display(json=False, quiet=False) as shown:
        shown.event(
            events.StepProgress(
                step="a", done=30, total=120, rate=1.0, seconds_left=90.0, what="x.cpp"
            )
        )
    assert "30/120 compiles (25%), 2 min left" in capsys.readouterr().err


def test_one_is_one() -> None:
    assert [counted(number, "core") for number in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]


def test_what_is_expected_is_the_same_before_and_when_it_is_run(tmp_path: Path) -> None:
    plan = plan_of(step("first", "mkdir first"), step("second", "mkdir second", "first"))
    store, journal = Store(tmp_path / "store"), Journal(tmp_path / "store" / "journal.db")
    heard: list[events.RunExpected] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.RunExpected):
            heard.append(event)

    for _ in range(3):
        ahead = outlook(plan, store, project=tmp_path, cores=4)
        run_plan(
            plan, store, journal, environment={"PATH": "/usr/bin:/bin"}, on_event=listen, cores=4
        )
        assert tuple(ahead.expected.values()) == heard[-1].steps
        assert ahead.seconds == heard[-1].seconds
    assert heard[0].seconds == 300
    assert heard[1].seconds == 0
    assert outlook(plan, store, project=tmp_path).stored == {"first", "second"}


def test_a_failure_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(step("compile", "echo 'a.cpp:3:5: error: nothing works' >&2; false"))
    store, journal = Store(tmp_path / "store"), Journal(tmp_path / "journal")

    def fail(**_: object) -> None:
        with display(json=False, quiet=False) as shown:
            base = {"PATH": "/usr/bin:/bin"}
            run_plan(plan, store, journal, environment=base, on_event=shown.event)

    monkeypatch.setattr("torchsmith.cli.app.command_line", lambda _: fail)
    monkeypatch.setattr(sys, "argv", ["torchsmith", "build"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == StepFailed.exit_code
    err = capsys.readouterr().err
    assert err.count("nothing works") == 1
    assert err.count("compile.log") == 1
    assert "Mend the cause" in err


def test_a_build_can_be_followed_from_elsewhere(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    log = tmp_path / "a.log"
    log.write_text("first\n")
    run = journal.begin("p")
    journal.step(run, "a", "running", key="k", title="A", log=str(log))
    lines: list[str] = []
    watcher = threading.Thread(
        target=lambda: lines.extend(
            follow_run(Journal(tmp_path / "journal"), tmp_path, run, pause=0.02)
        )
    )
    watcher.start()
    time.sleep(0.2)
    with log.open("a") as file:
        file.write("second\nthi")
        file.flush()
        time.sleep(0.1)
        file.write("rd\n")
    journal.step(run, "a", "done", key="k", title="A")
    journal.end(run, "done")
    watcher.join(20)
    assert lines == ["== a", "first", "second", "third", "== a: done"]
