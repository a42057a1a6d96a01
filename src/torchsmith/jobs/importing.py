"""Reading OpenPAI's own job files, so that nothing in them is lost.

What the model has a word for becomes a key of the job. What only OpenPAI knows is kept as it is,
under `openpai` or `openpai_v1`, and rendered again. Anything else is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from torchsmith.errors import UsageError
from torchsmith.jobs import yaml_text
from torchsmith.jobs.files import Jobs
from torchsmith.jobs.openpai_rules import problems
from torchsmith.recipe import job as written
from torchsmith.recipe.load import text_of
from torchsmith.recipe.problems import problems_of
from torchsmith.recipe.reading import read_file

Table = dict[str, JsonValue]
MAX_BYTES = 1 << 20
_SCALARS = (str, int, float, bool)


@dataclass(frozen=True)
class Imported:
    """A job, which protocol it was in, and what was left behind on purpose."""

    job: written.Job
    protocol: int
    notes: tuple[str, ...] = ()


def import_job(path: Path) -> Imported:
    """Read a job file of OpenPAI, of either protocol. `UsageError` says what is wrong with it."""
    try:
        document = _document(text_of(read_file(path, MAX_BYTES)))
        if "protocolVersion" in document:
            return _protocol_2(document)
        if "jobName" in document:
            return _protocol_1(document)
    except ValueError as error:
        raise UsageError(f"{path} {error}", "It has to be a job of OpenPAI.") from None
    raise UsageError(
        f"{path} is not a job of OpenPAI: it has neither jobName nor protocolVersion",
        "Protocol 1 is JSON with a jobName, protocol 2 is YAML with protocolVersion: 2.",
    )


def _document(text: str) -> Table:
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text, object_pairs_hook=_each_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"is not valid JSON: line {error.lineno}: {error.msg}") from None
        except RecursionError:
            raise ValueError("is not valid JSON: nested too deeply") from None
    else:
        document = yaml_text.read(text)
    if not isinstance(document, dict):
        raise ValueError("holds no table")
    return document


def _each_once(pairs: list[tuple[str, JsonValue]]) -> Table:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has {twice!r} twice")
    return table


def _job(table: Table, protocol: int, notes: list[str]) -> Imported:
    try:
        (job,) = Jobs.model_validate({"job": [table]}).job
        return Imported(job, protocol, tuple(notes))
    except ValidationError as error:
        said = "; ".join(
            str(problem).removeprefix("job#1.")
            for problem in problems_of(error, {"job": [table]}, {})
        )
        raise ValueError(f"cannot be taken over: {said}") from None


def _no_null(table: Mapping[str, JsonValue], at: str) -> None:
    """A job file is TOML, which has no null: what is kept must not hold any."""
    for key, value in table.items():
        if value is None:
            raise ValueError(f"says null for {at}{key}, which has no place in a job file")
        if isinstance(value, dict):
            _no_null(value, f"{at}{key}.")
        if isinstance(value, list):
            _no_null({str(index): item for index, item in enumerate(value)}, f"{at}{key}.")


def _moved(source: Table, target: Table, names: Mapping[str, str]) -> None:
    """Move keys over under their new names; null means that a key is not there."""
    for old, new in names.items():
        value = source.pop(old, None)
        if value is not None:
            target[new] = value


# ------------------------------------------------------------------------------ protocol 1


def _protocol_1(document: Table) -> Imported:
    rest = dict(document)
    job: Table = {}
    _moved(
        rest,
        job,
        {
            "jobName": "name",
            "image": "image",
            "virtualCluster": "queue",
            "retryCount": "retries",
        },
    )
    roles = rest.pop("taskRoles", None)
    if not isinstance(roles, list) or not roles:
        raise ValueError("has no taskRoles")
    kept_roles: Table = {}
    made: list[JsonValue] = []
    for item in roles:
        if not isinstance(item, dict):
            raise ValueError("has a task role that is no table")
        role, kept = _role_1(dict(item))
        made.append(role)
        if kept:
            kept_roles[str(role.get("name"))] = kept
    rest |= {"taskRoles": kept_roles} if kept_roles else {}
    _no_null(rest, "")
    return _job({**job, "role": made, **({"openpai_v1": rest} if rest else {})}, 1, [])


def _role_1(rest: Table) -> tuple[Table, Table]:
    role: Table = {}
    for key in ("name", "taskNumber", "cpuNumber", "memoryMB", "gpuNumber", "command"):
        # Our own defaults would change what it means.
        if rest.get(key) is None:
            raise ValueError(f"has a task role without {key}")
    _moved(
        rest,
        role,
        {
            "name": "name",
            "taskNumber": "tasks",
            "cpuNumber": "cpus",
            "memoryMB": "memory_mb",
            "gpuNumber": "gpus",
            "shmMB": "shm_mb",
            "minFailedTaskCount": "min_failed",
            "minSucceededTaskCount": "min_succeeded",
            "command": "command",
        },
    )
    command = role.get("command")
    if isinstance(command, str) and "\n" in command:
        role["command"] = [command]
    ports = rest.pop("portList", None)
    if ports is not None:
        if not isinstance(ports, list):
            raise ValueError("has a portList that is no list")
        role["port"] = [_port_1(item) for item in ports]
    return role, rest


def _port_1(item: JsonValue) -> Table:
    if not isinstance(item, dict) or set(item) - {"label", "beginAt", "portNumber"}:
        raise ValueError("has a port that is not made of label, beginAt and portNumber")
    port: Table = {}
    _moved(dict(item), port, {"label": "name", "beginAt": "number", "portNumber": "count"})
    return port


# ------------------------------------------------------------------------------ protocol 2


def _protocol_2(document: Table) -> Imported:
    if wrong := problems(document):
        raise ValueError(f"is not a request OpenPAI takes: {'; '.join(wrong)}")
    rest = {key: value for key, value in document.items() if key not in ("protocolVersion", "type")}
    job: Table = {}
    _moved(rest, job, {"name": "name", "jobRetryCount": "retries"})
    notes: list[str] = []
    secrets = rest.pop("secrets", {})
    if isinstance(secrets, dict) and secrets:
        rest["secrets"] = [*secrets]
        notes += [
            f"the value of the secret {name} is not taken over: give it when submitting"
            for name in secrets
        ]
    parameters = rest.pop("parameters", {})
    assert isinstance(parameters, dict)
    plain: Table = {
        name: value for name, value in parameters.items() if isinstance(value, _SCALARS)
    }
    job |= {"parameters": plain} if plain else {}
    other = {name: value for name, value in parameters.items() if name not in plain}
    rest |= {"parameters": other} if other else {}
    defaults = rest.pop("defaults", {})
    assert isinstance(defaults, dict)
    defaults = dict(defaults)
    _moved(defaults, job, {"virtualCluster": "queue"})
    rest |= {"defaults": defaults} if defaults else {}
    roles = rest.pop("taskRoles")
    prerequisites = rest["prerequisites"]
    assert isinstance(roles, dict)
    assert isinstance(prerequisites, list)
    images = {
        item["name"]: item["uri"]
        for item in prerequisites
        if isinstance(item, dict) and item["type"] == "dockerimage"
    }
    kept_roles: Table = {}
    made: list[JsonValue] = []
    for name, item in roles.items():
        assert isinstance(item, dict)
        role, kept = _role_2(dict(item))
        made.append({"name": name, "image": images[item["dockerImage"]], **role})
        kept_roles[name] = kept
    _no_null(rest, "")
    rest["taskRoles"] = kept_roles
    return _job({**job, "role": made, "openpai": rest}, 2, notes)


def _role_2(rest: Table) -> tuple[Table, Table]:
    role: Table = {}
    _moved(rest, role, {"instances": "tasks", "taskRetryCount": "retries", "commands": "command"})
    for table, names in (
        (
            "completion",
            {"minFailedInstances": "min_failed", "minSucceededInstances": "min_succeeded"},
        ),
        ("resourcePerInstance", {"cpu": "cpus", "memoryMB": "memory_mb", "gpu": "gpus"}),
        ("extraContainerOptions", {"shmMB": "shm_mb"}),
    ):
        found = rest.pop(table, {})
        inner: Table = dict(found) if isinstance(found, dict) else {}
        _moved(inner, role, names)
        ports = inner.pop("ports", {})
        if isinstance(ports, dict) and ports:
            role["port"] = [{"name": name, "count": count} for name, count in ports.items()]
        if inner:
            rest[table] = inner
    return role, rest
