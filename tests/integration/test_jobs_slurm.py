"""Jobs on a real Slurm of two nodes: submitted, followed, stopped, found again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm_cluster import Cluster, running_cluster, until
from tests.torchsmith_jobs import COMMAND, Jobs, command_lines, kept_bytes

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples/jobs"


@pytest.fixture
def jobs(slurm: Cluster, tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(tmp_path, "slurm")
    slurm.ask("scancel", "--state=PENDING", "--user=root")


@pytest.fixture(scope="module")
def limited(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Jobs, str]:
    """A job that ends when its time is up: a minute is the least Slurm counts in."""
    jobs = Jobs(tmp_path_factory.mktemp("limited"), "slurm")
    job = jobs.write("echo at work; sleep 300", 'time_limit = "5s"', "limited")
    return jobs, jobs.submit(job)


@pytest.fixture(autouse=True)
def _limited_runs_meanwhile(limited: tuple[Jobs, str]) -> None:
    """The minute passes while the other tests run."""


def fake_program(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which a program is another one, that may call the real one."""
    folder.mkdir(exist_ok=True)
    real = shutil.which(name)
    (folder / name).write_text(f"#!/bin/sh\n{script.replace('REAL', str(real))}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def numbers(slurm: Cluster) -> list[str]:
    return slurm.ask("squeue", "--states=all", "--noheader", "--format=%A").split()


def test_two_nodes_train_together_and_are_followed_live(jobs: Jobs, published_torch: Path) -> None:
    for name in ("digits.py", "digits-distributed.toml"):
        shutil.copy(EXAMPLES / name, jobs.folder)
    changes = (
        *("image=", f"environment={published_torch}", "role.tasks=2", "role.processes=1"),
        *("role.cpus=1", "role.memory_mb=3000"),
    )
    options = [word for change in changes for word in ("--set", change)]
    following = subprocess.Popen(
        [*COMMAND, "submit", "digits-distributed.toml", "--to", "slurm", "--follow", *options],
        cwd=jobs.folder,
        env=jobs.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    job = following.stdout.readline().split()[0]
    first = following.stdout.readline()
    # What it says is here before it is over.
    assert not jobs.status(job).status.state.over, first
    said, complaints = following.communicate(timeout=180)
    assert following.returncode == 0, first + said + complaints
    found = re.search(r"accuracy ([\d.]+) with (\d+) processes", first + said)
    assert found, first + said
    assert float(found[1]) > 0.9
    assert found[2] == "2"
    status = jobs.status(job).status
    assert status.state == "succeeded"
    assert status.nodes == ("n1", "n2")
    assert [task.exit_code for task in status.tasks] == [0, 0]


def test_a_failing_task_is_reported_with_what_it_said_and_what_is_known_of_it(
    jobs: Jobs,
) -> None:
    failing = (
        'if [ "$SLURM_PROCID" = 1 ]; then '
        'echo "RuntimeError: CUDA error: no kernel image is available for execution on the device"'
        " >&2; exit 3; fi; sleep 60"
    )
    done = jobs.call(
        "submit", jobs.write(failing), "--to", "slurm", "--set", "role.tasks=2", "--wait"
    )
    assert done.returncode == 12
    assert "main-1 said last (exit code 3):" in done.stdout
    assert "no kernel image is available" in done.stdout
    assert "known: " in done.stdout
    status = jobs.list()[0]
    assert status["state"] == "failed"
    assert [task["state"] for task in status["tasks"]] == ["cancelled", "failed"]
    assert [task["exit_code"] for task in status["tasks"]][1] == 3


def test_a_job_is_cancelled_with_all_its_processes(jobs: Jobs) -> None:
    job = jobs.submit(jobs.write("echo begun; sleep 4711"), "--set", "role.tasks=2")
    jobs.says(job, "begun")
    done = jobs.call("cancel", job)
    assert done.returncode == 0, done.stderr
    assert "cancelled" in done.stdout
    assert jobs.status(job).status.state == "cancelled"
    until(lambda: b"sleep\x004711" not in command_lines())
    # One that is over stays as it ended.
    assert "cancelled" in jobs.call("cancel", job).stdout


def test_an_array_runs_once_for_each_index_and_each_has_its_output(jobs: Jobs) -> None:
    path = jobs.write('echo "index $SLURM_ARRAY_TASK_ID"; [ "$SLURM_ARRAY_TASK_ID" != 2 ]')
    done = jobs.call("submit", path, "--to", "slurm", "--array", "0-3", "--wait", "--json")
    assert done.returncode == 12
    (status,) = json.loads(done.stdout)["jobs"]
    ends = {task["element"]: task["state"] for task in status["tasks"]}
    assert ends == {"0": "succeeded", "1": "succeeded", "2": "failed", "3": "succeeded"}
    said = jobs.call("logs", status["id"]).stdout.splitlines()
    assert [line for line in said if "main" in line] == [
        f"{index}/main-0 | index {index}" for index in range(4)
    ]
    assert {line.partition(" | ")[0] for line in said if "main" not in line} == {"2/script"}
    assert jobs.call("logs", status["id"], "--task", "3/main-0").stdout == "index 3\n"


def test_a_job_begins_when_the_one_before_succeeded_and_never_if_it_failed(jobs: Jobs) -> None:
    first = jobs.submit(jobs.write("sleep 1; touch done", name="first"))
    second = jobs.submit(jobs.write("test -e done", name="second"), "--after", first)
    wrong = jobs.submit(jobs.write("exit 1", name="wrong"))
    never = jobs.submit(jobs.write("touch never", name="never"), "--after", wrong)
    assert jobs.until(second, "succeeded", "failed").state == "succeeded"
    assert jobs.until(never, "cancelled", "failed").state == "cancelled"
    assert not (jobs.folder / "never").exists()


def test_jobs_of_one_file_wait_for_each_other(jobs: Jobs) -> None:
    path = jobs.folder / "several.toml"
    path.write_text(
        '[[job]]\nname = "use"\nafter = ["make"]\n'
        'role = [{ memory_mb = 100, command = "cat made" }]\n'
        '[[job]]\nname = "make"\nrole = [{ memory_mb = 100, command = "echo it > made" }]\n'
    )
    done = jobs.call("submit", path, "--to", "slurm", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert jobs.call("logs", jobs.list()[0]["id"]).stdout == "it\n"


def test_gpus_are_given_to_tasks(jobs: Jobs) -> None:
    job = jobs.write('echo "gpus ${CUDA_VISIBLE_DEVICES:-none}"')
    done = jobs.call("submit", job, "--to", "slurm", "--set", "role.gpus=2", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpus 0,1" in done.stdout


def test_roles_run_side_by_side_and_are_told_apart(jobs: Jobs) -> None:
    path = jobs.folder / "roles.toml"
    path.write_text(
        'name = "roles"\n[[role]]\nname = "server"\nmemory_mb = 100\ncommand = "echo served"\n'
        '[[role]]\nname = "worker"\nmemory_mb = 100\ncommand = "echo worked"\n'
    )
    done = jobs.call("submit", path, "--to", "slurm", "--wait", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (status,) = json.loads(done.stdout)["jobs"]
    assert [task["role"] for task in status["tasks"]] == ["server", "worker"]
    assert jobs.call("logs", status["id"], "--role", "worker").stdout == "worker-0 | worked\n"


def test_a_command_killed_right_after_sbatch_loses_no_job_and_submits_none_twice(
    jobs: Jobs, slurm: Cluster
) -> None:
    path = jobs.write("sleep 2; echo ran", name="once")
    before = set(numbers(slurm))
    kills = fake_program(jobs.folder / "bin", "sbatch", 'REAL "$@" && kill -KILL $PPID')
    killed = Jobs(jobs.folder, "slurm", kills).call("submit", path, "--to", "slurm")
    assert killed.returncode == -signal.SIGKILL
    (mine,) = set(numbers(slurm)) - before
    again = jobs.call("submit", path, "--to", "slurm")
    assert again.returncode == 0, again.stderr
    assert "has it already" in again.stderr
    (found,) = jobs.list()
    assert found["engine_id"] == mine
    assert jobs.until(found["id"], "succeeded", "failed").state == "succeeded"
    assert set(numbers(slurm)) - before == {mine}


def test_a_job_whose_answer_was_lost_is_found_by_the_next_list(jobs: Jobs, slurm: Cluster) -> None:
    kills = fake_program(jobs.folder / "bin", "sbatch", 'REAL "$@" && kill -KILL $PPID')
    Jobs(jobs.folder, "slurm", kills).call("submit", jobs.write("true"), "--to", "slurm")
    (found,) = jobs.list()
    assert found["engine_id"] in numbers(slurm)


def test_an_sbatch_that_outlives_its_command_is_waited_for(jobs: Jobs, slurm: Cluster) -> None:
    path = jobs.write("true", name="slow")
    before = set(numbers(slurm))
    slow = fake_program(
        jobs.folder / "bin",
        "sbatch",
        'kill -KILL $PPID; until test -e go; do sleep 0.1; done; exec REAL "$@"',
    )
    Jobs(jobs.folder, "slurm", slow).call("submit", path, "--to", "slurm")
    refused = jobs.call("submit", path, "--to", "slurm")
    assert refused.returncode == 11
    assert "sbatch is still running" in refused.stderr
    (jobs.folder / "go").touch()
    until(lambda: len(set(numbers(slurm)) - before) == 1)
    assert "has it already" in jobs.call("submit", path, "--to", "slurm").stderr
    assert len(set(numbers(slurm)) - before) == 1


def test_a_failed_job_is_started_again_as_often_as_it_says(jobs: Jobs) -> None:
    path = jobs.write("echo again; test -e second || { touch second; exit 1; }", "retries = 1")
    done = jobs.call("submit", path, "--to", "slurm", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("again") == 2


def test_a_command_killed_before_sbatch_is_unsent_and_sent_when_asked_again(
    jobs: Jobs, slurm: Cluster
) -> None:
    path = jobs.write("true", name="later")
    before = set(numbers(slurm))
    kills = fake_program(jobs.folder / "bin", "sbatch", "kill -KILL $PPID")
    Jobs(jobs.folder, "slurm", kills).call("submit", path, "--to", "slurm")
    (unsent,) = jobs.list()
    assert unsent["state"] == "unsent"
    assert set(numbers(slurm)) == before
    assert jobs.submit(path) == unsent["id"]
    assert len(jobs.list()) == 1
    assert len(set(numbers(slurm)) - before) == 1


def test_what_slurm_refuses_is_said_in_its_words_and_not_kept(jobs: Jobs) -> None:
    done = jobs.call("submit", jobs.write("true"), "--to", "slurm", "--set", "queue=nowhere")
    assert done.returncode == 11
    assert "Invalid partition name specified" in done.stderr
    assert jobs.list() == []


def test_an_image_without_pyxis_is_refused_before_anything_is_submitted(jobs: Jobs) -> None:
    done = jobs.call("submit", jobs.write("true"), "--to", "slurm", "--set", "image=lab/torch:1")
    assert done.returncode == 4
    assert "no pyxis" in done.stderr
    assert jobs.list() == []


def test_a_secret_reaches_the_task_and_nobody_else(jobs: Jobs, slurm: Cluster) -> None:
    jobs.env = {"HF_TOKEN": "hunter2-of-the-job", "OTHER_PASSWORD": "hunter3-of-nobody"}
    path = jobs.write(
        'test "$HF_TOKEN" = hunter2-of"-the-job" && test -z "$OTHER_PASSWORD" && touch right;'
        " echo done; sleep 3",
        'secrets = { HF_TOKEN = "hub/token" }',
    )
    job = jobs.submit(path)
    jobs.says(job, "done")
    assert (jobs.folder / "right").exists()
    number = jobs.status(job).engine_id
    seen = command_lines() + kept_bytes(jobs.folder)
    seen += slurm.ask("scontrol", "show", "job", "--details", number).encode()
    seen += slurm.ask("scontrol", "write", "batch_script", number, "-").encode()
    assert b"hunter2-of-the-job" not in seen
    assert b"hunter3-of-nobody" not in seen


def test_a_job_that_slurm_forgot_is_known_by_what_it_wrote(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_cluster(tmp_path_factory.mktemp("forgetful")) as other:
        jobs = Jobs(tmp_path, "slurm", other.env)
        well = jobs.submit(jobs.write("true", name="well"))
        ill = jobs.submit(jobs.write("exit 7", name="ill"))
        gone = jobs.submit(jobs.write("echo begun; sleep 600", name="gone"))
        kept = tmp_path / "store/jobs"
        until(lambda: all((kept / job / "ended").exists() for job in (well, ill)))
        # Its task, not only its script: without a controller no task can be started, and the job
        # would rightly say that it failed.
        log = kept / gone / "main-0.log"
        until(lambda: log.exists() and "begun" in log.read_text())
        assert jobs.status(gone).status.state == "running"
        other.stop_controller()

        listed = jobs.call("list")
        assert listed.returncode == 0
        assert "controller cannot be reached" in listed.stderr
        assert "as they were last known" in listed.stderr
        refused = jobs.call("submit", jobs.write("true"), "--to", "slurm")
        assert refused.returncode == 11
        assert "controller cannot be reached" in refused.stderr

        # A controller that lost all it knew.
        for node in ("n1", "n2"):
            other.kill_node(node)
        shutil.rmtree(other.folder / "state")
        (other.folder / "state").mkdir()
        other.start_controller()
        assert jobs.status(well).status.state == "succeeded"
        ended = jobs.status(ill).status
        assert ended.state == "failed"
        assert ended.tasks[0].exit_code == 7
        lost = jobs.status(gone).status
        assert lost.state == "lost"
        assert "last seen running" in lost.reason


def test_a_job_is_stopped_when_its_time_is_up(limited: tuple[Jobs, str]) -> None:
    jobs, job = limited
    status = jobs.until(job, "timeout", "failed", "cancelled", seconds=150)
    assert status.state == "timeout"
    assert "at work" in jobs.call("logs", job).stdout


SERVED = """
name = "served"

[[role]]
name = "ps"
memory_mb = 200
min_succeeded = -1
command = "echo $PAI_CURRENT_TASK_ROLE_NAME $PAI_TASK_INDEX; sleep 4713"

[[role]]
name = "worker"
memory_mb = 200
min_succeeded = 1
command = ["test -n \\"$PAI_HOST_IP_ps_0\\"", "echo meets $PAI_HOST_IP_ps_0 in $PAI_JOB_NAME"]
"""


def test_a_parameter_server_ends_when_its_worker_is_done(jobs: Jobs) -> None:
    path = jobs.folder / "served.toml"
    path.write_text(SERVED, encoding="utf-8")
    done = jobs.call("submit", path, "--to", "slurm", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ps-0 | ps 0" in done.stdout
    assert re.search(r"worker-0 \| meets n[12] in root~served", done.stdout)
    assert jobs.list()[0]["state"] == "succeeded"
    until(lambda: b"sleep\x004713" not in command_lines())


def test_a_role_that_fails_ends_the_others(jobs: Jobs) -> None:
    path = jobs.folder / "served.toml"
    path.write_text(SERVED.replace("test -n", "exit 7; test -n"), encoding="utf-8")
    done = jobs.call("submit", path, "--to", "slurm", "--wait")
    assert done.returncode == 12, done.stdout + done.stderr
    found = jobs.list()[0]
    assert found["state"] == "failed"
    assert [task["exit_code"] for task in found["tasks"] if task["role"] == "worker"] == [7]
    until(lambda: b"sleep\x004713" not in command_lines())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param(["min_failed=2"], 0, id="one failure is borne"),
        pytest.param(["min_failed=1"], 12, id="one failure fails it"),
        pytest.param(["min_failed=-1", "min_succeeded=1"], 0, id="one success is enough"),
    ],
)
def test_the_tasks_of_a_role_are_counted(jobs: Jobs, changes: list[str], code: int) -> None:
    job = jobs.write('if [ "$SLURM_PROCID" = 1 ]; then exit 3; fi; sleep 1', "", "counted")
    options = [word for change in changes for word in ("--set", f"role.{change}")]
    done = jobs.call("submit", job, "--to", "slurm", "--wait", "--set", "role.tasks=2", *options)
    assert done.returncode == code, done.stdout + done.stderr
