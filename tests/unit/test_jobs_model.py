"""A job is read as it is written; what cannot be meant is refused in one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from torchsmith.errors import RecipeError, UsageError
from torchsmith.jobs.clients import TARGETS, render
from torchsmith.jobs.files import load_jobs
from torchsmith.recipe.job import seconds
from torchsmith.secret_names import is_secret_name

pytestmark = pytest.mark.unit

HEAD = 'name = "a"\nimage = "lab/torch"\n'
ROLE = '[[role]]\ncommand = "python main.py"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_jobs(written(folder, text))
    return "\n".join(map(str, caught.value.problems)) or caught.value.message


def test_a_job_file_has_the_keys_of_a_recipes_job(tmp_path: Path) -> None:
    (job,) = load_jobs(written(tmp_path, HEAD + ROLE))
    (listed,) = load_jobs(
        written(tmp_path, f"[[job]]\n{HEAD}{ROLE.replace('[[role]]', '[[job.role]]')}")
    )
    assert job == listed
    assert job.roles[0].commands == ("python main.py",)


def test_the_backend_follows_the_gpus(tmp_path: Path) -> None:
    text = f"{HEAD}distributed = true\n{ROLE}"
    assert load_jobs(written(tmp_path, text))[0].backend == "gloo"
    (job,) = load_jobs(written(tmp_path, f"{text}gpus = 2\n"))
    assert (job.backend, job.roles[0].processes) == ("nccl", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + '[[role]]\nname = "main"\n', "role#1.command: is missing"),
        (HEAD + '[[role]]\ncommand = " "\n', "role main has no command"),
        (HEAD + "[[role]]\ncommand = []\n", "role#1.command"),
        (HEAD + ROLE + "gpus = -1\n", "line 5: role#1.gpus: -1: "),
        (HEAD + ROLE + "cpus = 0\n", "line 5: role#1.cpus: 0: "),
        (HEAD + ROLE + "memory_mb = 0\n", "role#1.memory_mb: 0: "),
        (HEAD + ROLE + "tasks = 1.5\n", "role#1.tasks: 1.5: must be a whole number"),
        (HEAD + ROLE + "min_failed = 2\n", "min_failed is 2, and role main has 1 task"),
        (HEAD + 'time_limit = "0h"\n' + ROLE, "must be more than nothing"),
        (HEAD + 'time_limit = "soon"\n' + ROLE, "a length of time such as 90m"),
        (HEAD + 'backend = "nccl"\n' + ROLE, "connects GPUs, and no role has any"),
        (HEAD + 'environment = "env"\n' + ROLE, "a job runs in one of the two"),
        (HEAD + "rol = 1\n" + ROLE, "did you mean 'role'?"),
        ('name = "a b"\n' + ROLE, "name"),
        (HEAD + ROLE + ROLE, "entries 1 and 2 are both 'main'"),
        (HEAD + 'data = [{ name = "d", from = "$(x)", at = "/d" }]\n' + ROLE, "data#1.from"),
        ("", "is empty"),
        ("name = ", "not valid TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in problems(tmp_path, text)


def test_remote_gpus_need_distributed_training_over_nccl_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    remote = f"{HEAD}remote_gpus = true\n{{}}{ROLE}gpus = 2\n"
    assert "works only through NCCL" in problems(tmp_path, remote.format(""))
    assert "works only through NCCL" in problems(
        tmp_path, remote.format('distributed = true\nbackend = "gloo"\n')
    )
    asked = remote.format('distributed = true\nbackend = "nccl"\n')
    assert load_jobs(written(tmp_path, asked))[0].backend == "nccl"


@pytest.mark.parametrize("name", ["HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "APIKEY"])
@pytest.mark.parametrize("table", ["", "[[role]]\n"])
def test_a_secret_in_clear_is_refused_and_not_repeated(
    tmp_path: Path, name: str, table: str
) -> None:
    env = f'env = {{ {name} = "hunter2" }}\n'
    text = HEAD + (ROLE + env if table else env + ROLE)
    said = problems(tmp_path, text)
    assert f'secrets = {{ {name} = "name/key" }}' in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "TLS_KEY_FILE", "OMP"])
def test_a_variable_that_only_sounds_alike_is_no_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("char", ["\\u0000", "\\u001b", "\\u009b", "\\u202e"])
def test_a_parameter_holds_no_control_characters(tmp_path: Path, char: str) -> None:
    said = problems(tmp_path, f'{HEAD}parameters = {{ x = "a{char}b" }}\n{ROLE}')
    assert "control characters" in said


def test_lengths_of_time_add_up() -> None:
    assert seconds("1d12h30m5s") == 86400 + 12 * 3600 + 30 * 60 + 5


def test_a_key_can_be_set_from_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + ROLE)
    changes = ["name=b", "role.gpus=2", "role.main.cpus=8", "slurm.account=lab", "env.A=1 2"]
    (job,) = load_jobs(path, changes)
    assert (job.name, job.roles[0].gpus, job.roles[0].cpus) == ("b", 2, 8)
    assert (job.slurm.account, job.roles[0].env["A"]) == ("lab", "1 2")


@pytest.mark.parametrize("change", ["gpus", "=1", "role.gpus=1", "name.x=1"])
def test_a_change_that_says_too_little_is_refused(tmp_path: Path, change: str) -> None:
    text = HEAD + ROLE + '[[role]]\nname = "other"\ncommand = "true"\n'
    with pytest.raises(UsageError):
        load_jobs(written(tmp_path, text), [change])


def test_a_changed_key_is_checked_like_a_written_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        load_jobs(written(tmp_path, HEAD + ROLE), ["role.gpus=-1"])


def test_an_unknown_job_and_an_unknown_engine_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + ROLE)
    with pytest.raises(UsageError, match="no such job"):
        load_jobs(path, names=["b"])
    with pytest.raises(UsageError, match="'nomad' is not an engine"):
        render(load_jobs(path), "nomad")


@pytest.mark.parametrize("engine", sorted(set(TARGETS) - {"slurm", "local"}))
def test_an_engine_that_runs_images_asks_for_one(tmp_path: Path, engine: str) -> None:
    path = written(tmp_path, f'name = "a"\nenvironment = "env"\n{ROLE}')
    with pytest.raises(UsageError, match="runs images"):
        render(load_jobs(path), engine)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("kubernetes", "my-job-2"),
        ("kubeflow", "my-job-2"),
        ("kubeflow-trainer", "my-job-2"),
        ("compose", "my_job_2"),
    ],
)
def test_a_name_an_engine_does_not_take_is_fitted_and_told(
    tmp_path: Path, engine: str, name: str
) -> None:
    path = written(tmp_path, HEAD.replace('"a"', '"_My_Job_2"') + ROLE)
    made = render(load_jobs(path), engine)
    document = yaml.safe_load(next(iter(made.files.values())))
    assert document.get("name", document.get("metadata", {}).get("name")) == name
    assert any("_My_Job_2" in note and name in note for note in made.notes)
    plain = render(load_jobs(path, [f"name={name}"]), engine)
    assert not any("take" in note for note in plain.notes)


def test_jobs_that_would_be_called_the_same_are_refused(tmp_path: Path) -> None:
    role = ROLE.replace("[[role]]", "[[job.role]]")
    text = "".join(
        f'[[job]]\nname = "{name}"\nimage = "x"\n{role}' for name in ("mnist_2", "mnist-2")
    )
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match="mnist_2 and mnist-2 would both be called mnist-2"):
        render(load_jobs(path), "kubernetes")
    assert render(load_jobs(path, names=["mnist_2"]), "kubernetes").files


def test_jobs_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    role = ROLE.replace("[[role]]", "[[job.role]]")
    text = "".join(
        f'[[job]]\nname = "{name}"\nimage = "x"\nafter = ["{other}"]\n{role}'
        for name, other in (("a", "b"), ("b", "a"))
    )
    with pytest.raises(UsageError, match="wait for each other"):
        render(load_jobs(written(tmp_path, text)), "slurm")


def test_a_recipes_jobs_run_in_its_image() -> None:
    recipes = Path(__file__).parents[2] / "recipes"
    (job,) = load_jobs(recipes / "orion-vgpu.toml")
    assert job.roles[0].image == "orion-pytorch:1.1.0-py3.5"
    assert job.roles[0].shm_mb == 8192
