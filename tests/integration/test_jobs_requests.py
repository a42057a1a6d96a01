"""What is rendered for each engine passes that engine's own checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.kubernetes_objects import RELEASES, check_object

from torchsmith.jobs.clients import render
from torchsmith.jobs.files import load_jobs

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

ROOT = Path(__file__).parents[2]

EVERYTHING = r"""
name = "everything"
image = "registry.example.org:5000/lab/torch:2.6"
distributed = true
retries = 2
time_limit = "1d2h3m4s"
queue = "gpu"
secrets = { HF_TOKEN = "hub/token", WANDB_API_KEY = "wandb" }
env = { GREETING = "it's $5 $(now) `x` \"y\"", PLAIN = "1" }
kubernetes = { namespace = "lab", node_selector = { "kubernetes.io/arch" = "amd64" } }

[slurm]
account = "lab"
qos = "long"
constraint = "a100&nvlink"
gpu_type = "a100"
modules = ["cuda/12.6"]

[[data]]
name = "data"
from = "/srv/data"
at = "/data"

[[output]]
name = "output"
from = "/srv/output"
at = "/output"

[[role]]
name = "Chief"
cpus = 8
memory_mb = 65536
shm_mb = 8192
gpus = 2
port = [{ name = "tensorboard", number = 6006, count = 2 }, { name = "any" }]
command = ["pip install --quiet .", "cd code && python train.py \"$RANK\" # it's all\nEND"]

[[role]]
name = "workers"
tasks = 3
cpus = 16
memory_mb = 131072
gpus = 8
min_failed = 1
command = "torchrun train.py"
"""
SMALL = """
name = "small"
image = "lab/torch"
slurm = { container = "apptainer", array = "0-3%2" }

[[role]]
tasks = 4
cpus = 3
memory_mb = 1000
gpus = 1
min_failed = -1
command = "for i in 1 2; do echo \\"$i\\"; done"
"""
ENVIRONMENT = """
name = "wheels"
environment = "envs/torch-2"
wheels = "dist/lab"
secrets = { HF_TOKEN = "hub/token" }

[[role]]
command = "python main.py"
"""
# What OpenPAI's variables and its rules of completion become.
SERVED = """
name = "served"
image = "lab/torch"
retries = -1
openpai_env = true

[[role]]
name = "ps"
tasks = 2
min_failed = -1
min_succeeded = -1
port = [{ name = "grpc", count = 2 }]
command = "python ps.py"

[[role]]
name = "worker"
tasks = 3
min_failed = 2
min_succeeded = 3
command = ["set -u", "echo \\"$PAI_HOST_IP_ps_0:$PAI_PORT_LIST_ps_0_grpc\\""]
"""
EXAMPLES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples/jobs").glob("*.toml"))
}
# A folder beside the job, which only this machine has.
HERE = {"digits": ["output=[]"]}
JOBS = {"everything": EVERYTHING, "small": SMALL, "served": SERVED, **EXAMPLES}
SCRIPTS = {**JOBS, "wheels": ENVIRONMENT}


def rendered(text: str, engine: str, folder: Path, *changes: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    files = render(load_jobs(path, changes), engine).files
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_sbatch_script_is_good_bash(name: str, tmp_path: Path) -> None:
    path = rendered(SCRIPTS[name], "slurm", tmp_path)
    subprocess.run(["bash", "-n", path], check=True)
    subprocess.run(["shellcheck", path], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_local_script_is_good_posix_shell(name: str, tmp_path: Path) -> None:
    path = rendered(SCRIPTS[name], "local", tmp_path)
    subprocess.run(["dash", "-n", path], check=True)
    subprocess.run(["shellcheck", "--shell=sh", path], check=True)


def test_jobs_that_follow_each_other_are_submitted_by_a_good_script(tmp_path: Path) -> None:
    jobs = "".join(
        f'[[job]]\nname = "{name}"\nimage = "x"\nafter = {after}\n[[job.role]]\ncommand = "true"\n'
        for name, after in (("last", '["first", "second"]'), ("second", "[]"), ("first", "[]"))
    )
    rendered(jobs, "slurm", tmp_path)
    script = tmp_path / "submit.sh"
    subprocess.run(["shellcheck", script], check=True)
    # In place of the cluster: says what it is asked, and answers with an id.
    fake = tmp_path / "sbatch"
    fake.write_text('#!/bin/sh\necho "$@" >&2\necho "id-${2%.sbatch}"\n')
    fake.chmod(0o755)
    said = subprocess.run(
        ["bash", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    ).stderr.splitlines()
    assert said == [
        "--parsable second.sbatch",
        "--parsable first.sbatch",
        "--parsable --dependency=afterok:id-first:id-second last.sbatch",
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", JOBS)
def test_a_manifest_is_valid_for_every_kubernetes(name: str, release: str, tmp_path: Path) -> None:
    # Counting tasks came later than the rest.
    counting = {"small": "role.min_failed=1", "served": "role.worker.min_failed=1"}
    changes = [counting[name]] if name in counting and release < "1.34" else []
    path = rendered(JOBS[name], "kubernetes", tmp_path, *changes, *HERE.get(name, []))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        check_object(document, [release])


@pytest.mark.parametrize("engine", ["kubeflow", "kubeflow-trainer"])
@pytest.mark.parametrize("name", sorted(set(JOBS) - {"everything", "small", "served"}))
def test_a_job_of_kubeflow_matches_its_published_model(
    name: str, engine: str, tmp_path: Path
) -> None:
    path = rendered(JOBS[name], engine, tmp_path, *HERE.get(name, []))
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    check_object(document)


@pytest.mark.parametrize("name", JOBS)
def test_a_compose_file_obeys_the_specification(name: str, tmp_path: Path) -> None:
    path = rendered(JOBS[name], "compose", tmp_path)
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, path], check=True)
