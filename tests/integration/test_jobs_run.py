"""The shipped examples train for real, through the script that is rendered for this machine."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from torchsmith.jobs.clients import render
from torchsmith.jobs.files import load_jobs

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples/jobs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "jobs")
    return tmp_path / "jobs"


def run(
    job: Path, *changes: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Render a job for this machine and run it in its folder."""
    ((name, content),) = render(load_jobs(job, changes), "local").files.items()
    script = job.parent / name
    script.write_bytes(content)
    return subprocess.run(
        ["sh", script.name],
        cwd=job.parent,
        # One thread: on a busy machine several wait for each other more than they work.
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def with_torch(environment: Path) -> dict[str, str]:
    return {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def accuracy(said: str) -> tuple[float, int]:
    found = re.search(r"accuracy ([\d.]+) with (\d+) processes", said)
    assert found, said
    return float(found[1]), int(found[2])


def test_one_process_learns_the_digits_and_keeps_the_result(
    folder: Path, published_torch: Path
) -> None:
    done = run(folder / "digits.toml", env=with_torch(published_torch))
    assert done.returncode == 0, done.stderr
    right, processes = accuracy(done.stdout)
    assert right > 0.9
    assert processes == 1
    assert (folder / "digits-output/digits.pt").is_file()


@pytest.mark.parametrize(
    "changes", [[], ["role.tasks=2", "role.processes=1"]], ids=["one-task", "two-tasks"]
)
def test_two_processes_learn_the_digits_together(
    folder: Path, published_torch: Path, changes: list[str]
) -> None:
    done = run(folder / "digits-distributed.toml", *changes, env=with_torch(published_torch))
    assert done.returncode == 0, done.stderr
    right, processes = accuracy(done.stdout)
    assert right > 0.9
    assert processes == 2


def test_the_regression_finds_the_polynomial(folder: Path, published_torch: Path) -> None:
    done = run(folder / "regression.toml", env=with_torch(published_torch))
    assert done.returncode == 0, done.stderr
    loss = re.search(r"loss ([\d.e+-]+)", done.stdout)
    assert loss is not None
    assert float(loss[1]) < 1e-5


def job(folder: Path, command: str, more: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(f'name = "job"\n{more}\n[[role]]\ncommand = {command!r}\n', encoding="utf-8")
    return path


def test_a_failed_job_is_started_again_as_often_as_it_says(tmp_path: Path) -> None:
    done = run(job(tmp_path, "echo again; exit 3", "retries = 2"))
    assert done.returncode == 3
    assert done.stdout.split() == ["again"] * 3


def test_a_task_that_fails_ends_the_others(tmp_path: Path) -> None:
    done = run(job(tmp_path, '[ "$TASK_INDEX" = 0 ] || exit 3; sleep 1000'), "role.tasks=3")
    assert done.returncode == 3


def test_a_job_is_stopped_when_its_time_is_up(tmp_path: Path) -> None:
    done = run(job(tmp_path, "sleep 1000", 'time_limit = "1s"'))
    assert done.returncode == 124


def as_openpai(job: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    """Run what OpenPAI would: the commands as one text, in bash."""
    (content,) = render(load_jobs(job, changes), "openpai").files.values()
    (role,) = yaml.safe_load(content)["taskRoles"].values()
    commands = "\n".join(command.strip() for command in role["commands"])
    return subprocess.run(
        ["bash", "-c", commands], input="typed\n", capture_output=True, text=True, timeout=60
    )


COMMANDS = (
    'command = ["echo one", "read line; echo $line", "sleep $FIRST", "exit $CODE", "echo last"]'
)


def test_openpai_stops_at_the_first_failure_and_its_limit_is_for_all_commands(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.toml"
    for limit in ("", 'time_limit = "2s"\n'):
        head = f'name = "job"\nimage = "x"\n{limit}'
        path.write_text(
            f'{head}env = {{ FIRST = "0", CODE = "3" }}\n[[role]]\n{COMMANDS}\n', encoding="utf-8"
        )
        done = as_openpai(path)
        assert (done.returncode, done.stdout.split()) == (3, ["one", "typed"]), done.stderr
    done = as_openpai(path, 'env={ FIRST = "1000", CODE = "0" }')
    assert (done.returncode, done.stdout.split()) == (124, ["one", "typed"]), done.stderr


SERVED = """
name = "served"

[[role]]
name = "ps"
min_succeeded = -1
command = "sleep 1000"

[[role]]
name = "worker"
tasks = 2
min_succeeded = 2
command = [
  "sleep 1",
  "where=$PAI_HOST_IP_ps_0:$PAI_PORT_LIST_ps_0_http",
  "echo $PAI_TASK_INDEX of $PAI_TASK_ROLE_TASK_COUNT_worker meets $where",
]
"""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param([], 0, id="a parameter server ends when its workers are done"),
        pytest.param(['role.worker.command="exit 3"'], 3, id="a worker that fails ends all"),
        pytest.param(
            ['role.ps.command="exit 4"', "role.ps.min_failed=-1"], 0, id="a failure nobody counts"
        ),
        pytest.param(
            ['role.worker.command="exit $TASK_INDEX"', "role.worker.min_succeeded=1"],
            (0, 1),
            id="whichever comes first",
        ),
        pytest.param(["role.ps.min_failed=-1", 'time_limit="1s"'], 124, id="no time for it"),
    ],
)
def test_a_job_ends_by_the_count_of_its_tasks(
    tmp_path: Path, changes: list[str], code: int | tuple[int, int]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(SERVED, encoding="utf-8")
    done = run(path, *changes)
    codes = (code,) if isinstance(code, int) else code
    assert done.returncode in codes, done.stdout + done.stderr
    if not changes:
        ports = re.findall(r"^(\d) of 2 meets 127\.0\.0\.1:(\d+)$", done.stdout, re.MULTILINE)
        assert sorted(index for index, _ in ports) == ["0", "1"]
        assert len({port for _, port in ports}) == 1


def test_failures_within_the_count_are_borne(tmp_path: Path) -> None:
    path = job(tmp_path, 'exit "$TASK_INDEX"')
    assert run(path, "role.tasks=2", "role.min_failed=2").returncode == 0
    assert run(path, "role.tasks=2", "role.min_failed=-1").returncode == 0
    assert run(path, "role.tasks=2").returncode == 1


def test_a_secret_comes_from_its_file_or_from_the_environment(tmp_path: Path) -> None:
    path = job(tmp_path, 'test "$HF_TOKEN" = "hunter"2', 'secrets = { HF_TOKEN = "hub/token" }')
    place = {"TORCHSMITH_SECRETS": str(tmp_path / "secrets")}
    assert run(path, env=place).returncode != 0
    (tmp_path / "secrets/hub").mkdir(parents=True)
    (tmp_path / "secrets/hub/token").write_text("hunter2\n", encoding="utf-8")
    assert run(path, env=place).returncode == 0
    assert run(path, env={**place, "HF_TOKEN": "other"}).returncode == 1
    assert "hunter2" not in (tmp_path / "job.sh").read_text(encoding="utf-8")


def test_an_environment_is_made_of_wheels_and_made_again_where_it_is_half_made(
    tmp_path: Path,
) -> None:
    _wheel(tmp_path / "dist")
    more = 'environment = "env"\nwheels = "dist"'
    path = job(tmp_path, "python -c 'import tiny; print(tiny.__file__)'".replace("'", '"'), more)
    first = run(path)
    assert first.returncode == 0, first.stderr
    assert str(tmp_path / "env") in first.stdout
    (tmp_path / "env/.complete").unlink()
    shutil.rmtree(next((tmp_path / "env").glob("lib/python*/site-packages/tiny")))
    assert run(path).returncode == 0


def _wheel(folder: Path) -> None:
    folder.mkdir()
    files = {
        "tiny/__init__.py": b"",
        "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={_hash(content)},{len(content)}\n" for name, content in files.items()
    )
    files["tiny-1.0.dist-info/RECORD"] = f"{record}tiny-1.0.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
