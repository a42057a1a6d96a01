"""Jobs of OpenPAI are read and written again, and nothing in them is lost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.openpai_server import Refusal, validate
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.jobs.clients import render
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.importing import import_job
from torchsmith.jobs.openpai_rules import cautions, passwords_in_clear, problems
from torchsmith.recipe.job import job_file

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
    roles = {name: {"instances": 1, **role} for name, role in document["taskRoles"].items()}
    plain = {key: value for key, value in document.items() if key != "secrets"}
    return {**plain, "taskRoles": roles}


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
    assert "already exists" in err
    assert (tmp_path / "job.toml").read_text(encoding="utf-8") == "mine"


def test_an_imported_job_runs_elsewhere(tmp_path: Path) -> None:
    assert "cd examples/mnist && python main.py" in again(
        DATA / "openpai-mnist.json", "slurm", tmp_path
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "holds no table"),
        ("{}", "neither jobName nor protocolVersion"),
        ('{"jobName": "a", "jobName": "b"}', "'jobName' twice"),
        ("a: 1\na: 2", "'a' is written twice"),
        ("a: [", "not valid YAML"),
        ('{"jobName": "a"}', "has no image"),
        ('{"jobName": "a", "image": "x"}', "has no taskRoles"),
        ('{"jobName": "a", "image": "x", "taskRoles": [{"name": "m"}]}', "without command"),
        ("a: {{b}}", "a key is not text"),
        ("a: !!binary aGVs", "not plain values"),
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


def changed(path: str, value: object) -> dict[str, Any]:
    """The good request with one thing changed; `None` in place of a value takes it away."""
    document = request_()
    *parts, last = path.split(".")
    place: Any = document
    for part in parts:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[int(last) if isinstance(place, list) else last] = value
    return document


def taken_by_openpai(document: dict[str, Any]) -> bool:
    """What its server's own schema and checks say, apart from mustache."""
    try:
        validate(document, 2)
    except Refusal:
        return False
    return True


def test_a_good_request_has_no_problems() -> None:
    assert problems(request_()) == []
    assert cautions(request_()) == []
    assert passwords_in_clear(request_()) == []


IMAGE = {"type": "dockerimage", "name": "tf_example", "uri": "x"}
DEPLOYED = {"name": "prod", "taskRoles": {"worker": {"preCommands": ["x"]}}}
REFUSED = [
    ("protocolVersion", 1, "protocolVersion: must be 2"),
    ("protocolVersion", True, "protocolVersion: must be 2"),
    ("type", "data", "type: must be job"),
    ("name", "a b", "name: must have the form"),
    ("name", "x" * 256, "name: must have the form"),
    ("extra", 1, "extra: is not a key"),
    ("jobRetryCount", -1, "jobRetryCount"),
    ("prerequisites", [], "prerequisites: must not be empty"),
    ("prerequisites", {}, "prerequisites: must be a list"),
    ("prerequisites.0", {"type": "dockerimage", "name": "tf_example"}, "uri: is missing"),
    ("prerequisites.0.extra", 1, "extra: is not a key"),
    ("prerequisites.0.auth", {"username": 1}, "username: must be text"),
    ("prerequisites.3.uri", "x", "uri: must be a list"),
    ("prerequisites.1.require", [1], "require[0]: must be text"),
    ("prerequisites.1", IMAGE, "two of"),
    ("secrets", [], "secrets: must be a table"),
    ("parameters", [], "parameters: must be a table"),
    ("extras", [], "extras: must be a table"),
    ("taskRoles.worker.dockerImage", "nope", "nope is not among the prerequisites"),
    ("taskRoles.worker.script", "nope", "nope is not among the prerequisites"),
    ("taskRoles.worker.prerequisites", ["nope"], "nope is not among the prerequisites"),
    ("taskRoles.worker.instances", 0, "taskRoles.worker.instances"),
    ("taskRoles.worker.instances", 1.5, "instances: 1.5"),
    ("taskRoles.worker.commands", [], "taskRoles.worker.commands"),
    ("taskRoles.worker.commands", [1], "commands[0]: must be text"),
    ("taskRoles.worker.resourcePerInstance", {"cpu": 1, "gpu": 0}, "memoryMB: is missing"),
    ("taskRoles.worker.resourcePerInstance.cpu", 1.5, "resourcePerInstance.cpu: 1.5"),
    ("taskRoles.worker.resourcePerInstance.gpu", True, "resourcePerInstance.gpu"),
    ("taskRoles.worker.resourcePerInstance.disk", 1, "disk: is not a key"),
    ("taskRoles.worker.resourcePerInstance.ports.a-b", 1, "ports.a-b: must have the form"),
    ("taskRoles.worker.resourcePerInstance.ports", {}, "ports: must be a table with"),
    ("taskRoles.worker.completion.minFailedInstances", "1", "minFailedInstances: '1'"),
    ("taskRoles.worker.completion.more", 1, "more: is not a key"),
    ("taskRoles.worker.extraContainerOptions.shmMB", "64", "shmMB: '64'"),
    ("taskRoles.1st", {}, "taskRoles.1st: must have the form"),
    ("taskRoles", {}, "taskRoles: must be a table with"),
    ("deployments", [], "deployments: must not be empty"),
    ("deployments", [DEPLOYED, DEPLOYED], "two are named prod"),
    ("deployments.0.taskRoles", {}, "taskRoles: must be a table with"),
    ("deployments.0.taskRoles.worker.preCommands", [], "preCommands: must not be empty"),
    ("defaults.deployment", "nope", "nope is not among the deployments"),
]
TAKEN = [
    ("protocolVersion", "2"),
    ("version", "1.2"),
    ("extras.hivedScheduler.taskRoles", {"worker": {"skuType": None, "skuNum": 0}}),
    ("extras.anything", [None, {"x": None}]),
    ("parameters.nothing", None),
    ("parameters.odd-name", [1, {"a": 2}]),
    ("jobRetryCount", 0),
    ("prerequisites.1", {"type": "script", "name": "model"}),
    ("prerequisites.1.plugin", "com.example.plugin"),
    ("prerequisites.1.anything", {"a": [1]}),
    ("prerequisites.3.uri", []),
    ("taskRoles.worker.prerequisites", ["tf_example", "cifar10"]),
    ("taskRoles.worker.taskRetryCount", -1),
    ("taskRoles.worker.taskRetryCount", 0),
    ("taskRoles.worker.instances", 2.0),
    ("taskRoles.worker.completion", {"minFailedInstances": None, "minSucceededInstances": 0}),
    ("taskRoles.worker.completion", {"minFailedInstances": -1}),
    ("taskRoles.worker.completion", {}),
    ("taskRoles.worker.extraContainerOptions", {"shmMB": 0, "infiniband": True, "other": {"a": 1}}),
    ("taskRoles.worker.resourcePerInstance.gpu", 0),
    ("taskRoles.worker.resourcePerInstance.ports", None),
    ("taskRoles.worker.commands", ["", "a\nb\n", "true if so", "yes"]),
    ("taskRoles.worker.commands", ["<% $parameters.nope %> <% $nope.x %>"]),
    ("deployments.0.taskRoles.nobody", {"postCommands": ["x"]}),
    ("deployments.0.anything", 1),
    ("defaults.anything", {"a": None}),
    ("defaults.virtualCluster", "default"),
    ("defaults.virtualCluster", "a cluster"),
]


@pytest.mark.parametrize(("path", "value", "said"), REFUSED)
def test_what_openpai_would_refuse_is_refused_with_its_place(
    path: str, value: object, said: str
) -> None:
    document = changed(path, value)
    found = problems(document)
    assert any(said in problem for problem in found), found
    # The server's auth schema lets a number through; its template engine does not.
    assert not taken_by_openpai(document) or path.endswith("auth")


@pytest.mark.parametrize(("path", "value"), TAKEN)
def test_what_openpai_takes_is_taken_and_comes_back_as_it_was(
    path: str, value: object, tmp_path: Path
) -> None:
    if path == "prerequisites.1":
        document = changed("taskRoles.worker.output", "model")
        document["prerequisites"].append(value)
    else:
        document = changed(path, value)
    assert taken_by_openpai(document)
    assert problems(document) == []
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    before = {**document, "protocolVersion": 2}
    assert with_defaults(yaml.safe_load(again(file, "openpai", tmp_path))) == with_defaults(before)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("awk '$1 <% x'", "begins with <% and no %> follows"),
        ("<%# a %> x", "has no end"),
        ("<%/ a %>", "was not begun"),
        ("<% $parameters.model %> <%! a word %> <%# a %><%/ a %>", ""),
    ],
)
def test_what_mustache_cannot_read_is_refused(command: str, said: str) -> None:
    found = problems(changed("taskRoles.ps_server.commands", [command]))
    assert [said in problem for problem in found] == ([True] if said else [])


def test_words_that_only_yaml_1_1_took_for_truth_are_words(tmp_path: Path) -> None:
    text = (DATA / "openpai-v2.yaml").read_text(encoding="utf-8")
    file = tmp_path / "job.yaml"
    file.write_text(text.replace("python train.py --job_name=ps", "yes"), encoding="utf-8")
    assert import_job(file).job.role[1].lines == ("yes",)


def test_a_reference_that_leads_nowhere_is_told() -> None:
    found = cautions(changed("taskRoles.worker.commands", ["<% $parameters.nope %> <% $nope.x %>"]))
    assert ["the parameter nope is not there" in found[0], "leads nowhere" in found[1]] == [
        True
    ] * 2


def test_a_password_in_clear_becomes_a_secret(tmp_path: Path) -> None:
    document = changed("prerequisites.0.auth.password", "hunter2")
    assert taken_by_openpai(document)
    assert "is written in clear" in passwords_in_clear(document)[0]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    made = import_job(file)
    assert "hunter2" not in job_file(made.job) + " ".join(made.notes)
    assert "tf_example_password" in job_file(made.job)


def test_what_the_model_has_no_number_for_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    document = changed("taskRoles.worker.resourcePerInstance.cpu", 0)
    assert taken_by_openpai(document)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    assert "taskRoles.worker.resourcePerInstance.cpu: 0 becomes 1" in import_job(file).notes


V1 = f"""// The guide's, as people keep it.
{{
  "jobName": "mnist.1", // dots
  "image": "lab/torch", /* a tag: none */
  "retryCount": -2,
  "virtualCluster": "default",
  "extras": {{"note": null}},
  "taskRoles": [
    {{{ROLE}, "minFailedTaskCount": null, "minSucceededTaskCount": null}},
    {{"name": "0.odd~", "command": "echo http://x // not a comment", "taskNumber": 0}},
  ],
}}
"""


def test_protocol_1_is_read_with_comments_nulls_and_names_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(V1, encoding="utf-8")
    made = import_job(file)
    assert "taskRoles._0_odd_.taskNumber: 0 becomes 1" in made.notes
    assert (made.job.name, made.job.retries, made.job.queue) == ("mnist-1", 0, None)
    assert [role.name for role in made.job.role] == ["m", "_0_odd_"]
    assert made.job.role[0].min_failed == -1
    back = json.loads(again(file, "openpai-v1", tmp_path))
    assert (back["jobName"], back["retryCount"]) == ("mnist.1", -2)
    assert (back["virtualCluster"], back["extras"]) == ("default", {"note": None})
    assert [role["name"] for role in back["taskRoles"]] == ["m", "0.odd~"]
    assert back["taskRoles"][0]["minFailedTaskCount"] is None
    assert back["taskRoles"][0]["minSucceededTaskCount"] is None
    assert back["taskRoles"][1]["command"] == "echo http://x // not a comment"
    validate(back, 1)


@pytest.mark.parametrize("protocol", [1, 2])
def test_an_image_no_engine_takes_is_kept_and_told(protocol: int, tmp_path: Path) -> None:
    file = tmp_path / "job"
    odd = "<your image name>"
    if protocol == 1:
        text = f'{{"jobName": "a", "image": "{odd}", "taskRoles": [{{{ROLE}}}]}}'
        validate(json.loads(text), 1)
    else:
        text = json.dumps(changed("prerequisites.0.uri", odd))
        assert taken_by_openpai(json.loads(text))
    file.write_text(text, encoding="utf-8")
    assert any(odd in note for note in import_job(file).notes)
    assert odd in again(file, "openpai-v1" if protocol == 1 else "openpai", tmp_path)
    with pytest.raises(UsageError, match="names none"):
        again(file, "kubernetes", tmp_path)


def test_the_virtual_cluster_of_everybody_is_no_partition_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(V1, encoding="utf-8")
    assert "--partition" not in again(file, "slurm", tmp_path)


def test_a_role_of_protocol_2_ends_the_job_as_it_does_there() -> None:
    job = import_job(DATA / "openpai-v2.yaml").job
    assert [role.min_succeeded for role in job.role] == [1, -1]


def test_the_commands_of_a_deployment_run_elsewhere_too(tmp_path: Path) -> None:
    document = changed("taskRoles.worker.commands", ["python main.py"])
    document["deployments"][0]["taskRoles"]["worker"] = {
        "preCommands": ["echo before"],
        "postCommands": ["echo behind"],
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    assert "echo before\npython main.py\necho behind" in again(file, "local", tmp_path)


def test_what_a_role_uses_of_its_prerequisites_is_filled_in_elsewhere_too(tmp_path: Path) -> None:
    document = changed("taskRoles.worker.commands", ["get <% $data.uri[0] %> <% $data.name %>"])
    document["prerequisites"].append(
        {"type": "data", "name": "cifar", "uri": ["https://example.org/cifar.tgz"]}
    )
    document["taskRoles"]["worker"]["data"] = "cifar"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    assert "get https://example.org/cifar.tgz cifar" in again(file, "local", tmp_path)
    document["taskRoles"]["worker"]["commands"] = ["get <% $data.uri[1] %>"]
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    with pytest.raises(UsageError, match="only OpenPAI fills in"):
        again(file, "local", tmp_path)


def test_the_words_of_an_older_protocol_2_are_taken_and_told(tmp_path: Path) -> None:
    document = changed("taskRoles.worker.completion", {"minSucceededTaskCount": 1})
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    imported = import_job(file)
    assert next(role for role in imported.job.role if role.name == "worker").min_succeeded == 1
    assert "role worker: minSucceededTaskCount becomes minSucceededInstances" in imported.notes


def test_a_job_file_says_what_was_imported_in_words_of_its_own() -> None:
    table = tomllib.loads(job_file(import_job(DATA / "openpai-v1-full.json").job))
    assert table["queue"] == "vc1"
    assert table["retries"] == 2
    assert table["openpai_v1"]["gpuType"] == "v100"
    assert table["role"][1]["port"] == [{"name": "http", "number": 8080, "count": 3}]
