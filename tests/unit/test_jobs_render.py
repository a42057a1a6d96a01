"""What a rendering says, and how the command gives it out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.jobs.clients import TARGETS, render
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.models import Rendering
from torchsmith.recipe import job as written
from torchsmith.recipe.job import Kubernetes, Slurm
from torchsmith.recipe.presets import find_preset

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
HEAD = 'name = "train"\nimage = "registry.example.org/lab/torch:2.6"\n'
ROLE = "[[role]]\ncpus = 4\nmemory_mb = 4096\ngpus = 2\ntasks = 2\n"
PLAIN = 'command = "python main.py --lr 1"\n'


def rendered(folder: Path, text: str, engine: str, *changes: str) -> Rendering:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return render(load_jobs(path, changes), engine)


def text_of(folder: Path, text: str, engine: str, *changes: str) -> str:
    (content,) = rendered(folder, text, engine, *changes).files.values()
    return content.decode()


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("slurm", '--node-rank="$SLURM_PROCID" --master-addr="$MASTER_ADDR"'),
        ("kubernetes", '--node-rank="$JOB_COMPLETION_INDEX" --master-addr=train-0.train'),
        ("kubeflow", '--node-rank="$RANK" --master-addr="$MASTER_ADDR"'),
        ("kubeflow-trainer", '--node-rank="$PET_NODE_RANK" --master-addr="$PET_MASTER_ADDR"'),
        ("openpai", '--master-addr="$PAI_HOST_IP_main_0"'),
        ("openpai-v1", "--master-port="),
        ("compose", '--node-rank="$$TASK_INDEX" --master-addr=main-0'),
        ("local", '--node-rank="$TASK_INDEX" --master-addr=127.0.0.1'),
    ],
)
def test_tasks_meet_where_each_engine_has_the_first(
    tmp_path: Path, engine: str, words: str
) -> None:
    text = text_of(tmp_path, f"{HEAD}distributed = true\n{ROLE}{PLAIN}", engine)
    assert "torchrun --nnodes=2 --nproc-per-node=2" in text
    assert words in text
    assert "main.py --lr 1" in text
    assert "nccl" in text


@pytest.mark.parametrize("engine", TARGETS)
def test_a_plain_job_has_no_launcher(tmp_path: Path, engine: str) -> None:
    text = text_of(tmp_path, HEAD + ROLE + PLAIN, engine, "role.tasks=1")
    assert "torchrun" not in text
    assert "python main.py --lr 1" in text


def test_shell_syntax_gets_a_shell_for_each_process(tmp_path: Path) -> None:
    command = 'command = ["pip install x", "cd code && python main.py"]\n'
    text = text_of(tmp_path, f"{HEAD}distributed = true\n{ROLE}{command}", "slurm")
    assert "\npip install x\n" in text
    assert "--no-python bash -eo pipefail -c 'cd code && python main.py'" in text


def test_a_command_that_launches_itself_finds_the_rendezvous(tmp_path: Path) -> None:
    command = 'command = "torchrun main.py"\n'
    text = text_of(tmp_path, f"{HEAD}distributed = true\n{ROLE}{command}", "slurm")
    assert "PET_NNODES=2 PET_NPROC_PER_NODE=2\ntorchrun main.py\n" in text


def test_roles_of_a_distributed_job_have_ranks_one_after_the_other(tmp_path: Path) -> None:
    more = '[[role]]\nname = "more"\ntasks = 3\ncommand = "python main.py"\n'
    text = text_of(tmp_path, f"{HEAD}distributed = true\n{ROLE}{PLAIN}{more}", "slurm")
    assert "#SBATCH hetjob" in text
    assert "SLURM_JOB_NODELIST_HET_GROUP_0" in text
    assert '--nnodes=5 --nproc-per-node=1 --node-rank="$((2 + SLURM_PROCID))"' in text


@pytest.mark.parametrize("engine", sorted(set(TARGETS) - {"openpai-v1"}))
def test_a_secret_is_only_ever_referred_to(tmp_path: Path, engine: str) -> None:
    text = text_of(
        tmp_path,
        HEAD + 'secrets = { HF_TOKEN = "hub/token" }\n' + ROLE + PLAIN,
        engine,
        "role.tasks=1",
    )
    where = {
        "kubernetes": "secretKeyRef",
        "kubeflow": "secretKeyRef",
        "kubeflow-trainer": "secretKeyRef",
        "openpai": "<% $secrets.hub_token %>",
        "compose": "${HF_TOKEN:?",
    }
    assert where.get(engine, "hub/token") in text


def test_a_container_gets_its_shared_memory_and_gpus(tmp_path: Path) -> None:
    text = text_of(tmp_path, HEAD + ROLE + PLAIN + "shm_mb = 1024\n", "kubernetes")
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    assert pod["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}}
    ]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize("engine", TARGETS)
def test_every_engine_runs_commands_in_bash_and_stops_at_the_first_that_fails(
    engine: str, tmp_path: Path
) -> None:
    command = 'command = ["false | tee log", "python main.py"]\n'
    text = text_of(tmp_path, f"{HEAD}{ROLE}{command}", engine, "role.tasks=1")
    if engine.startswith("openpai"):
        # Its own shell is bash; apart from this it stops where a variable is not set.
        assert "set +u -eo pipefail" in text
    else:
        assert re.search(r"\bbash\b", text.partition("\n")[2])
        assert "-eo pipefail" in " ".join(text.replace("- ", "").split())
    assert not re.search(r"\bsh\W+-e?c\W+\"?\$?(text|role_main)", text)


@pytest.mark.parametrize("engine", ["podman", "docker", "compose"])
def test_what_an_image_starts_by_itself_starts_nothing_of_a_job(
    engine: str, tmp_path: Path
) -> None:
    text = text_of(tmp_path, f"{HEAD}{ROLE}{PLAIN}", engine, "time_limit=1h")
    if engine == "compose":
        service = yaml.safe_load(text)["services"]["main-0"]
        assert service["entrypoint"] == ["timeout"]
        assert service["command"][:4] == ["-k", "10", "3600", "bash"]
    else:
        assert f"{engine} run --rm --init --entrypoint= " in text


def test_what_a_shell_or_an_engine_would_fill_in_reaches_the_task_as_it_is(tmp_path: Path) -> None:
    value = "it's $(now) $HOME `x`"
    text = f'{HEAD}env = {{ ODD = "{value}" }}\n{ROLE}{PLAIN}'
    pod = yaml.safe_load(text_of(tmp_path, text, "kubernetes"))["spec"]["template"]["spec"]
    assert {"name": "ODD", "value": value.replace("$(", "$$(")} in pod["containers"][0]["env"]
    service = yaml.safe_load(text_of(tmp_path, text, "compose"))["services"]["main-0"]
    assert service["environment"]["ODD"] == value.replace("$", "$$")


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        ("claim:x", "slurm"),
        ("claim:x", "compose"),
        ("nfs://a/b", "local"),
        ("folder", "kubernetes"),
        ("/srv/x", "openpai"),
    ],
)
def test_a_mount_an_engine_cannot_make_is_refused(tmp_path: Path, source: str, engine: str) -> None:
    mount = f'data = [{{ name = "data", from = "{source}", at = "/data" }}]\n'
    with pytest.raises(UsageError, match=source):
        rendered(tmp_path, HEAD + mount + ROLE + PLAIN, engine)


def test_a_claim_is_mounted_by_kubernetes_and_openpai(tmp_path: Path) -> None:
    text = HEAD + 'data = [{ name = "data", from = "claim:sets/mnist", at = "/d" }]\n'
    pod = yaml.safe_load(text_of(tmp_path, text + ROLE + PLAIN, "kubernetes"))
    (mount,) = pod["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": "mount-0", "mountPath": "/d", "subPath": "mnist", "readOnly": True}
    request = yaml.safe_load(text_of(tmp_path, text + ROLE + PLAIN, "openpai"))
    assert request["extras"]["storages"] == [{"name": "sets", "mountPath": "/d"}]
    assert "export DATA_DIR=/d/mnist" in request["taskRoles"]["main"]["commands"]


def test_a_storage_of_openpai_hides_no_other(tmp_path: Path) -> None:
    text = HEAD + 'data = [{ name = "data", from = "claim:sets", at = "/d" }]\n'
    plugin = '{ plugin = "teamwise_storage", parameters = { storageConfigNames = ["old"] } }'
    teamwise = f'openpai = {{ extras = {{ "com.microsoft.pai.runtimeplugin" = [{plugin}] }} }}\n'
    request = yaml.safe_load(text_of(tmp_path, text + teamwise + ROLE + PLAIN, "openpai"))
    assert request["extras"]["storages"] == [
        {"name": "old", "mountPath": "/mnt/old"},
        {"name": "sets", "mountPath": "/d"},
    ]
    named = 'openpai = { extras = { storages = [{ name = "sets" }, { name = "more" }] } }\n'
    rendering = rendered(tmp_path, text + named + ROLE + PLAIN, "openpai")
    request = yaml.safe_load(next(iter(rendering.files.values())))
    assert request["extras"]["storages"] == [{"name": "sets"}, {"name": "more"}]
    assert "export DATA_DIR=/mnt/sets" in request["taskRoles"]["main"]["commands"]
    assert any("data is at /mnt/sets there, not at /d" in note for note in rendering.notes)


JOB_TABLES: dict[str, type[Slurm | Kubernetes]] = {"slurm": Slurm, "kubernetes": Kubernetes}
# What no engine is told: how a job is called and where it goes; what it is checked for.
NOT_TOLD = {"name", "role", "to", "remote_gpus", "slurm", "kubernetes"}
EXAMPLES = {
    "environment": 'environment="/envs/torch"',
    "wheels": 'wheels="dist"',
    "backend": 'backend="gloo"',
    "openpai_v1": "openpai_v1={jobEnvs={a=1}}",
    "parameters": "parameters={x=2}",
    "role.min_failed": "role.min_failed=2",
    "role.port": 'role.port=[{name="web", number=6006, count=2}]',
}


def fields() -> Iterator[str]:
    yield from (key for key in written.Job.model_fields if key not in NOT_TOLD)
    for table, model in JOB_TABLES.items():
        yield from (f"{table}.{key}" for key in model.model_fields)
    yield from (f"role.{key}" for key in written.Role.model_fields if key != "name")


def example(field: str) -> str:
    """A change that sets a field, from the documentation's own examples."""
    if field in EXAMPLES:
        return EXAMPLES[field]
    keys = tomllib.loads((ROOT / "docs/recipe-keys.toml").read_text(encoding="utf-8"))
    table, _, key = field.rpartition(".")
    said = keys[{"": "Job", "role": "Role"}.get(table, table.capitalize())][key]["example"]
    name, _, value = said.partition(" = ")
    assert name == key
    return f"{field}={value}"


@pytest.mark.parametrize(
    ("field", "engine"),
    [
        (field, engine)
        for field in fields()
        for engine in TARGETS
        # Those variables are its own.
        if field != "openpai_env" or not engine.startswith("openpai")
    ],
)
def test_no_field_is_dropped_in_silence(field: str, engine: str, tmp_path: Path) -> None:
    job = 'name = "train"\nimage = "lab/torch"\n[[role]]\ncommand = "python <% $parameters.x %>"\n'
    base = ["parameters={x=1}", *([] if field == "role.gpus" else ["role.gpus=4"])]
    # What counts tasks, or processes of them, needs some.
    if field in ("role.tasks", "role.processes", "role.min_failed", "role.min_succeeded"):
        base += ["distributed=true"]
    if field in ("role.min_failed", "role.min_succeeded"):
        base += ["role.tasks=3"]
    if field == "wheels":
        base += ["image=", 'environment="/envs/torch"']
    change = [*(["image="] if field == "environment" else []), example(field)]
    try:
        full = rendered(tmp_path, job, engine, *base, *change)
    except UsageError:
        # Refused, which is not dropped.
        return
    plain = rendered(tmp_path, job, engine, *base)
    new = " ".join(set(full.notes) - set(plain.notes))
    key = field.rpartition(".")[2]
    said = {"shm_mb": "shared memory", "image": "is not used", "min_failed": "min_…"}.get(key, key)
    said = "min_…" if key == "min_succeeded" else said
    assert full.files != plain.files or said in new, f"{field} for {engine}: {new}"


PORT: dict[str, object] = {"name": "web", "number": 6006, "count": 2}
MOUNT: dict[str, object] = {"name": "sets", "from": "/srv/sets", "at": "/data"}
OTHER: dict[str, object] = {
    "port.name": "ui",
    "port.number": 7007,
    "port.count": 3,
    "mount.name": "pictures",
    "mount.source": "/srv/pictures",
    "mount.at": "/elsewhere",
}


@pytest.mark.parametrize("engine", TARGETS)
@pytest.mark.parametrize(
    "field",
    [
        *(f"port.{key}" for key in written.Port.model_fields),
        *(f"mount.{key}" for key in written.Mount.model_fields),
    ],
)
def test_no_field_of_a_port_or_a_folder_is_dropped_in_silence(
    field: str, engine: str, tmp_path: Path
) -> None:
    table, _, key = field.partition(".")
    claims = engine.startswith("openpai")
    plain = dict(PORT if table == "port" else MOUNT)
    full = {**plain, "from" if key == "source" else key: OTHER[field]}
    made: list[Rendering] = []
    for one in (plain, full):
        if claims and table == "mount":
            one["from"] = f"claim:{str(one['from']).rpartition('/')[2]}"
        inside = ", ".join(f"{name} = {json.dumps(value)}" for name, value in one.items())
        change = f"role.port=[{{ {inside} }}]" if table == "port" else f"data=[{{ {inside} }}]"
        try:
            made.append(rendered(tmp_path, HEAD + ROLE + PLAIN, engine, "distributed=true", change))
        except UsageError:
            # Refused, which is not dropped.
            return
    plain_one, full_one = made
    said = " ".join(full_one.notes)
    name = "ui" if field == "port.name" else str(full["name"])
    assert full_one.files != plain_one.files or name in said, f"{field} for {engine}: {said}"


@pytest.mark.parametrize("engine", ["kubernetes", "compose"])
def test_retries_of_a_job_beside_those_of_its_tasks_are_not_dropped_in_silence(
    engine: str, tmp_path: Path
) -> None:
    made = rendered(tmp_path, HEAD + ROLE + PLAIN, engine, "retries=3", "role.retries=1")
    assert any("role main: retries" in note for note in made.notes)


def test_compose_says_what_a_failing_task_and_ports_of_several_tasks_do(tmp_path: Path) -> None:
    text = HEAD + ROLE + PLAIN + 'port = [{ name = "web", number = 6006 }]\n'
    notes = " ".join(rendered(tmp_path, text, "compose").notes)
    assert "--abort-on-container-failure" in notes
    assert "port web is open for its first task alone" in notes


def test_an_array_of_a_job_with_several_roles_is_refused(tmp_path: Path) -> None:
    # sbatch: "Invalid job array specification".
    roles = "".join(f'{ROLE}name = "{name}"\n{PLAIN}' for name in ("one", "two"))
    text = HEAD + 'slurm.array = "0-3"\n' + roles
    with pytest.raises(UsageError, match="no arrays of jobs with several roles"):
        rendered(tmp_path, text, "slurm")


def test_what_an_engine_has_no_word_for_is_said(tmp_path: Path) -> None:
    text = HEAD + ROLE + PLAIN + 'port = [{ name = "web" }]\nretries = 1\n'
    assert any("ports" in note for note in rendered(tmp_path, text, "slurm").notes)
    assert any("not opened" in note for note in rendered(tmp_path, text, "kubernetes").notes)
    kept = HEAD + "openpai = { extras = { x = 1 } }\n" + ROLE + PLAIN
    assert "openpai.extras" in rendered(tmp_path, kept, "slurm").notes[0]
    assert rendered(tmp_path, kept, "openpai").notes == ()


SERVED = """
name = "served"
image = "lab/torch"
[[role]]
name = "ps"
min_succeeded = -1
command = "python ps.py"
[[role]]
name = "worker"
tasks = 2
command = "python worker.py --ps $PAI_HOST_IP_ps_0"
"""


@pytest.mark.parametrize(
    ("engine", "host"),
    [
        ("local", "127.0.0.1"),
        ("podman", "127.0.0.1"),
        ("slurm", "$PAI_HOST_IP_ps_0"),
        ("kubernetes", "served-ps-0.served"),
        ("compose", "ps-0"),
    ],
)
def test_every_engine_gives_the_variables_of_openpai(
    engine: str, host: str, tmp_path: Path
) -> None:
    made = rendered(tmp_path, SERVED, engine)
    text = next(iter(made.files.values())).decode().replace("$$", "$")
    for name in (
        f'PAI_HOST_IP_ps_0="{host}"',
        "PAI_PORT_LIST_worker_1_http=",
        'PAI_CURRENT_TASK_ROLE_NAME="worker"',
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=",
        "PAI_TASK_INDEX=",
        '~served"',
        'PAI_TASK_ROLE_TASK_COUNT_worker="2"',
        'PAI_TASK_ROLE_INSTANCES="ps:0,worker:0,worker:1"',
    ):
        assert name in text
    assert any("OpenPAI's variables" in note for note in made.notes)
    assert "PAI_" not in text_of(tmp_path, HEAD + ROLE + PLAIN, engine, "role.tasks=1")


def test_roles_of_kubernetes_find_each_other_though_they_do_not_train_together(
    tmp_path: Path,
) -> None:
    objects = [*yaml.safe_load_all(text_of(tmp_path, SERVED, "kubernetes"))]
    assert [one["kind"] for one in objects] == ["Service", "Job", "Job"]
    for job in objects[1:]:
        assert job["spec"]["template"]["spec"]["subdomain"] == "served"


def test_a_role_that_ends_the_others_makes_one_jobset_of_them(tmp_path: Path) -> None:
    made = rendered(tmp_path, SERVED, "kubernetes", "role.worker.min_succeeded=1")
    (one,) = yaml.safe_load_all(next(iter(made.files.values())).decode())
    assert one["kind"] == "JobSet"
    assert one["spec"]["successPolicy"] == {
        "operator": "Any",
        "targetReplicatedJobs": ["worker"],
    }
    worker = one["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert worker["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert any("needs JobSet" in note for note in made.notes)


def test_openpai_waits_for_every_role_unless_one_is_enough(tmp_path: Path) -> None:
    roles = yaml.safe_load(text_of(tmp_path, SERVED, "openpai"))["taskRoles"]
    assert [role["completion"] for role in roles.values()] == [{"minSucceededInstances": -1}] * 2
    text = text_of(tmp_path, SERVED, "openpai", "role.worker.min_succeeded=1")
    roles = yaml.safe_load(text)["taskRoles"]
    assert roles["worker"]["completion"] == {"minSucceededInstances": 1}


def test_the_images_shared_memory_leaves_some_of_a_tasks_memory(tmp_path: Path) -> None:
    (job,) = load_jobs(find_preset("openpai").path, names=["pytorch-mnist"])
    (role,) = job.roles
    assert (role.memory_mb, role.shm_mb, role.shm_asked) == (8192, 4096, None)


@pytest.mark.parametrize(
    ("image", "fits"),
    [
        ("USER/pai.run.pytorch", False),
        ("lab/Torch:2.6", False),
        ("registry.example.org/USER/torch", False),
        ("lab/torch:CUDA12", True),
        ("registry.example.org:5000/lab/torch:V1", True),
        ("torch", True),
    ],
)
def test_a_name_no_registry_takes_is_told_and_not_submitted(
    image: str, fits: bool, tmp_path: Path
) -> None:
    text = f'name = "train"\nimage = "{image}"\n{ROLE}{PLAIN}'
    notes = rendered(tmp_path, text, "openpai-v1").notes
    assert any("capital letters" in note for note in notes) != fits
    assert not any("capital letters" in note for note in rendered(tmp_path, text, "local").notes)


def test_a_recipe_without_jobs_is_told_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text('name = "lab"\ntorch = "2.6.0"\n', encoding="utf-8")
    code, _, err = run("job", "submit", "lab.toml", "--to", "local")
    assert code == 2
    assert "lab.toml has no job" in err
    assert len(err.splitlines()) <= 3


def test_a_placeholder_is_not_submitted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        f'name = "train"\nimage = "USER/torch"\n{ROLE}{PLAIN}', encoding="utf-8"
    )
    code, _, err = run("job", "submit", "job.toml", "--to", "podman", "--dry-run")
    assert code == 2
    assert "USER may stand for a name of yours" in err


def test_what_is_kept_for_openpai_still_has_to_obey_its_rules(tmp_path: Path) -> None:
    kept = HEAD + 'openpai = { defaults = { deployment = "nope" } }\n' + ROLE + PLAIN
    with pytest.raises(UsageError, match="nope is not among the deployments"):
        rendered(tmp_path, kept, "openpai")


def test_protocol_1_refuses_what_it_cannot_say(tmp_path: Path) -> None:
    secret = HEAD + 'secrets = { HF_TOKEN = "hub" }\n' + ROLE + PLAIN
    with pytest.raises(UsageError, match="has no secrets"):
        rendered(tmp_path, secret, "openpai-v1")
    other = HEAD + ROLE + PLAIN + '[[role]]\nname = "b"\nimage = "other"\ncommand = "true"\n'
    with pytest.raises(UsageError, match="one image for all roles"):
        rendered(tmp_path, other, "openpai-v1")


def test_the_command_prints_writes_and_speaks_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(HEAD + ROLE + PLAIN, encoding="utf-8")
    code, printed, err = run("job", "render", "job.toml", "--to", "local")
    assert code == 0
    assert printed.startswith("#!/bin/sh\n")
    assert "note: train: " in err
    code, out, _ = run("job", "render", "job.toml", "--to", "local", "--output", "made")
    assert (code, out) == (0, "made/train.sh\n")
    assert (tmp_path / "made/train.sh").read_text(encoding="utf-8") == printed
    code, out, err = run("job", "render", "job.toml", "--to", "local", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["files"] == {"train.sh": printed}


def test_the_command_refuses_what_it_cannot_render_and_writes_nothing(
    run: Run, tmp_path: Path
) -> None:
    code, _, err = run("job", "render", "nothing.toml", "--to", "slurm", "--output", "made")
    assert code == 2
    assert "does not exist" in err
    (tmp_path / "job.toml").write_text(HEAD + ROLE + PLAIN, encoding="utf-8")
    assert run("job", "render", "job.toml", "--to", "pbs", "--output", "made")[0] == 2
    assert not (tmp_path / "made").exists()
