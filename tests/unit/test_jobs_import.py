"""Jobs of OpenPAI are read and written again, and nothing in them is lost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.importing import import_job
from torchsmith.jobs.openpai_rules import problems
from torchsmith.jobs.render import render
from torchsmith.recipe.job_file import job_file

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[1] / "data" / "jobs"
ROLE = '"name": "m", "taskNumber": 1, "cpuNumber": 1, "memoryMB": 1, "gpuNumber": 0, "command": "x"'


def again(path: Path, engine: str, folder: Path) -> str:
    """What is rendered from the job file an import wrote."""
    written = folder / "job.toml"
    written.write_text(job_file(import_job(path).job), encoding="utf-8")
    (content,) = render(load_jobs(written), engine).files.values()
    return content.decode()


@pytest.mark.parametrize("name", ["mnist", "regression"])
def test_the_jobs_of_the_guide_come_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = DATA / f"openpai-{name}.json"
    assert again(path, "openpai-v1", tmp_path) == path.read_text(encoding="utf-8")


def test_everything_of_protocol_1_comes_back(tmp_path: Path) -> None:
    path = DATA / "openpai-v1-full.json"
    assert json.loads(again(path, "openpai-v1", tmp_path)) == json.loads(path.read_bytes())


def with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """A request with what the protocol says where nothing is written; without secrets' values."""
    roles = {
        name: {"instances": 1, "taskRetryCount": 0, **role}
        for name, role in document["taskRoles"].items()
    }
    plain = {key: value for key, value in document.items() if key != "secrets"}
    return {"jobRetryCount": 0, **plain, "taskRoles": roles}


def test_everything_of_protocol_2_comes_back_but_the_values_of_secrets(tmp_path: Path) -> None:
    path = DATA / "openpai-v2.yaml"
    text = again(path, "openpai", tmp_path)
    before, after = yaml.safe_load(path.read_text(encoding="utf-8")), yaml.safe_load(text)
    assert with_defaults(after) == with_defaults(before)
    assert "hunter2" not in text
    assert "docker_password" in text.splitlines()[0]
    assert "docker_password" in " ".join(import_job(path).notes)


def test_the_values_of_secrets_are_written_nowhere(run: Run, tmp_path: Path) -> None:
    code, out, err = run("job", "import", str(DATA / "openpai-v2.yaml"), "--output", "job.toml")
    assert (code, out.strip()) == (0, "job.toml")
    assert "the secret docker_password is not taken over" in err
    assert "hunter2" not in (tmp_path / "job.toml").read_text(encoding="utf-8") + err


def test_a_file_that_is_there_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("mine", encoding="utf-8")
    code, _, err = run("job", "import", str(DATA / "openpai-mnist.json"), "--output", "job.toml")
    assert code == 5
    assert "there already" in err
    assert (tmp_path / "job.toml").read_text(encoding="utf-8") == "mine"


def test_an_imported_job_runs_elsewhere(tmp_path: Path) -> None:
    assert "cd examples/mnist && python main.py" in again(
        DATA / "openpai-mnist.json", "slurm", tmp_path
    )


def test_what_only_openpai_fills_in_is_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"<% \$script.name %>, which only OpenPAI fills in"):
        again(DATA / "openpai-v2.yaml", "slurm", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds no table"),
        ("{}", "neither jobName nor protocolVersion"),
        ('{"jobName": "a", "jobName": "b"}', "'jobName' twice"),
        ("a: 1\na: 2", "'a' is written twice"),
        ("a: [", "not valid YAML"),
        ('{"jobName": "a"}', "has no taskRoles"),
        ('{"jobName": "a", "image": "x", "taskRoles": [{"name": "m"}]}', "without taskNumber"),
        (
            f'{{"jobName": "a", "image": "x", "extras": null, "taskRoles": [{{{ROLE}}}]}}',
            "says null for extras",
        ),
        (
            f'{{"jobName": "a", "image": "x", "taskRoles": '
            f'[{{{ROLE}, "portList": [{{"label": "a", "to": 1}}]}}]}}',
            "label, beginAt and portNumber",
        ),
        ("protocolVersion: 2\nname: a\ntype: job\nnope: 1", "nope: is not a key of the protocol"),
        ("&a [*a, *a]", "nested too deeply"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "\n".join(
                f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]"
                for i in range(8)
            ),
            "more than 100,000 values",
        ),
    ],
)
def test_what_is_no_job_is_refused_by_name(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        import_job(path)


def request_() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DATA / "openpai-v2.yaml").read_bytes())
    return document


def test_a_good_request_has_no_problems() -> None:
    assert problems(request_()) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("protocolVersion", 1, "protocolVersion: must be 2"),
        ("type", "data", "type: must be job"),
        ("name", "a b", "name: must have the form"),
        ("name", "x" * 256, "name: must have the form"),
        ("extra", 1, "extra: is not a key"),
        ("jobRetryCount", -1, "jobRetryCount"),
        ("prerequisites", [], "prerequisites: must be a list"),
        ("prerequisites.0.uri", "", "prerequisites[0].uri"),
        ("prerequisites.3.uri", "x", "must be a list of addresses"),
        ("prerequisites.0.auth.password", "hunter2", "is written in clear"),
        ("prerequisites.1", {"type": "dockerimage", "name": "tf_example", "uri": "x"}, "two of"),
        ("taskRoles.worker.dockerImage", "nope", "nope is not among the prerequisites"),
        ("taskRoles.worker.script", "nope", "nope is not among the prerequisites"),
        ("taskRoles.worker.instances", 0, "taskRoles.worker.instances"),
        ("taskRoles.worker.commands", [], "taskRoles.worker.commands"),
        ("taskRoles.worker.resourcePerInstance", {"cpu": 1, "gpu": 0}, "memoryMB: is missing"),
        ("taskRoles.worker.resourcePerInstance.cpu", 1.5, "resourcePerInstance.cpu: 1.5"),
        ("taskRoles.worker.resourcePerInstance.gpu", True, "resourcePerInstance.gpu"),
        ("taskRoles.worker.resourcePerInstance.disk", 1, "disk: is not a key"),
        ("taskRoles.worker.resourcePerInstance.ports.a-b", 1, "ports.a-b: must have the form"),
        ("taskRoles.worker.completion.minFailedInstances", 0, "minFailedInstances: 0"),
        ("taskRoles.worker.commands.0", "<% $parameters.nope %>", "the parameter nope"),
        ("taskRoles.worker.commands.0", "<% $nope.x %>", "leads nowhere"),
        ("taskRoles.1st", {}, "taskRoles.1st: must have the form"),
        ("deployments.0.taskRoles.nope", {}, "is no role of the job"),
        ("defaults.deployment", "nope", "nope is not among the deployments"),
    ],
)
def test_what_openpai_would_refuse_is_refused_with_its_place(
    path: str, value: object, said: str
) -> None:
    document = request_()
    *parts, last = path.split(".")
    place: Any = document
    for part in parts:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    found = problems(document)
    assert any(said in problem for problem in found), found
    assert "hunter2" not in " ".join(found)


def test_a_job_file_says_what_was_imported_in_words_of_its_own() -> None:
    table = tomllib.loads(job_file(import_job(DATA / "openpai-v1-full.json").job))
    assert table["queue"] == "vc1"
    assert table["retries"] == 2
    assert table["openpai_v1"]["gpuType"] == "v100"
    assert table["role"][1]["port"] == [{"name": "http", "number": 8080, "count": 3}]
