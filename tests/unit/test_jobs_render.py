"""What a rendering says, and how the command gives it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.models import Rendering
from torchsmith.jobs.render import ENGINES, render

pytestmark = pytest.mark.unit

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


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_job_has_no_launcher(tmp_path: Path, engine: str) -> None:
    text = text_of(tmp_path, HEAD + ROLE + PLAIN, engine, "role.tasks=1")
    assert "torchrun" not in text
    assert "python main.py --lr 1" in text


def test_shell_syntax_gets_a_shell_for_each_process(tmp_path: Path) -> None:
    command = 'command = ["pip install x", "cd code && python main.py"]\n'
    text = text_of(tmp_path, f"{HEAD}distributed = true\n{ROLE}{command}", "slurm")
    assert "\npip install x\n" in text
    assert "--no-python sh -c 'cd code && python main.py'" in text


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


@pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"openpai-v1"}))
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
    (plugin,) = request["extras"]["com.microsoft.pai.runtimeplugin"]
    assert plugin["parameters"] == {"storageConfigNames": ["sets"]}
    assert "export DATA_DIR=/mnt/sets/mnist" in request["taskRoles"]["main"]["commands"]


def test_what_an_engine_has_no_word_for_is_said(tmp_path: Path) -> None:
    text = HEAD + ROLE + PLAIN + 'port = [{ name = "web" }]\nretries = 1\n'
    assert any("ports" in note for note in rendered(tmp_path, text, "slurm").notes)
    assert any("not opened" in note for note in rendered(tmp_path, text, "kubernetes").notes)
    kept = HEAD + "openpai = { extras = { x = 1 } }\n" + ROLE + PLAIN
    assert "openpai.extras" in rendered(tmp_path, kept, "slurm").notes[0]
    assert rendered(tmp_path, kept, "openpai").notes == ()


def test_what_is_kept_for_openpai_still_has_to_obey_its_rules(tmp_path: Path) -> None:
    kept = HEAD + 'openpai = { defaults = { deployment = "nope" } }\n' + ROLE + PLAIN
    with pytest.raises(UsageError, match="nope is not among the deployments"):
        rendered(tmp_path, kept, "openpai")


def test_protocol_1_refuses_what_it_cannot_say(tmp_path: Path) -> None:
    secret = HEAD + 'secrets = { HF_TOKEN = "hub" }\n' + ROLE + PLAIN
    with pytest.raises(UsageError, match="knows no secrets"):
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
    assert "cannot be read" in err
    (tmp_path / "job.toml").write_text(HEAD + ROLE + PLAIN, encoding="utf-8")
    assert run("job", "render", "job.toml", "--to", "pbs", "--output", "made")[0] == 2
    assert not (tmp_path / "made").exists()
