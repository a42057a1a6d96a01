"""A plan is run once, in order, and goes on where it was stopped."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine import events
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import RunResult, run_plan
from torchsmith.engine.store import Store
from torchsmith.engine.view import Reach
from torchsmith.errors import StepFailed, TorchsmithError, UsageError
from torchsmith.plan.models import Kind, Plan, Step, step_key

pytestmark = pytest.mark.unit


def step(
    identity: str,
    *commands: str,
    kind: Kind = "fetch",
    needs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    path: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> Step:
    return Step(
        id=identity,
        kind=kind,
        title=identity.capitalize(),
        commands=commands,
        needs=tuple(needs),
        outputs=tuple(outputs),
        env=tuple((env or {}).items()),
        path=tuple(path),
        inputs=tuple(inputs),
    )


def plan_of(*steps: Step, files: Mapping[str, bytes] | None = None) -> Plan:
    keys: dict[str, str] = {}
    keyed = []
    for item in steps:
        keys[item.id] = step_key(item, keys, files or {})
        keyed.append(replace(item, key=keys[item.id]))
    return Plan("tiny", (), tuple(keyed), files or {})


class Bench:
    """A store, a journal and a work folder; each run's events are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "store")
        self.journal = Journal(folder / "store/journal.sqlite")
        self.work = folder / "work"
        self.events: list[events.Event] = []
        (folder / "marks").touch()
        self.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "MARKS": str(folder / "marks")}

    def run(
        self,
        plan: Plan,
        *,
        only: Sequence[str] | None = None,
        work: Path | None = None,
    ) -> RunResult:
        self.events.clear()
        return run_plan(
            plan,
            self.store,
            self.journal,
            work=work or self.work,
            only=only,
            on_event=self.events.append,
            environment=self.environment,
            reach=Reach(writable=(self.folder / "marks",)),
        )

    def marks(self) -> list[str]:
        return (self.folder / "marks").read_text().split()

    def started(self) -> list[str]:
        return [event.step for event in self.events if isinstance(event, events.StepStarted)]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def build_plan(text: str = "source") -> Plan:
    return plan_of(
        step(
            "fetch", f'echo fetch >> "$MARKS"; mkdir -p src; echo {text} > src/a', outputs=["src"]
        ),
        step(
            "environment",
            'echo environment >> "$MARKS"; mkdir -p env/bin; '
            "printf '#!/bin/sh\\necho built\\n' > env/bin/tool; chmod +x env/bin/tool",
            kind="environment",
            outputs=["env"],
        ),
        step(
            "compile",
            'echo compile >> "$MARKS"',
            "mkdir -p build dist; cp src/a build/a; cd build",
            'tool >> a; cp a "$WORK"/dist/a-1.whl',
            kind="compile",
            needs=["fetch", "environment"],
            path=["env/bin"],
            outputs=["dist/a-*.whl"],
        ),
        step(
            "verify",
            'echo verify >> "$MARKS"; grep built dist/a-1.whl',
            kind="verify",
            needs=["compile"],
        ),
    )


def test_steps_run_in_order_with_their_folders_before_path(bench: Bench) -> None:
    result = bench.run(build_plan())
    assert sorted(bench.marks()[:2]) == ["environment", "fetch"]
    assert bench.marks()[2:] == ["compile", "verify"]
    assert result.artifacts["compile"] == (bench.work / "dist/a-1.whl",)
    assert (bench.work / "dist/a-1.whl").read_text() == "source\nbuilt\n"
    assert set(result.steps.values()) == {"done"}


def test_a_second_run_makes_nothing_again(bench: Bench) -> None:
    bench.run(build_plan())
    before = bench.marks()
    result = bench.run(build_plan())
    assert bench.marks() == before
    assert bench.started() == []
    assert set(result.steps.values()) == {"cached"}


def test_another_work_folder_gets_the_result_and_only_that(bench: Bench, tmp_path: Path) -> None:
    bench.run(build_plan())
    other = tmp_path / "other"
    bench.run(build_plan(), work=other)
    assert bench.started() == []
    assert (other / "dist/a-1.whl").read_text() == "source\nbuilt\n"
    assert not (other / "src").exists()
    assert not (other / "env").exists()


def test_only_what_changed_and_what_reads_it_is_made_again(bench: Bench) -> None:
    bench.run(build_plan())
    bench.run(build_plan("other"))
    assert bench.started() == ["fetch", "compile", "verify"]
    assert (bench.work / "dist/a-1.whl").read_text() == "other\nbuilt\n"
    bench.run(build_plan())
    assert bench.started() == []
    assert (bench.work / "dist/a-1.whl").read_text() == "source\nbuilt\n"


def test_sources_dropped_from_the_store_are_not_brought_back_for_a_wheel(bench: Bench) -> None:
    plan = build_plan()
    bench.run(plan)
    bench.store.remove(plan.step("fetch").key)
    assert bench.run(plan).steps["fetch"] == "skipped"
    bench.store.remove(plan.step("compile").key)
    bench.run(plan)
    assert bench.started() == ["fetch", "compile"]


def test_a_tree_a_step_wrote_into_is_given_to_the_next_as_it_was(bench: Bench) -> None:
    plan = plan_of(
        step("env", "mkdir -p env; echo clean > env/a", kind="environment", outputs=["env"]),
        step(
            "one",
            "echo dirty >> env/a; cp env/a one",
            # Later steps cannot write there, where Linux lets that be closed.
            kind="environment",
            needs=["env"],
            outputs=["one"],
        ),
        step("two", "cp env/a two", kind="compile", needs=["env"], outputs=["two"]),
    )
    bench.run(plan)
    assert (bench.work / "one").read_text() == "clean\ndirty\n"
    assert (bench.work / "two").read_text() == "clean\n"


def test_a_damaged_result_is_made_again(bench: Bench) -> None:
    plan = build_plan()
    bench.run(plan)
    entry = bench.store.get(plan.step("compile").key, bench.work)
    assert entry is not None
    kept = entry.folder / "outputs/dist/a-1.whl"
    kept.chmod(0o644)
    kept.write_bytes(b"Source\nbuilt\n")
    (bench.work / "dist/a-1.whl").unlink()
    bench.run(plan)
    assert bench.started() == ["compile"]
    assert any(isinstance(event, events.Warned) for event in bench.events)
    assert (bench.work / "dist/a-1.whl").read_text() == "source\nbuilt\n"


def test_damage_deep_down_is_mended_on_the_way(bench: Bench, tmp_path: Path) -> None:
    plan = build_plan()
    bench.run(plan)
    for name in ("compile", "verify"):
        bench.store.remove(plan.step(name).key)
    entry = bench.store.get(plan.step("fetch").key, bench.work)
    assert entry is not None
    (entry.folder / "outputs/src/a").unlink()
    result = bench.run(plan, work=tmp_path / "other")
    assert bench.started() == ["fetch", "compile", "verify"]
    assert result.artifacts["compile"][0].read_text() == "source\nbuilt\n"


def test_a_work_folder_behind_a_link_is_known_by_its_real_path(bench: Bench) -> None:
    (bench.folder / "real").mkdir()
    bench.work.symlink_to("real")
    plan = plan_of(step("env", "mkdir env; pwd -P > env/a", kind="environment", outputs=["env"]))
    result = bench.run(plan)
    assert result.work == bench.folder / "real"
    assert [entry.bound for entry in bench.store.entries()] == [str(bench.folder / "real")]


def test_named_steps_are_run_with_what_they_need(bench: Bench) -> None:
    result = bench.run(build_plan(), only=["fetch"])
    assert bench.marks() == ["fetch"]
    assert list(result.steps) == ["fetch"]
    assert result.artifacts["fetch"] == (bench.work / "src",)
    with pytest.raises(UsageError) as error:
        bench.run(build_plan(), only=["complie"])
    assert "compile" in error.value.hint


def test_a_stale_output_is_not_taken_for_the_new_one(bench: Bench) -> None:
    (bench.work / "dist").mkdir(parents=True)
    (bench.work / "dist/a-0.whl").write_text("old")
    result = bench.run(build_plan())
    assert result.artifacts["compile"] == (bench.work / "dist/a-1.whl",)


def test_fetches_run_at_the_same_time_and_compilations_do_not(bench: Bench) -> None:
    # Each of two waits for the other: this ends only if both are under way at once.
    meet = "mkfifo {0} 2>/dev/null || true; "
    both = plan_of(
        step(
            "a", meet.format("p"), "until test -p q; do sleep 0.01; done", "mkdir A", outputs=["A"]
        ),
        step(
            "b", meet.format("q"), "until test -p p; do sleep 0.01; done", "mkdir B", outputs=["B"]
        ),
    )
    bench.run(both)
    alone = "mkdir lock; sleep 0.02; rmdir lock; mkdir {0}"
    bench.run(
        plan_of(*(step(name, alone.format(name), kind="compile", outputs=[name]) for name in "xyz"))
    )


def test_what_is_odd_about_a_source_is_told_and_what_a_compiler_warns_of_is_not(
    bench: Bench,
) -> None:
    said = "echo 'warning: a part is missing'"
    bench.run(plan_of(step("fetch", said), step("compile", said, kind="compile")))
    told = [event.message for event in bench.events if isinstance(event, events.Warned)]
    assert told == ["Fetch: a part is missing"]


def test_files_of_the_plan_lie_where_steps_look_for_them(bench: Bench) -> None:
    files = {"patches/a.patch": b"patch\n", "jobs/j.json": b"{}"}
    plan = plan_of(
        step("a", "mkdir o; cat patches/a.patch > o/a", inputs=["patches/a.patch"], outputs=["o"]),
        step("job", kind="job", inputs=["jobs/j.json"]),
        files=files,
    )
    assert bench.run(plan).steps == {"a": "done", "job": "done"}
    assert (bench.work / "o/a").read_bytes() == b"patch\n"
    assert (bench.work / "jobs/j.json").read_bytes() == b"{}"


def test_paths_of_the_work_folder_in_variables_are_absolute(bench: Bench) -> None:
    plan = plan_of(
        step("a", 'mkdir o; printf "%s\\n" "$HERE" "$PLAIN" "$WORK" > o/a', outputs=["o"],
             env={"HERE": "@/x y", "PLAIN": "a b"})
    )  # fmt: skip
    bench.run(plan)
    assert (bench.work / "o/a").read_text().splitlines() == [
        f"{bench.work}/x y",
        "a b",
        str(bench.work),
    ]


def test_publishing_is_done_again_only_where_its_result_is_gone(bench: Bench) -> None:
    target = bench.folder / "index"
    plan = plan_of(
        step(
            "publish",
            f'echo p >> "$MARKS"; mkdir -p {target}',
            kind="publish",
            outputs=[str(target)],
        )
    )
    bench.run(plan)
    bench.run(plan)
    assert bench.marks() == ["p"]
    target.rmdir()
    bench.run(plan)
    assert bench.marks() == ["p", "p"]


def test_images_are_always_handed_to_the_engine(bench: Bench) -> None:
    plan = plan_of(step("image", 'echo i >> "$MARKS"', kind="image"))
    bench.run(plan)
    bench.run(plan)
    assert bench.marks() == ["i", "i"]


def test_a_step_waits_for_nothing_on_its_input(bench: Bench) -> None:
    bench.run(plan_of(step("a", 'if read -r x; then echo "$x" >> "$MARKS"; fi')))
    assert bench.marks() == []


def test_a_plan_that_goes_in_a_circle_is_refused(bench: Bench) -> None:
    steps = (step("a", needs=["b"]), step("b", needs=["a"]))
    with pytest.raises(TorchsmithError, match="circle"):
        bench.run(Plan("circle", (), steps))


def test_every_event_can_be_written_as_json(bench: Bench) -> None:
    bench.run(build_plan())
    names = [events.as_json(event)["event"] for event in bench.events]
    assert names[0] == "run-started"
    assert names[-1] == "run-finished"
    assert json.dumps([events.as_json(event) for event in bench.events])


def test_a_run_can_be_made_from_any_thread(bench: Bench) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            bench.run(build_plan())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []


def test_a_step_that_runs_strangers_code_has_a_temporary_folder_of_its_own(bench: Bench) -> None:
    leave = 'touch "$TMPDIR/left"; stat --format "%a %n" "$TMPDIR"'
    bench.run(
        plan_of(
            step("one", f"{leave} > one", kind="patch", outputs=["one"]),
            step("two", f"{leave} > two", kind="verify", outputs=["two"], needs=["one"]),
        )
    )
    seen = [(bench.work / name).read_text().split() for name in ("one", "two")]
    assert [mode for mode, _ in seen] == ["700", "700"]
    assert seen[0][1] != seen[1][1]
    assert not any(Path(folder).exists() for _, folder in seen)


def test_a_journal_that_breaks_does_not_hide_why_a_step_failed(bench: Bench) -> None:
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('DROP TABLE steps')"
    broken = f'{sys.executable} -c "{code}" {bench.journal.path}'
    with pytest.raises(StepFailed, match="exit status 3"):
        bench.run(plan_of(step("one", broken, "exit 3")))
