"""A journal may be a stranger's: it neither chooses which files are read, nor forges lines."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import QUICK, Edit, changed, edits
from tests.unit.conftest import Run

from torchsmith.engine import door
from torchsmith.engine.compile_log import read_compiles, read_jobs
from torchsmith.engine.events import Warned
from torchsmith.engine.expected import last_count
from torchsmith.engine.journal import ONE_HOST, Journal
from torchsmith.engine.store import Store
from torchsmith.engine.tail import follow_run, kept_log, new_lines
from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.jobs.client import Status, TargetId
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Intent, Submissions
from torchsmith.toolchain.compiles import Compile
from torchsmith.toolchain.memory_book import MemoryBook

pytestmark = pytest.mark.unit

FORGED = "compile\nok verify: everything passed\x1b[1A"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "store"
    (store / "logs/run").mkdir(parents=True)
    (store / "logs/run/own.log").write_text("what the step wrote\n")
    (tmp_path / "private").write_text("root:secret\n")
    return store


def place(kind: str, store: Path) -> str:
    """What a forged record may name as its log."""
    private = store.parent / "private"
    path = store / "logs/run/forged.log"
    if kind == "link":
        path.symlink_to(private)
    elif kind == "linked folder":
        (store / "logs/other").symlink_to(store.parent)
        path = store / "logs/other/private"
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "climbing":
        path = store / "logs/../../private"
    else:
        path = private
    return str(path)


def forge(store: Path, log: str, step: str = "compile") -> str:
    journal = Journal(store / ONE_HOST)
    run = journal.begin("plan")
    journal.step(run, step, "running")
    journal.step(run, step, "failed", log=log, error="no\nok nothing is wrong")
    journal.end(run, "failed", "no\nok nothing is wrong")
    journal.close()
    return run


KINDS = ["file", "climbing", "link", "linked folder", "pipe", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_cannot_have_another_file_shown(kind: str, store: Path, run: Run) -> None:
    name = forge(store, place(kind, store))
    for more in ((), ("--json",)):
        code, out, err = run("log", name, "compile", "--store", str(store), *more)
        assert code == 2
        assert "secret" not in out + err


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_cannot_have_another_file_followed(kind: str, store: Path) -> None:
    name = forge(store, place(kind, store))
    lines: list[str] = []

    def follow() -> None:
        lines.extend(follow_run(Journal(store / ONE_HOST), store, name, pause=0.01))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    thread.join(20)
    assert lines == ["== compile", "== compile: failed"]


def test_a_log_of_the_store_is_shown(store: Path, run: Run) -> None:
    name = forge(store, str(store / "logs/run/own.log"))
    code, out, _ = run("log", name, "compile", "--store", str(store))
    assert (code, out) == (0, "what the step wrote\n")
    assert kept_log(store, "") is None
    assert kept_log(store, "a\0b") is None


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(store: Path) -> None:
    pipe = Path(place("pipe", store))
    assert new_lines(pipe, 0) == ([], 0)
    assert last_count(pipe) is None


def test_a_pipe_in_the_place_of_a_list_is_not_waited_for(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "answers", lambda _: True)
    logs = store / "logs"
    for pipe in (logs / "run/compiles.jsonl", logs / "run/jobs.json", store / "reached.json"):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    assert read_compiles(logs, "run") == []
    assert read_jobs(logs, "run") == ()
    assert door._remembering(Store(store))("https://example.org")


def test_names_in_a_journal_forge_no_lines(store: Path, run: Run) -> None:
    name = forge(store, str(store / "logs/run/own.log"), step=FORGED)
    for words in (("log",), ("log", name), ("log", name, "--follow"), ("timeline", name)):
        _, out, _ = run(*words, "--store", str(store))
        assert "compile?ok verify" in out or words == ("log",)
        # A log's own lines are its own; those around them are ours.
        assert not [line for line in out.splitlines() if line.startswith("ok ")], words
        assert "\x1b" not in out


UNIT = Compile("a/a.cpp", "a.o", "c++", "f")


def of_builds(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:
        for run in journal.runs():
            assert run.started <= run.started
            journal.run(run.id)
            journal.steps(run.id)
            journal.events(run.id)
        journal.earlier("plan", "compile", "key")
        journal.steps("a")
        with contextlib.suppress(UsageError):
            journal.stop("a")
        journal.end(journal.begin("plan"), "done")


def of_jobs(path: Path) -> None:
    with contextlib.closing(Submissions(path.parent)) as kept:
        for one in (*kept.all(), *kept.open()):
            assert kept.get(one.id) == one
            assert one.kept.parent == path.parent / "jobs"


def of_memory(path: Path) -> None:
    with MemoryBook(path, "torch") as book:
        assert book.estimate(UNIT).bytes >= 0
        book.record(UNIT, 1, 1.0, 1.0)


def make_builds(path: Path) -> None:
    with contextlib.closing(Journal(path)) as journal:
        run = journal.begin("plan")
        journal.step(run, "compile", "running", key="key", log="a.log")
        journal.add(run, Warned(message="careful"))


def make_jobs(path: Path) -> None:
    with contextlib.closing(Submissions(path.parent)) as kept:
        one = kept.intend(Intent("a", "slurm", "", "d", path.parent, {"main": 1}))
        kept.accepted(one.id, TargetId("7"))
        kept.seen(one.id, Status(State.RUNNING))


def make_memory(path: Path) -> None:
    with MemoryBook(path, "torch") as book:
        book.record(UNIT, 1 << 30, 1.0, 1.0)


Use = Callable[[Path], None]
DATABASES: dict[str, tuple[Use, Use, tuple[str, ...]]] = {
    "journal.db": (make_builds, of_builds, ("runs", "steps", "events")),
    "jobs.db": (make_jobs, of_jobs, ("submissions",)),
    "memory.db": (make_memory, of_memory, ("compile",)),
}


@pytest.mark.parametrize("name", DATABASES)
def test_a_damaged_database_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    make, use, _ = DATABASES[name]
    path = tmp_path / name
    make(path)
    with contextlib.closing(sqlite3.connect(path)) as link:
        link.execute("PRAGMA journal_mode = DELETE")
    whole = path.read_bytes()

    @QUICK
    @given(edits)
    def try_it(how: list[Edit]) -> None:
        for rest in tmp_path.glob(f"{name}*"):
            rest.unlink()
        path.write_bytes(changed(whole, how))
        # The command line says these in a sentence.
        with contextlib.suppress(TorchsmithError, sqlite3.Error):
            use(path)

    try_it()


cells = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.binary(max_size=4),
    st.sampled_from(["", "running", "a", "x\x1b]52;c;x\x07", "../../a", "[" * 3000, '{"a": 1}']),
)


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_with_other_values_is_read(name: str, tmp_path: Path) -> None:
    make, use, tables = DATABASES[name]
    path = tmp_path / name
    make(path)
    with contextlib.closing(sqlite3.connect(path)) as link:
        schema = {
            table: [row[1] for row in link.execute(f"PRAGMA table_info({table})")]
            for table in tables
        }
        version = link.execute("PRAGMA user_version").fetchone()[0]

    @QUICK
    @given(st.data())
    def try_it(data: st.DataObject) -> None:
        for rest in tmp_path.glob(f"{name}*"):
            rest.unlink()
        with contextlib.closing(sqlite3.connect(path)) as link:
            link.execute(f"PRAGMA user_version = {version}")
            for table, columns in schema.items():
                # Without the types that make SQLite change or refuse some values.
                link.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                link.execute(
                    f"CREATE UNIQUE INDEX of_{table} ON {table} ({', '.join(columns[:3])})"
                )
                rows: list[Any] = [data.draw(st.tuples(*[cells] * len(columns))) for _ in range(2)]
                marks = ", ".join("?" * len(columns))
                link.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", rows)
            link.commit()
        with contextlib.suppress(TorchsmithError, sqlite3.Error):
            use(path)

    try_it()


ENDLESS = "(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c)"


@pytest.mark.parametrize("kind", ["VIEW", "TABLE"])
def test_a_journal_that_computes_its_runs_is_refused(kind: str, store: Path, run: Run) -> None:
    with contextlib.closing(sqlite3.connect(store / ONE_HOST)) as link:
        if kind == "VIEW":
            link.execute(f"CREATE VIEW runs AS SELECT {ENDLESS} AS id")
        else:
            link.execute("CREATE TABLE runs (id TEXT, plan TEXT AS (zeroblob(1 << 20)))")
            link.execute("INSERT INTO runs VALUES ('a')")
        link.execute("PRAGMA user_version = 1")
        link.commit()
    code, _, err = run("log", "--store", str(store))
    assert (code, "computes" in err) == (5, True), err


@pytest.mark.parametrize(("pid", "born"), [(-1, ""), (0, ""), (1, "")])
def test_a_journal_cannot_have_everything_stopped(
    pid: int, born: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    with contextlib.closing(Journal(store / ONE_HOST)) as journal:
        run = journal.begin("plan")
        with sqlite3.connect(store / ONE_HOST) as link:
            link.execute("UPDATE runs SET pid = ?, born = ?", (pid, born))
        with pytest.raises(UsageError, match="not running"):
            journal.stop(run)
    assert killed == []


def test_a_moment_nobody_has_seen_is_listed(store: Path, run: Run) -> None:
    forge(store, "")
    with contextlib.closing(sqlite3.connect(store / ONE_HOST)) as link:
        link.execute("UPDATE runs SET started = 1e300")
        link.commit()
    code, out, _ = run("log", "--store", str(store))
    assert (code, "plan" in out) == (0, True)
