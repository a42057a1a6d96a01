"""What `torchsmith job submit` refuses: clearly, with nothing submitted and nothing kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.jobs import record
from torchsmith.jobs.client import Output, Submitted, TargetId
from torchsmith.jobs.states import State

pytestmark = pytest.mark.unit

GOOD = 'name = "job"\n[[role]]\ncommand = "true"\n'


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSMITH_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("TORCHSMITH_JOBS_TO", raising=False)


def write(folder: Path, text: str) -> str:
    (folder / "job.toml").write_text(text, encoding="utf-8")
    return "job.toml"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace('"job"', '"a job; rm"'), "name"),
        (f"{GOOD}cpus = 0\n", "cpus"),
        (f"{GOOD}memory_mb = -1\n", "memory_mb"),
        (f"{GOOD}gpus = -1\n", "gpus"),
        (f"{GOOD}tasks = 0\n", "tasks"),
        ('name = "job"\n[[role]]\ncpus = 1\n', "command"),
        ('name = "job"\n[[role]]\ncommand = " "\n', "command"),
        (f"{GOOD}env = {{ API_TOKEN = 'hunter2' }}\n", "API_TOKEN would hold a secret in clear"),
        (f'to = "nowhere"\n{GOOD}', "to"),
    ],
)
def test_a_wrong_job_is_refused_before_anything_is_kept(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    code, out, err = run("job", "submit", write(tmp_path, text), "--to", "local")
    assert code == 2
    assert said in err
    assert "hunter2" not in out + err
    assert not (tmp_path / "store").exists()


def test_a_secret_that_nobody_keeps_is_missed_before_the_job_waits_for_its_turn(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSMITH_SECRETS", str(tmp_path / "secrets"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    wanted = f'secrets = {{ HF_TOKEN = "hub/token" }}\n{GOOD}'
    code, _, err = run("job", "submit", write(tmp_path, wanted), "--to", "local")
    assert code == 2
    assert "hub/token has no value here" in err
    assert "Set HF_TOKEN" in err
    assert not (tmp_path / "store/jobs").exists()


def test_an_engine_that_is_not_installed_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, err = run("job", "submit", write(tmp_path, GOOD), "--to", "slurm")
    assert code == 4
    assert "Slurm is not installed here: there is no sbatch on the PATH" in err
    assert json.loads(run("job", "list", "--json")[1])["jobs"] == []


def test_somebody_has_to_say_where_a_job_goes(run: Run, tmp_path: Path) -> None:
    code, _, err = run("job", "submit", write(tmp_path, GOOD))
    assert code == 2
    assert "no target given: use --to" in err
    code, _, err = run("job", "submit", write(tmp_path, GOOD), "--to", "moon")
    assert code == 2
    assert "Known are: local, " in err


def test_the_command_line_outweighs_the_job_and_that_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSMITH_JOBS_TO", "moon")
    plain, own = GOOD, f'to = "local"\n{GOOD}'
    assert "'moon'" in run("job", "submit", write(tmp_path, plain), "--dry-run")[2]
    code, out, _ = run("job", "submit", write(tmp_path, own), "--dry-run")
    assert code == 0
    assert "# Runs job on this machine." in out
    assert "'sun'" in run("job", "submit", write(tmp_path, own), "--to", "sun", "--dry-run")[2]
    assert json.loads(run("job", "list", "--json")[1])["jobs"] == []


def test_jobs_that_go_to_different_engines_are_taken_one_after_the_other(
    run: Run, tmp_path: Path
) -> None:
    text = "".join(
        f'[[job]]\nname = "{to}"\nto = "{to}"\nrole = [{{ command = "true" }}]\n'
        for to in ("local", "slurm")
    )
    code, _, err = run("job", "submit", write(tmp_path, text), "--dry-run")
    assert code == 2
    assert "different engines: local, slurm" in err
    assert run("job", "submit", "job.toml", "--name", "local", "--dry-run")[0] == 0


def test_this_machine_runs_no_arrays(run: Run, tmp_path: Path) -> None:
    arguments = ("--to", "local", "--array", "0-3")
    code, _, err = run("job", "submit", write(tmp_path, GOOD), *arguments)
    assert code == 2
    assert "this machine runs no arrays" in err


@pytest.mark.parametrize("command", ["status", "logs", "cancel"])
def test_a_job_nobody_submitted_is_not_known(run: Run, command: str) -> None:
    code, _, err = run("job", command, "nobody")
    assert code == 2
    assert "there is no job 'nobody'" in err


def submitted(folder: Path, **roles: int) -> Submitted:
    return Submitted(TargetId("1"), folder, roles)


def test_a_progress_bar_a_last_line_without_an_end_and_stray_bytes_are_shown(
    tmp_path: Path,
) -> None:
    (tmp_path / "main-0.log").write_bytes(b"10%\r50%\r100%\r\n\xff\nno end")
    assert list(record.lines(submitted(tmp_path, main=1), Output())) == ["100%", "\ufffd", "no end"]


def test_lines_of_several_tasks_say_whose_they_are(tmp_path: Path) -> None:
    for name in ("script.log", "worker-10.log", "worker-2.log", "job-0.log", "started"):
        (tmp_path / name).write_text(f"{name}\n")
    job = submitted(tmp_path, job=1, worker=11)
    assert list(record.lines(job, Output())) == [
        "script.log",
        "job-0 | job-0.log",
        "worker-2 | worker-2.log",
        "worker-10 | worker-10.log",
    ]
    assert list(record.lines(job, Output(role="job"))) == ["job-0 | job-0.log"]
    assert list(record.lines(job, Output(task="worker-2"))) == ["worker-2.log"]


def test_a_task_without_an_end_was_ended_for_the_one_that_failed(tmp_path: Path) -> None:
    (tmp_path / "main-1.exit").write_text("3\n")
    tasks = record.tasks(tmp_path, {"main": 3}, State.FAILED)
    assert [task.state for task in tasks] == [State.CANCELLED, State.FAILED, State.CANCELLED]
