"""Recipes, jobs, matrix and doctor in the portal."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.unit.test_portal_access import HTML, TOKEN, log_in, page_token

from torchsmith.jobs.farm.request import attempt_folder
from torchsmith.web.access import Access
from torchsmith.web.app import make_app
from torchsmith.web.portal import Moments, Portal

pytestmark = pytest.mark.unit

JOB = """
name = "hello"
[[role]]
name = "main"
command = "echo said-by-the-job; echo '<script>alert(1)</script>'"
"""


def reader(folder: Path, access: Access | None = None) -> TestClient:
    portal = Portal(access or Access(), None, folder / "store", folder)
    return TestClient(make_app(portal), "http://127.0.0.1:8080", follow_redirects=False)


def asked(client: TestClient, **fields: str) -> str:
    own = client.get("/recipes", headers=HTML).text.partition('data-page-token="')[2][:64]
    answer = client.post("/recipes/check", data={**fields, "page_token": own})
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def test_a_recipe_is_answered_while_it_is_typed(tmp_path: Path) -> None:
    client = reader(tmp_path)
    good = asked(client, torch="2.6.0", python="3.11, 3.12", cuda="none")
    assert "This can be built" in good
    assert "of one core" in good
    assert "torch = &#34;2.6.0&#34;" in good
    bad = asked(client, torch="2.6.0", python="3.11", cuda="9.0", gpus="RTX 3090")
    assert "cannot exist" in bad
    assert "Nearest that works" in bad
    assert 'data-key="cuda"' in bad
    # Nothing was looked up and nothing written.
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "toml",
    [
        "torch = ",
        "torch = '2.6.0'\nnonsense = 1",
        "<script>alert(1)</script>",
        "torch = '2.6.0'\n[[patches]]\nfile = '/etc/passwd'\n",
        "a." * 5000,
        "\x00\x1b[2J",
        "torch = '9.9'",
        "torch = '2.6.0'\nname = '<img src=x>'",
    ],
)
def test_a_bad_recipe_is_explained_and_never_run(tmp_path: Path, toml: str) -> None:
    text = asked(reader(tmp_path), toml=toml)
    for word in ("<script>", "<img", "\x1b", "root:"):
        assert word not in text


def test_a_form_of_fields_and_a_file_say_the_same(tmp_path: Path) -> None:
    client = reader(tmp_path)
    fields = asked(client, torch="2.6.0", python="3.11", cuda="none")
    file = asked(client, toml='torch = "2.6.0"\r\ncuda = "none"\r\npython = ["3.11"]\r\n')
    assert fields == file
    assert "written like name=value" in asked(client, torch="2.6.0", features="=")


def test_the_doctor_says_what_is_here(tmp_path: Path) -> None:
    text = reader(tmp_path).get("/doctor", headers=HTML).text
    assert "platform" in text
    assert "memory" in text


def fake(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_doctor_goes_to_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm of three nodes by its answers: one is asked, one has no room, one is down."""
    check = {
        "group": "machine",
        "name": "gcc",
        "status": "warn",
        "found": "12 <b>",
        "cure": "newer",
    }
    said = json.dumps({"host": {}, "checks": [check], "rating": "warn"})
    (tmp_path / "said.json").write_text(said)
    programs = tmp_path / "bin"
    lines = ["n1|idle|2|8000|gpu:2|none", "n2|allocated|2|8000|(null)|none", "n3|down|2|8||dead"]
    fake(programs, "sinfo", "\n".join(f"echo '{line}'" for line in [*lines, lines[0]]))
    refused = "echo 'srun: error: Unable to allocate resources: no <i>room' >&2; exit 1"
    fake(
        programs,
        "srun",
        f'case "$*" in *nodelist=n1*) cat {tmp_path}/said.json;; *) {refused};; esac',
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    closed = reader(tmp_path)
    text = closed.get("/doctor", headers=HTML).text
    assert text.count("The doctor has not been there") == 3
    assert "down: dead" in text
    assert "Look at the nodes" not in text
    client = reader(tmp_path, Access(token=TOKEN, actions=True))
    log_in(client)
    own = page_token(client.get("/doctor").text)
    assert client.post("/doctor/nodes", data={"page_token": own}).status_code == 303
    end = time.monotonic() + 60
    while 'class="mark running"' in (text := client.get("/doctor").text):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "12 &lt;b&gt;" in text
    assert text.count("n2 cannot be asked: Unable to allocate resources: no &lt;i&gt;room") == 1
    # A report that a machine left itself, and what is none.
    (tmp_path / "store/machines/other.json").write_text(said)
    (tmp_path / "store/machines/half.json").write_text(said[:40])
    text = reader(tmp_path).get("/doctor").text
    assert "other" in text
    assert "half.json is no report" in text


def test_without_jobs_nothing_is_made(tmp_path: Path) -> None:
    client = reader(tmp_path)
    assert "Nothing was submitted yet" in client.get("/jobs").text
    assert client.get("/job", params={"id": "x"}).status_code == 404
    assert not (tmp_path / "store").exists()


def test_a_job_is_checked_launched_and_followed(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "other.toml").write_text("torch = '2.6.0'\n")
    client = reader(tmp_path, Access(token=TOKEN, actions=True))
    log_in(client)
    listed = client.get("/jobs").text
    assert "job.toml" in listed
    assert "other.toml" not in listed
    form = client.get("/job/launch", params={"file": "job.toml"}).text
    assert "said-by-the-job" in form
    own = page_token(form)
    wrong = {"file": "job.toml", "changes": "role.main.gpus=many", "page_token": own}
    refused = client.post("/job/launch", data=wrong)
    assert refused.status_code == 422
    assert "gpus" in refused.text
    assert not (tmp_path / "store/jobs.db").exists()
    made = client.post("/job/launch", data={"file": "job.toml", "to": "local", "page_token": own})
    assert made.status_code == 303
    end = time.monotonic() + 60
    while "succeeded" not in (text := client.get(made.headers["location"]).text):
        assert time.monotonic() < end, text
        time.sleep(0.2)
    assert "said-by-the-job" in text
    assert "<script>alert" not in text
    assert "hello" in client.get("/jobs").text


def test_jobs_are_launched_from_the_recipes_folder_and_with_leave_only(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (tmp_path / "outside.toml").write_text(JOB)
    (folder / "job.toml").write_text(JOB)
    client = reader(folder, Access(token=TOKEN, actions=True))
    log_in(client)
    for name in ("../outside.toml", str(tmp_path / "outside.toml"), "", "none.toml"):
        form = client.get("/job/launch", params={"file": name})
        assert "not a file with jobs" in form.text
        own = page_token(form.text)
        assert client.post("/job/launch", data={"file": name, "page_token": own}).status_code == 422
    closed = reader(folder)
    own = page_token(closed.get("/login").text)
    fields = {"file": "job.toml", "page_token": own}
    assert closed.post("/job/launch", data=fields).status_code == 403
    assert closed.post("/job/cancel", data={"id": "x", "page_token": own}).status_code == 403


def failed(*excerpt: str) -> dict[str, object]:
    return {
        "event": "step-failed",
        "title": "Compile",
        "reason": "it ended with exit status 1",
        "excerpt": list(excerpt),
    }


def farm(folder: Path) -> Path:
    made = folder / "store/farm/lab-0123"
    made.mkdir(parents=True)
    (made / "recipe.toml").write_text("torch = '2.6.0'\n")
    killed = "c++: fatal error: Killed signal terminated program cc1plus"
    told: dict[str, tuple[list[dict[str, object]], str | None]] = {
        "py310": ([{"event": "step-finished", "title": "Fetch torch"}], "143"),
        "py311": (
            [
                {"event": "step-cached", "title": "Fetch torch"},
                {"event": "compiler-cache-used", "hits": 1100, "misses": 18},
                {"event": "run-finished", "artifacts": [], "seconds": 412.0},
            ],
            "0",
        ),
        # One cause, though each says it of another file.
        "py312": ([failed(f"FAILED: a.cpp.o\n{killed}", killed)], "6"),
        "py313": ([failed(f"FAILED: b.cpp.o\n{killed}", killed)], "6"),
        "py314": ([{"event": "step-started", "title": "Configure"}], None),
        "py315": ([failed("no <b>room</b> of its own")], "6"),
    }
    for number, (name, (events, code)) in enumerate(told.items(), 7):
        attempt = attempt_folder(made, name, 1)
        attempt.mkdir(parents=True)
        lines = [json.dumps(event) for event in events]
        (attempt / "events.jsonl").write_text("\n".join([*lines, "not json", ""]) + '{"half')
        (attempt / "node").write_text(f"node{number % 3 + 1}\n")
        if code is not None:
            (attempt / "ended").write_text(code)
    attempt_folder(made, "py316", 1).parent.mkdir()
    return made


def test_a_matrix_groups_failures_by_their_cause(tmp_path: Path) -> None:
    farm(tmp_path)
    text = reader(tmp_path).get("/matrix", headers=HTML).text
    for word in ("built", "running", "node2", "Configure", "1 of 1", "2 of 7: py312, py313"):
        assert word in text, word
    memory = text[text.index("2 of 7") :]
    assert "Cure:" in memory[: memory.index("1 of 7: py315")]
    assert "it ended with exit status 1: no &lt;b&gt;room" in text
    assert "<b>room" not in text
    # One that was stopped has no cause of its own.
    assert "exit status 143" not in text
    # What one variant did for another.
    shared = text[text.index("<h2>Shared") :]
    assert shared.index("Fetch torch") < shared.index("py310") < shared.index("py311")
    client = reader(tmp_path)
    assert client.get("/matrix", params={"farm": "lab-0123"}).status_code == 200
    assert client.get("/matrix", params={"farm": "../../etc"}).status_code == 404


def test_a_job_whose_folder_is_gone_is_still_shown(
    tmp_path: Path,
) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    client = reader(tmp_path, Access(token=TOKEN, actions=True))
    log_in(client)
    own = page_token(client.get("/job/launch", params={"file": "job.toml"}).text)
    made = client.post("/job/launch", data={"file": "job.toml", "to": "local", "page_token": own})
    (tmp_path / "store/jobs").rename(tmp_path / "store/gone")
    answer = client.get(made.headers["location"])
    assert answer.status_code == 200
    assert "hello" in answer.text


def launched(tmp_path: Path, client: TestClient, command: str = "true") -> str:
    """The id of a job that is over."""
    (tmp_path / "job.toml").write_text(JOB.replace("echo said-by-the-job", command))
    own = page_token(client.get("/job/launch", params={"file": "job.toml"}).text)
    made = client.post("/job/launch", data={"file": "job.toml", "to": "local", "page_token": own})
    assert made.status_code == 303, made.text
    end = time.monotonic() + 60
    while 'data-over="yes"' not in client.get(made.headers["location"]).text:
        assert time.monotonic() < end
        time.sleep(0.2)
    return str(made.headers["location"]).rpartition("=")[2]


def anew(client: TestClient) -> None:
    """Have the next page look for itself."""
    app = client.app
    assert isinstance(app, Starlette)
    app.state.portal.moments.forget()


def test_a_job_that_said_much_is_shown_from_its_end_and_quickly(tmp_path: Path) -> None:
    client = reader(tmp_path, Access(token=TOKEN, actions=True))
    log_in(client)
    job = launched(tmp_path, client)
    (log,) = (tmp_path / "store/jobs" / job).glob("main-0.log")
    with log.open("wb") as file:
        file.write(b"first line\n")
        file.seek(200 << 20)
        file.write(b"\n" + (b"x" * 99 + b"\n") * 20_000 + b"last line\n")
    anew(client)
    used = time.process_time()
    text = client.get("/job", params={"id": job}).text
    assert time.process_time() - used < 1
    assert "last line" in text
    assert "first line" not in text
    assert len(text) < 1_000_000


def test_half_a_record_of_a_job_hides_none_of_the_others(tmp_path: Path) -> None:
    client = reader(tmp_path, Access(token=TOKEN, actions=True))
    log_in(client)
    first = launched(tmp_path, client)
    jobs = [first, "spades", "hearts"]
    with closing(sqlite3.connect(tmp_path / "store/jobs.db")) as database:
        database.execute("CREATE TEMP TABLE copy AS SELECT * FROM submissions")
        for name in jobs[1:]:
            database.execute("UPDATE copy SET id = ?1, token = ?1", (name,))
            database.execute("INSERT INTO submissions SELECT * FROM copy")
        for change in (
            "status = '{\"state\": \"succ', roles = '[1'",
            "status = '[]', state = 'dreaming', name = '<b>a/../b'",
            'status = \'{"state": "failed", "tasks": 3}\'',
        ):
            database.execute(f"UPDATE submissions SET {change} WHERE id = ?", (jobs.pop(),))
        database.commit()
    anew(client)
    text = client.get("/jobs").text
    assert text.count("/job?id=") == 3
    assert "<b>" not in text
    assert "&lt;b&gt;a/../b" in text


def test_readers_of_one_moment_share_what_was_asked() -> None:
    moments = Moments(seconds=60)
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        return 7

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: moments.get("x", ask), range(99)))
    assert (set(found), asked) == ({7}, [1])
    moments.forget()
    assert moments.get("x", lambda: 8) == 8
