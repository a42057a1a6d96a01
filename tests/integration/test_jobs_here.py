"""Jobs of this machine: they outlive the command, and are found, followed and stopped by others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slurm_cluster import until
from tests.torchsmith_jobs import COMMAND, Jobs, command_lines, kept_bytes

from torchsmith.jobs.local import JOB

pytestmark = pytest.mark.integration


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, "local")


def test_a_job_outlives_the_command_and_is_followed_by_another(jobs: Jobs) -> None:
    job = jobs.submit(jobs.write("echo begun; until test -e go; do sleep 0.1; done; exit 5"))
    jobs.until(job, "running")
    following = subprocess.Popen(
        [*COMMAND, "logs", job, "-f"], env=jobs.environ, stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "begun\n"
    (jobs.folder / "go").touch()
    assert following.wait(timeout=60) == 0
    following.stdout.close()
    status = jobs.status(job).status
    assert status.state == "failed"
    assert status.exit_code == 5
    assert status.tasks[0].exit_code == 5
    assert "exit code 5" in jobs.call("status", job[:4]).stdout


def test_a_module_in_the_folder_of_the_job_is_not_imported_by_torchsmith(jobs: Jobs) -> None:
    for name in ("json", "signal", "gzip"):
        (jobs.folder / f"{name}.py").write_text("raise SystemExit('imported')\n")
    done = jobs.call("submit", jobs.write("echo well"), "--to", "local", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "well" in done.stdout


def test_a_failing_task_ends_the_others_and_is_named(jobs: Jobs) -> None:
    path = jobs.write('[ "$TASK_INDEX" != 0 ] || { echo oh no >&2; exit 3; }; sleep 1000')
    done = jobs.call("submit", path, "--to", "local", "--set", "role.tasks=3", "--wait")
    assert done.returncode == 12
    assert "main-0 said last (exit code 3):\n    oh no\n" in done.stdout


def test_commands_are_bash_s_and_a_pipe_fails_with_its_first_program(jobs: Jobs) -> None:
    path = jobs.write(["words=(one two)", 'echo "${words[1]}" &> said', "false | cat", "touch on"])
    done = jobs.call("submit", path, "--to", "local", "--wait")
    assert done.returncode == 12, done.stdout + done.stderr
    assert (jobs.folder / "said").read_text() == "two\n"
    assert not (jobs.folder / "on").exists()


def test_cancelling_ends_every_process_also_those_that_hide(jobs: Jobs) -> None:
    hiding = ["trap '' TERM", "setsid sh -c 'trap \"\" TERM; sleep 4712' &", "sleep 4712"]
    job = jobs.submit(jobs.write(hiding))
    until(lambda: command_lines().count(b"sleep\x004712") >= 2)
    done = jobs.call("cancel", job)
    assert done.returncode == 0, done.stderr
    assert b"sleep\x004712" not in command_lines()
    assert jobs.status(job).status.state == "cancelled"


def test_time_is_up_also_for_a_task_that_does_not_listen(jobs: Jobs) -> None:
    path = jobs.write(["trap '' TERM", "while :; do sleep 4713; done"], 'time_limit = "1s"')
    done = jobs.call("submit", path, "--to", "local", "--wait", "--json")
    assert done.returncode == 12
    assert json.loads(done.stdout)["jobs"][0]["state"] == "timeout"
    assert b"sleep\x004713" not in command_lines()


def test_a_failed_job_is_started_again_as_often_as_it_says(jobs: Jobs) -> None:
    path = jobs.write("echo again; test -e second || { touch second; exit 1; }", "retries = 2")
    done = jobs.call("submit", path, "--to", "local", "--follow")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines().count("again") == 2


def test_a_job_waits_for_another_and_is_dropped_if_that_fails(jobs: Jobs) -> None:
    path = jobs.write("until test -e go; do sleep 0.1; done; touch made", name="first")
    first = jobs.submit(path)
    second = jobs.submit(jobs.write("test -e made", name="second"), "--after", first)
    assert jobs.status(second).status.state == "waiting"
    (jobs.folder / "go").touch()
    wrong = jobs.submit(jobs.write("exit 1", name="wrong"))
    never = jobs.submit(jobs.write("touch never", name="never"), "--after", wrong)
    assert jobs.until(second, "succeeded", "failed").state == "succeeded"
    dropped = jobs.until(never, "cancelled", "failed")
    assert dropped.state == "cancelled"
    assert dropped.reason == f"{wrong} did not succeed"
    assert not (jobs.folder / "never").exists()


def supervisor(jobs: Jobs, job: str) -> Path:
    """The file that says which process runs a job."""
    return jobs.folder / "store/jobs" / job / "process.json"


def test_a_job_whose_supervisor_was_killed_is_still_known_and_can_be_stopped(jobs: Jobs) -> None:
    job = jobs.submit(jobs.write("sleep 4714"))
    until(lambda: b"sleep\x004714" in command_lines())
    os.kill(json.loads(supervisor(jobs, job).read_text())["pid"], signal.SIGKILL)
    until(lambda: "what waited for it is gone" in jobs.status(job).status.reason)
    assert jobs.status(job).status.state == "running"
    jobs.call("cancel", job)
    assert b"sleep\x004714" not in command_lines()
    assert jobs.status(job).status.state == "cancelled"


def test_a_number_that_another_process_has_now_is_not_taken_for_the_job(jobs: Jobs) -> None:
    job = jobs.submit(jobs.write("kill -KILL 0"))
    path = supervisor(jobs, job)
    table = json.loads(path.read_text())
    os.kill(table["pid"], signal.SIGKILL)
    (path.parent / "ended").unlink(missing_ok=True)
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        path.write_text(json.dumps({**table, "pid": sleeper.pid}))
        until(lambda: jobs.status(job).status.state == "lost")
        sleeper.kill()


def test_a_job_that_is_started_twice_runs_once(jobs: Jobs) -> None:
    job = jobs.submit(jobs.write("echo ran; sleep 1"))
    kept = jobs.folder / "store/jobs" / job
    again = subprocess.run(
        [sys.executable, "-m", "torchsmith.jobs.targets.local", str(kept)],
        env={**jobs.environ, JOB: "another"},
        check=False,
    )
    assert again.returncode == 0
    jobs.until(job, "succeeded")
    assert jobs.call("logs", job).stdout == "ran\n"


def test_a_secret_reaches_the_task_and_nobody_else(jobs: Jobs) -> None:
    jobs.env = {"HF_TOKEN": "hunter2-of-the-job", "OTHER_PASSWORD": "hunter3-of-nobody"}
    path = jobs.write(
        'test "$HF_TOKEN" = hunter2-of"-the-job" && test -z "$OTHER_PASSWORD" && touch right;'
        " echo done; sleep 2",
        'secrets = { HF_TOKEN = "hub/token" }',
    )
    job = jobs.submit(path)
    jobs.says(job, "done")
    assert (jobs.folder / "right").exists()
    seen = command_lines() + kept_bytes(jobs.folder)
    assert b"hunter2-of-the-job" not in seen
    assert b"hunter3-of-nobody" not in seen
