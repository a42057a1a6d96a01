"""Builds in the portal: live, long, broken, and written by strangers."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.unit.test_portal_access import HTML, TOKEN, log_in, page_token

from torchsmith.engine import events
from torchsmith.engine.compile_log import CompileLog
from torchsmith.engine.journal import Journal
from torchsmith.templates import templates
from torchsmith.toolchain import governor_events
from torchsmith.web.access import Access
from torchsmith.web.app import make_app
from torchsmith.web.pages import took
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.unit

NASTY = "<script>alert(1)</script>\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202e</pre><img src=x>\n"
STEPS = (
    events.PlannedStep(step="fetch", title="Fetch it", kind="fetch", needs=(), place=""),
    events.PlannedStep(
        step="compile/a", title="Compile it", kind="compile", needs=("fetch",), place="debian-12"
    ),
)


class Forge:
    """A store with builds in it, and a reader of its portal."""

    def __init__(self, folder: Path, access: Access | None = None) -> None:
        self.root = folder / "store"
        self.journal = Journal(self.root / "journal.db")
        portal = Portal(access or Access(), None, self.root, folder)
        app = make_app(portal)
        self.reader = TestClient(app, "http://127.0.0.1:8080", follow_redirects=False)

    def begin(self, plan: str = "mine", steps: tuple[events.PlannedStep, ...] = STEPS) -> str:
        run = self.journal.begin(plan, "recipe.toml", "here")
        started = events.RunStarted(run=run, plan=plan, work="", total=2, to_run=(), steps=steps)
        self.journal.add(run, started)
        expected = events.StepExpectation(step="compile/a", title="", seconds=65, basis="")
        self.journal.add(run, events.RunExpected(run=run, cores=2, seconds=65, steps=(expected,)))
        return run

    def log(self, run: str, text: str, step: str = "compile/a") -> Path:
        path = self.root / "logs" / run / f"{step.replace('/', '-')}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        return path

    def get(self, path: str, **query: str) -> str:
        answer = self.reader.get(path, params=query, headers=HTML)
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def told(self, run: str, step: str, **headers: str) -> list[tuple[str, str, str]]:
        """The messages of a build that is over: their kind, id and content."""
        answer = self.reader.get("/build/live", params={"run": run, "step": step}, headers=headers)
        found = []
        for block in answer.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in lines:
                found.append((lines["event"], lines.get("id", ""), lines["data"]))
        return found


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[Forge]:
    made = Forge(tmp_path)
    yield made
    made.journal.close()


def test_an_empty_store_is_no_error(tmp_path: Path) -> None:
    app = make_app(Portal(store=tmp_path / "none"))
    reader = TestClient(app, "http://127.0.0.1:8080")
    assert "Nothing was built yet" in reader.get("/builds").text
    assert reader.get("/build", params={"run": "x"}).status_code == 404
    assert not (tmp_path / "none").exists()


def test_steps_have_state_place_and_what_was_expected(forge: Forge) -> None:
    run = forge.begin()
    forge.journal.step(run, "fetch", "cached", title="Fetch it")
    log = forge.log(run, "[1/4] a\n[3/4] b\n")
    forge.journal.step(run, "compile/a", "running", title="Compile it", log=str(log))
    text = forge.get("/build", run=run)
    for word in ("Fetch it", "cached", "debian-12", "1 min 5 s", "3/4", 'class="graph"', "[3/4] b"):
        assert word in text, word


def test_a_log_comes_whole_and_once_however_often_a_reader_comes_back(forge: Forge) -> None:
    run = forge.begin()
    lines = "".join(f"line {number}\n" for number in range(20_000))
    log = forge.log(run, lines)
    forge.journal.step(run, "compile/a", "running", log=str(log))
    forge.journal.end(run, "done")
    pieces = [item for item in forge.told(run, "compile/a") if item[0] == "log"]
    assert len(pieces) > 1
    assert "".join(json.loads(data)["text"] for _, _, data in pieces) == lines
    # One that lost its connection says what it has.
    rest = forge.told(run, "compile/a", **{"Last-Event-ID": pieces[0][1]})
    texts = [json.loads(data)["text"] for kind, _, data in rest if kind == "log"]
    assert json.loads(pieces[0][2])["text"] + "".join(texts) == lines
    assert rest[-1][0] == "over"


def test_half_a_line_of_a_build_that_is_over_is_shown(forge: Forge) -> None:
    run = forge.begin()
    log = forge.log(run, "whole\nhal")
    forge.journal.step(run, "compile/a", "running", log=str(log))
    forge.journal.end(run, "done")
    pieces = [item for item in forge.told(run, "compile/a") if item[0] == "log"]
    assert "".join(json.loads(data)["text"] for _, _, data in pieces) == "whole\nhal"


def test_what_strangers_wrote_is_text(forge: Forge) -> None:
    bad = "<b>x</b>\x1b[2J/../"
    steps = (events.PlannedStep(step=bad, title=bad, kind="compile", needs=("?",), place=bad),)
    run = forge.begin(bad, steps)
    log = forge.log(run, NASTY, "bad")
    forge.journal.step(run, bad, "failed", title=bad, log=str(log), error=NASTY)
    forge.journal.add(run, events.Warned(message=NASTY))
    forge.journal.end(run, "failed", NASTY)
    pages = [
        forge.get("/builds"),
        forge.get("/build", run=run),
        forge.get("/build", run=run, step=bad),
        forge.get("/build/known", run=run, step=bad),
        forge.get("/build/timeline", run=run),
    ]
    for text in pages:
        for word in ("<script>alert", "<img", "<b>x", "\x1b", "\x07", "\u202e"):
            assert word not in text, word
    assert "&lt;script&gt;alert(1)" in pages[1]
    messages = json.dumps(forge.told(run, bad))
    assert "\\u001b" not in messages
    assert "<b>x" not in messages


def test_a_failure_is_explained_with_its_cure(forge: Forge) -> None:
    run = forge.begin()
    log = forge.log(
        run, "x.cpp:1:1: error: hm\nc++: fatal error: Killed signal terminated program cc1plus\n"
    )
    forge.journal.step(run, "compile/a", "failed", log=str(log), error="it failed")
    forge.journal.end(run, "failed", "it failed")
    assert 'data-failed="yes"' in forge.get("/build", run=run)
    text = forge.get("/build/known", run=run)
    assert "Cure:" in text
    assert "memory" in text


def test_records_that_are_broken_hide_none_of_the_others(forge: Forge) -> None:
    run = forge.begin()
    forge.journal.step(run, "compile/a", "running", log="/etc/passwd")
    with closing(sqlite3.connect(forge.root / "journal.db")) as database:
        for content in (
            "{half",
            "[]",
            '{"event": "run-started", "steps": [1, {"step": 2}]}',
            "null",
        ):
            database.execute(
                "INSERT INTO events (run, at, name, content) VALUES (?, 0, 'x', ?)", (run, content)
            )
        database.commit()
    text = forge.get("/build", run=run)
    assert "compile/a" in text
    # A log outside the store is nobody's business.
    assert "root:" not in text
    forge.journal.end(run, "done")
    assert "root:" not in json.dumps(forge.told(run, "compile/a"))


def test_a_journal_of_another_time_is_shown_or_said_to_be_unreadable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    with closing(sqlite3.connect(root / "journal.db")) as database:
        database.execute("CREATE TABLE runs (id TEXT, started REAL)")
        database.execute("INSERT INTO runs VALUES ('old', 1)")
        database.execute("PRAGMA user_version = 1")
        database.commit()
    reader = TestClient(make_app(Portal(store=root)), "http://127.0.0.1:8080")
    for path in ("/builds", "/build?run=old", "/build/timeline?run=old"):
        answer = reader.get(path)
        assert answer.status_code == 200, answer.text
        assert "old" in answer.text
    with closing(sqlite3.connect(root / "journal.db")) as database:
        database.execute("PRAGMA user_version = 99")
    assert "written by a newer torchsmith" in reader.get("/builds").text
    (root / "journal.db").write_bytes(b"no database at all" * 100)
    answer = reader.get("/builds")
    assert answer.status_code == 503
    assert "cannot be shown" in answer.text


def test_a_store_that_is_being_written_is_shown_all_the_time(forge: Forge) -> None:
    """Another process begins builds, writes half lines and ends them, while pages are read."""
    script = (
        "import sys, itertools\nfrom pathlib import Path\n"
        "from torchsmith.engine.journal import Journal\n"
        "root = Path(sys.argv[1]); journal = Journal(root / 'journal.db')\n"
        "for number in itertools.count():\n"
        "    run = journal.begin(f'a/b {number}')\n"
        "    log = root / 'logs' / run / 'x.log'; log.parent.mkdir(parents=True)\n"
        "    (log.parent / 'memory.jsonl').write_text('{\"kind\": \"ru')\n"
        "    journal.step(run, 'x/y', 'running', log=str(log))\n"
        "    log.write_bytes(b'whole \\xff\\n half \\xc3')\n"
        "    if number % 2: journal.end(run, 'failed', 'it')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, forge.root])
    try:
        seen: set[str] = set()
        end = time.monotonic() + 60
        while len(seen) < 10:
            assert time.monotonic() < end
            assert forge.get("/builds")
            for item in forge.journal.runs(2):
                seen.add(item.id)
                for path in ("/build", "/build/known", "/build/timeline"):
                    forge.get(path, run=item.id)
    finally:
        writer.kill()
        writer.wait()
    # Whoever wrote is gone: what it left open was interrupted.
    states = {item.status for item in forge.journal.runs(100_000)}
    assert states <= {"failed", "interrupted"}


def test_many_builds_come_in_pages(forge: Forge) -> None:
    with closing(sqlite3.connect(forge.root / "journal.db")) as database:
        database.executemany(
            "INSERT INTO runs VALUES (?, 'p', '', '', '', ?, 1, 'done', '', 'n', 1, '')",
            [(f"run-{number:05}", number) for number in range(10_000)],
        )
        database.commit()
    first = forge.get("/builds")
    assert "run-09999" in first
    assert "run-09949" not in first
    assert "from=50" in first
    last = forge.get("/builds", **{"from": "9950"})
    assert "run-00000" in last
    assert "Older" not in last
    for odd in ("-1", "x", "9" * 30, "²"):
        assert "run-09999" in forge.get("/builds", **{"from": odd})


def test_a_long_log_is_shown_from_its_end(forge: Forge) -> None:
    run = forge.begin()
    log = forge.log(run, "first line\n" + "x" * 99 + "\n")
    with log.open("r+b") as file:
        file.seek(200 << 20)
        file.write(b"\nlast line\n")
    forge.journal.step(run, "compile/a", "running", log=str(log))
    text = forge.get("/build", run=run)
    assert "last line" in text
    assert "first line" not in text
    assert len(text) < 300_000
    early = forge.get("/build", run=run, before="100")
    assert "first line" in early
    assert "Later lines" in early
    # Nobody is sent the 200 MB between.
    assert "without=log" in early
    forge.journal.end(run, "done")
    query = {"run": run, "step": "compile/a", "start": "100", "without": "log"}
    answer = forge.reader.get("/build/live", params=query)
    assert "event: over" in answer.text
    assert "event: log" not in answer.text


def test_the_failure_at_the_end_of_a_long_log_is_found_at_its_line(forge: Forge) -> None:
    run = forge.begin()
    log = forge.log(run, "a line of a compiler that says nothing much\n" * 250_000)
    with log.open("a") as file:
        file.write("c++: fatal error: Killed signal terminated program cc1plus\n")
    forge.journal.step(run, "compile/a", "failed", log=str(log), error="it failed")
    forge.journal.end(run, "failed", "it failed")
    text = forge.get("/build/known", run=run)
    assert "250001: c++: fatal error: Killed" in text
    assert "Cure:" in text


def test_a_journal_that_lacks_columns_shows_what_it_has(tmp_path: Path) -> None:
    """As a file of an older version would: what is not there is left out."""
    forge = Forge(tmp_path)
    run = forge.begin("old <plan>")
    log = forge.log(run, "it said this\n")
    forge.journal.step(run, "compile/a", "failed", title="Compile it", log=str(log), error="bad")
    forge.journal.end(run, "failed", "bad")
    forge.journal.close()
    with closing(sqlite3.connect(forge.root / "journal.db")) as database:
        for table, columns in (
            ("runs", "host torchsmith error born"),
            ("steps", "title error key"),
        ):
            for column in columns.split():
                database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        database.execute("DROP TABLE events")
        database.commit()
    assert "old &lt;plan&gt;" in forge.get("/builds")
    text = forge.get("/build", run=run)
    assert "compile/a" in text
    assert "it said this" in text


def test_compiles_in_flight_and_the_limit_are_shown(forge: Forge) -> None:
    run = forge.begin()
    with closing(CompileLog(forge.root / "logs", 4)) as compiles:
        compiles.budget = 8 << 30
        compiles.heed(events.RunStarted(run=run, plan="", work="", total=1, to_run=("x",)))
        for job in (1, 2, 3):
            compiles.add(governor_events.WaitingForMemory(0, job, f"{job}.cpp", 1 << 30, ""))
        for job in (1, 2):
            compiles.add(
                governor_events.Started(0, job, f"{job}.cpp", 1 << 30, "", 1, False, job, 0)
            )
        compiles.add(governor_events.Finished(0, 1, "1.cpp", "1.o", 0, 5, 1, 1))
    forge.journal.step(run, "compile/a", "running")
    text = forge.get("/build", run=run)
    assert "1 now, 2 at most, 4 cores" in text
    assert "limit 8.0 GiB" in text
    assert "2.cpp" in text
    assert "3.cpp waits for 1.0 GiB" in text
    assert "1.cpp" not in text


def test_a_build_is_stopped_by_who_may_and_by_nobody_else(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from torchsmith.engine.journal import Journal\n"
        "print(Journal(Path(sys.argv[1])).begin('p'), flush=True)\ntime.sleep(600)\n"
    )
    closed = Forge(tmp_path)
    build = subprocess.Popen(
        [sys.executable, "-c", script, closed.root / "journal.db"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert build.stdout is not None
    run = build.stdout.readline().strip()
    own = page_token(closed.reader.get("/login").text)
    refused = closed.reader.post("/build/stop", data={"run": run, "page_token": own})
    assert (refused.status_code, build.poll()) == (403, None)
    assert "Stop this build" not in closed.get("/build", run=run)
    opened = Forge(tmp_path, Access(token=TOKEN, actions=True))
    log_in(opened.reader)
    text = opened.get("/build", run=run)
    done = opened.reader.post("/build/stop", data={"run": run, "page_token": page_token(text)})
    assert done.status_code == 303
    assert build.wait(30) == -signal.SIGTERM
    again = opened.reader.post("/build/stop", data={"run": run, "page_token": page_token(text)})
    assert again.status_code == 404


STOPPABLE = """
import sys
from pathlib import Path
from msgspec.structs import replace
from torchsmith.engine.build import build
from torchsmith.engine.command import this_command
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan, Step
folder = Path(sys.argv[1])
wait = f"if [ -e {folder}/go ]; then touch two; else sleep 600; fi"
steps = [
    Step(id="one", kind="fetch", title="One", commands=("touch one",), outputs=("one",)),
    Step(id="two", kind="fetch", title="Two", needs=("one",), commands=(wait,), outputs=("two",)),
]
steps = [replace(step, key=f"{number:064x}") for number, step in enumerate(steps, 1)]
plan = Plan("mine", (), tuple(steps))
build(plan, Store(folder / "store"), project=folder, command=this_command())
"""


def test_a_stopped_build_goes_on_by_its_own_command(tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(STOPPABLE)
    forge = Forge(tmp_path, Access(token=TOKEN, actions=True))
    log_in(forge.reader)
    build = subprocess.Popen([sys.executable, script.name, tmp_path], cwd=tmp_path)

    def status(run: str, step: str) -> str:
        return next((item.status for item in forge.journal.steps(run) if item.step == step), "")

    def until(true: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end
            time.sleep(0.05)

    until(forge.journal.runs)
    run = forge.journal.runs()[0].id
    until(lambda: status(run, "two") == "running")
    text = forge.get("/build", run=run)
    assert "Resume this build" not in text
    own = {"run": run, "page_token": page_token(text)}
    # What runs is not begun twice.
    assert forge.reader.post("/build/resume", data=own).status_code == 404
    assert forge.reader.post("/build/stop", data=own).status_code == 303
    build.wait(30)
    until(lambda: "Resume this build" in forge.get("/build", run=run))
    closed = Forge(tmp_path)
    assert "Resume this build" not in closed.get("/build", run=run)
    assert closed.reader.post("/build/resume", data=own).status_code == 403
    (tmp_path / "go").touch()
    answer = forge.reader.post("/build/resume", data=own)
    assert answer.status_code == 303
    (second,) = (item.id for item in forge.journal.runs() if item.id != run)
    assert second in answer.headers["location"]
    until(lambda: forge.journal.runs()[0].status == "done")
    assert (status(second, "one"), status(second, "two")) == ("cached", "done")
    assert "Resume" not in forge.get("/build", run=second)


def test_a_build_of_others_or_of_no_command_is_not_resumed(tmp_path: Path) -> None:
    forge = Forge(tmp_path, Access(token=TOKEN, actions=True))
    log_in(forge.reader)
    run = forge.begin()
    forge.journal.end(run, "interrupted")
    kept = forge.log(run, "").with_name("command.json")
    good = {"words": ["touch", str(tmp_path / "ran")], "folder": "/", "node": platform.node()}
    own = {"run": run, "page_token": page_token(forge.get("/jobs"))}
    for content in (
        None,
        "{half",
        "[]",
        json.dumps({**good, "words": []}),
        json.dumps({**good, "node": "another"}),
        json.dumps({**good, "folder": str(tmp_path / "gone")}),
    ):
        if content is not None:
            kept.write_text(content)
        assert "Resume this build" not in forge.get("/build", run=run), content
        assert forge.reader.post("/build/resume", data=own).status_code == 404
    kept.write_text(json.dumps(good))
    kept.chmod(0o666)
    assert forge.reader.post("/build/resume", data=own).status_code == 404
    assert not (tmp_path / "ran").exists()
    # One that ends at once says so.
    kept.write_text(json.dumps({**good, "words": ["sh", "-c", "echo '<b>no</b>'; exit 3"]}))
    kept.chmod(0o600)
    answer = forge.reader.post("/build/resume", data=own)
    assert answer.status_code == 503
    assert "&lt;b&gt;no" in answer.text


def test_times_are_written_so_that_nobody_takes_hours_for_minutes() -> None:
    shown = {3.14: "3.1 s", 45: "45 s", 412: "6 min 52 s", 74_285: "20 h 38 min", 7200: "2 h"}
    assert {seconds: took(seconds) for seconds in shown} == shown


def test_a_running_build_says_how_long_it_runs(forge: Forge) -> None:
    forge.begin()
    assert re.search(r"\d s so far", forge.get("/builds"))


def test_sources_are_links_only_where_they_are_addresses() -> None:
    macro = getattr(templates("torchsmith.web").get_template("macros.html").module, "sources")  # noqa: B009
    text = macro('https://pypi.org/"><b> javascript:alert(1)')
    assert 'href="https://pypi.org/&#34;&gt;&lt;b&gt;"' in text
    assert text.count("href") == 1
