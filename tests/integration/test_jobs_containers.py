"""Jobs in containers of this machine, in an image made of a few programs of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.containers import EngineHere
from tests.slurm_cluster import until
from tests.torchsmith_jobs import Jobs, command_lines, kept_bytes

from torchsmith.jobs.local import LABEL
from torchsmith.jobs.targets.local import end_all

pytestmark = pytest.mark.integration

NAME = "localhost/tiny:1"


def _image(folder: Path) -> Path:
    """A file system with a shell and what the jobs below call."""
    path = folder / "image.tar"
    (folder / "name").write_text("tiny\n")
    found = {"etc/image": str(folder / "name")}
    for name in ("bash", "cat", "sleep", "touch"):
        program = shutil.which(name)
        assert program is not None
        found[f"bin/{name}"] = program
        asked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        found |= {library[1:]: library for library in re.findall(r"(/\S+) \(0x", asked.stdout)}
    with tarfile.open(path, "w", dereference=True) as archive:
        for name, source in found.items():
            archive.add(source, name)
    return path


@pytest.fixture(params=["podman", "docker"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    """Jobs of an engine that has the image."""
    here: EngineHere = request.getfixturevalue(request.param)
    # No job asks for what an image starts by itself.
    here("import", "--change", 'ENTRYPOINT ["/bin/sleep", "1"]', _image(tmp_path), NAME)
    return Jobs(tmp_path, request.param, dict(here.env))


IMAGE = f'image = "{NAME}"\n'


def test_a_task_runs_in_its_image_with_its_folders_and_secrets(jobs: Jobs) -> None:
    jobs.env["HF_TOKEN"] = "hunter2-of-the-job"
    path = jobs.write(
        [
            "cat /etc/image",
            'test "$HF_TOKEN" = hunter2-of"-the-job"',
            'touch "$OUTPUT_DIR/made"',
            "exit 4",
        ],
        f'{IMAGE}secrets = {{ HF_TOKEN = "hub/token" }}\n'
        'output = [{ name = "output", from = "results", at = "/output" }]',
    )
    done = jobs.call("submit", path, "--to", jobs.to, "--follow")
    assert done.returncode == 12, done.stdout + done.stderr
    assert "tiny\n" in done.stdout
    assert "exit code 4" in done.stdout
    assert (jobs.folder / "results/made").exists()
    assert b"hunter2-of-the-job" not in kept_bytes(jobs.folder)


def test_cancelling_ends_the_container_and_puts_it_away(
    jobs: Jobs, request: pytest.FixtureRequest
) -> None:
    job = jobs.submit(jobs.write(["trap '' TERM", "echo begun; sleep 4715"], IMAGE))
    jobs.says(job, "begun")
    done = jobs.call("cancel", job)
    assert done.returncode == 0, done.stderr
    assert jobs.status(job).status.state == "cancelled"
    until(lambda: b"sleep\x004715" not in command_lines())
    assert request.getfixturevalue(jobs.to).left() == []


def test_a_container_is_put_away_where_nobody_lives_to_do_it(
    jobs: Jobs, request: pytest.FixtureRequest
) -> None:
    here = request.getfixturevalue(jobs.to)
    here("create", "--label", f"{LABEL}=lost", NAME, "sleep", "4715")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", here.env["PATH"])
        for name in ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DOCKER_HOST"):
            patch.setenv(name, here.env.get(name, ""))
        assert end_all("lost", 1, jobs.to) == []
    assert here.left() == []


def test_a_job_without_an_image_is_refused(jobs: Jobs) -> None:
    done = jobs.call("submit", jobs.write("true"), "--to", jobs.to)
    assert done.returncode == 2
    assert f"{jobs.to} runs images, and role main names none" in done.stderr
    assert jobs.list() == []
