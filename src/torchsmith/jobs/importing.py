"""Reading OpenPAI's own job files, so that nothing in them is lost.

What the model has a word for becomes a key of the job. Everything else is kept as it is, under
`openpai` or `openpai_v1`, and rendered again: what that is, rendering the job at once and laying it
beside the file tells. What cannot be kept is told by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from torchsmith import yaml_text
from torchsmith.errors import UsageError
from torchsmith.foreign import table, tables
from torchsmith.inputs import read_file
from torchsmith.jobs.models import Job, resolve
from torchsmith.jobs.openpai import document_v1, document_v2, merged
from torchsmith.jobs.openpai_rules import SECRET, problems
from torchsmith.recipe import job as written
from torchsmith.recipe.job import Jobs
from torchsmith.recipe.load import text_of
from torchsmith.recipe.problems import problems_of
from torchsmith.recipe.values import ImageName, Name, is_plain

Table = dict[str, JsonValue]
MAX_BYTES = 1 << 20
_SCALARS = (str, int, float, bool)
# The virtual cluster of those who choose none; elsewhere it would be the name of a queue.
_NO_QUEUE = "default"


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
    plain = _without_comments(text)
    if plain.lstrip().startswith("{"):
        try:
            document = json.loads(plain, object_pairs_hook=_each_once)
        except json.JSONDecodeError as error:
            try:
                # YAML may begin with a brace as well.
                document = yaml_text.read(text)
            except ValueError:
                problem = f"is not valid JSON: line {error.lineno}: {error.msg}"
                raise ValueError(problem) from None
        except RecursionError:
            raise ValueError("is not valid JSON: nested too deeply") from None
    else:
        document = yaml_text.read(text)
    if not isinstance(document, dict):
        raise ValueError("holds no table")
    return document


def _without_comments(text: str) -> str:
    """JSON without what people write into it all the same: comments, and a comma at the end."""
    comments = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'
    plain = re.sub(comments, lambda found: found[1] or _blank(found[0]), text, flags=re.DOTALL)
    commas = r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])'
    return re.sub(commas, lambda found: found[1] or "", plain, flags=re.DOTALL)


def _blank(comment: str) -> str:
    return "\n" * comment.count("\n") or " "


def _each_once(pairs: list[tuple[str, JsonValue]]) -> Table:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"has {twice!r} twice")
    return table


def _validated(table: Table) -> written.Job:
    try:
        (job,) = Jobs.model_validate({"job": [table]}).job
    except ValidationError as error:
        found = "; ".join(
            str(problem).removeprefix("job#1.")
            for problem in problems_of(error, {"job": [table]}, {})
        )
        raise ValueError(f"cannot be taken over: {found}") from None
    return job


def _imported(
    job: Table, protocol: int, kept: Table, document: Table, notes: list[str]
) -> Imported:
    """The job, with everything kept that rendering it would not say by itself."""
    key, render = _PROTOCOLS[protocol]
    first = _validated({**job, key: _storable(kept)})
    again = _comparable(render(resolve(first)), protocol)
    wanted = _comparable(document, protocol)
    lost, changed = _beside(wanted, again, "")
    notes += [f"{at}: {before!r} becomes {after!r}" for at, before, after in changed]
    whole = _storable(merged(kept, lost))
    return Imported(_validated({**job, key: whole}), protocol, tuple(notes))


def _beside(before: Table, after: Table, at: str) -> tuple[Table, list[tuple[str, Any, Any]]]:
    """What of a table is not in another, and what is there with another value."""
    lost: Table = {}
    changed: list[tuple[str, Any, Any]] = []
    for key, value in before.items():
        place = f"{at}.{key}" if at else key
        if key not in after:
            lost[key] = value
            continue
        there = after[key]
        if isinstance(value, dict) and isinstance(there, dict):
            less, other = _beside(value, there, place)
            lost |= {key: less} if less or not value else {}
            changed += other
        elif value != there:
            changed.append((place, value, there))
    return lost, changed


def _comparable(document: Table, protocol: int) -> Table:
    """A request with its roles by name, and without what is never taken over."""
    table = {
        key: value
        for key, value in document.items()
        if key not in ("protocolVersion", "type", "secrets", "prerequisites")
    }
    roles = table.get("taskRoles")
    if protocol == 1 and isinstance(roles, list):
        named = [dict(role) for role in roles if isinstance(role, dict)]
        table["taskRoles"] = {_identifier(str(role.get("name"))): role for role in named}
    return table


def _storable(value: Any) -> Any:
    """A value with a word for null, which a job file has none for."""
    if value is None:
        return written.NULL
    if isinstance(value, dict):
        return {key: _storable(inner) for key, inner in value.items()}
    return [_storable(inner) for inner in value] if isinstance(value, list) else value


def _fits(kind: Any, value: JsonValue) -> bool:
    """Whether the model has a form for a value."""
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:255]
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"[:255]


def _job_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("-")[:255]
    return plain or "job"


def _number(value: JsonValue, least: int, most: int) -> int:
    """The nearest whole number the model takes."""
    return min(max(int(value) if isinstance(value, int | float) else least, least), most)


def _numbers(
    source: Mapping[str, JsonValue], names: Mapping[str, tuple[str, int, int]]
) -> Iterator[tuple[str, int]]:
    for old, (new, least, most) in names.items():
        value = source.get(old)
        if value is not None:
            yield new, _number(value, least, most)


_RESOURCES = {
    "cpu": ("cpus", 1, 4096),
    "memoryMB": ("memory_mb", 1, 100_000_000),
    "gpu": ("gpus", 0, 1024),
}


def _plain_commands(commands: list[str], role: str, notes: list[str]) -> list[str]:
    """Commands without what no job may hold: control characters, or nothing at all."""
    made = ["".join(char for char in text if char in "\n\t" or is_plain(char)) for text in commands]
    if made != commands:
        notes.append(f"role {role}: control characters in its commands are left out")
    if not "".join(made).strip():
        notes.append(f"role {role}: has no command, and runs `true`")
        return ["true"]
    return made


def _enough(value: JsonValue, tasks: int) -> int | None:
    """The number of tasks that decide: -1 for none, none written for the default."""
    if not isinstance(value, int | float) or not value:
        return None
    # A number that is never reached is none.
    return int(value) if 1 <= value <= tasks else -1


# ------------------------------------------------------------------------------ protocol 1


def _protocol_1(document: Table) -> Imported:
    notes: list[str] = []
    image = document.get("image")
    if not isinstance(image, str) or not image:
        raise ValueError("has no image")
    job: Table = {"name": _job_name(str(document["jobName"])), "openpai_env": True}
    kept: Table = {}
    if job["name"] != document["jobName"]:
        kept["jobName"] = document["jobName"]
    if _fits(ImageName, image):
        job["image"] = image
    else:
        kept["image"] = image
        notes.append(f"the image {image!r} is kept for OpenPAI only: no engine takes such a name")
    queue = document.get("virtualCluster")
    if queue != _NO_QUEUE and _fits(Name, queue):
        job["queue"] = queue
    # -2 is OpenPAI's word for never, without the exceptions it makes else.
    job |= dict(_numbers(document, {"retryCount": ("retries", -1, 1000)}))
    if document.get("retryCount") == -2:
        job["retries"] = 0
    roles = document.get("taskRoles")
    if not isinstance(roles, list) or not roles:
        raise ValueError("has no taskRoles")
    made: list[JsonValue] = []
    names: Table = {}
    for item in roles:
        if not isinstance(item, dict):
            raise ValueError("has a task role that is not a table")
        role = _role_1(item, notes)
        if role["name"] != item["name"]:
            names[str(role["name"])] = {"name": item["name"]}
        made.append(role)
    kept |= {"taskRoles": names} if names else {}
    return _imported({**job, "role": made}, 1, kept, document, notes)


def _role_1(item: Table, notes: list[str]) -> Table:
    for key in ("name", "command"):
        if not isinstance(item.get(key), str) or not item[key]:
            raise ValueError(f"has a task role without {key}")
    name = _identifier(str(item["name"]))
    # Where nothing is written, the defaults of its own server.
    asked: Table = {"taskNumber": 1, "cpuNumber": 1, "memoryMB": 100, "gpuNumber": 0}
    asked |= {key: value for key, value in item.items() if value is not None}
    role: Table = {"name": name}
    role |= dict(
        _numbers(
            asked,
            {
                "taskNumber": ("tasks", 1, 100_000),
                "cpuNumber": ("cpus", *_RESOURCES["cpu"][1:]),
                "memoryMB": ("memory_mb", *_RESOURCES["memoryMB"][1:]),
                "gpuNumber": ("gpus", *_RESOURCES["gpu"][1:]),
            },
        )
    )
    shm = item.get("shmMB")
    if isinstance(shm, int) and shm > 0:
        role["shm_mb"] = shm
    tasks = _number(asked["taskNumber"], 1, 100_000)
    for key, new in (
        ("minFailedTaskCount", "min_failed"),
        ("minSucceededTaskCount", "min_succeeded"),
    ):
        if (count := _enough(item.get(key), tasks)) is not None:
            role[new] = count
    if "minFailedTaskCount" in item and item["minFailedTaskCount"] is None:
        role["min_failed"] = -1
    (command,) = _plain_commands([str(item["command"])], name, notes)
    role["command"] = [command] if "\n" in command or len(command) > 4000 else command
    ports = item.get("portList")
    if ports is not None:
        if not isinstance(ports, list):
            raise ValueError("has a portList that is not a list")
        role["port"] = [_port_1(one) for one in ports]
    return role


def _port_1(item: JsonValue) -> Table:
    if not isinstance(item, dict) or set(item) - {"label", "beginAt", "portNumber"}:
        raise ValueError("has a port that is not made of label, beginAt and portNumber")
    if not isinstance(item.get("label"), str) or not item["label"]:
        raise ValueError("has a port without label")
    port: Table = {"name": _identifier(str(item["label"]))[:64]}
    limits = {"beginAt": ("number", 0, 65535), "portNumber": ("count", 1, 1000)}
    return port | dict(_numbers(item, limits))


# ------------------------------------------------------------------------------ protocol 2


# What releases before 1.0 called these.
_OLD_COMPLETION = {
    "minFailedTaskCount": "minFailedInstances",
    "minSucceededTaskCount": "minSucceededInstances",
}


def _renewed(document: Table, notes: list[str]) -> Table:
    """The request with the words of today's protocol in place of older ones."""
    roles = document.get("taskRoles")
    if not isinstance(roles, dict):
        return document
    made: Table = {}
    for name, role in roles.items():
        completion = role.get("completion") if isinstance(role, dict) else None
        if isinstance(role, dict) and isinstance(completion, dict):
            old = [key for key in _OLD_COMPLETION if key in completion]
            notes += [f"role {name}: {key} becomes {_OLD_COMPLETION[key]}" for key in old]
            renamed = {_OLD_COMPLETION.get(key, key): each for key, each in completion.items()}
            made[name] = {**role, "completion": renamed}
        else:
            made[name] = role
    return {**document, "taskRoles": made}


def _protocol_2(document: Table) -> Imported:
    notes: list[str] = []
    document = _renewed(document, notes)
    if wrong := problems(document):
        raise ValueError(f"is not a request OpenPAI takes: {'; '.join(wrong)}")
    job: Table = {"name": _job_name(str(document["name"])), "openpai_env": True}
    if job["name"] != document["name"]:
        notes.append(f"name: {document['name']!r} becomes {job['name']!r}")
    job |= dict(_numbers(document, {"jobRetryCount": ("retries", 0, 1000)}))
    kept: Table = {}
    prerequisites, secrets = _without_passwords(document.get("prerequisites"), notes)
    kept |= {"prerequisites": prerequisites} if prerequisites else {}
    secrets = [*table(document.get("secrets")), *secrets]
    if secrets:
        kept["secrets"] = [*dict.fromkeys(secrets)]
        notes += [
            f"the value of the secret {name} is not taken over: give it when submitting"
            for name in dict.fromkeys(secrets)
        ]
    plain: Table = {
        name: value
        for name, value in table(document.get("parameters")).items()
        if isinstance(value, _SCALARS) and _fits(written.Identifier, name)
    }
    job |= {"parameters": plain} if plain else {}
    queue = table(document.get("defaults")).get("virtualCluster")
    if queue != _NO_QUEUE and _fits(Name, queue):
        job["queue"] = queue
    images = {
        item["name"]: item["uri"] for item in tables(prerequisites) if item["type"] == "dockerimage"
    }
    roles = {name: table(role) for name, role in table(document["taskRoles"]).items()}
    chosen: Table = {}
    made: list[JsonValue] = []
    for name, item in roles.items():
        role = _role_2(name, item, notes, alone=len(roles) == 1)
        image = images[item["dockerImage"]]
        if _fits(ImageName, image):
            role["image"] = image
        else:
            notes.append(
                f"role {name}: the image {image!r} is kept for OpenPAI only: no engine takes "
                "such a name"
            )
        chosen[name] = {"dockerImage": item["dockerImage"]}
        made.append(role)
    kept["taskRoles"] = chosen
    return _imported({**job, "role": made}, 2, kept, document, notes)


def _without_passwords(items: JsonValue, notes: list[str]) -> tuple[list[JsonValue], list[str]]:
    """The prerequisites with secrets in place of passwords, and what those are called."""
    made: list[JsonValue] = []
    secrets: list[str] = []
    for item in map(dict, tables(items)):
        auth = table(item.get("auth"))
        if (password := auth.get("password")) and not SECRET.fullmatch(str(password)):
            name = f"{_identifier(str(item.get('name')))}_password"
            secrets.append(name)
            item["auth"] = {**auth, "password": f"<% $secrets.{name} %>"}
            notes.append(f"the password of the image {item.get('name')} becomes a secret")
        made.append(item)
    return made, secrets


def _role_2(name: str, item: Mapping[str, JsonValue], notes: list[str], *, alone: bool) -> Table:
    role: Table = {"name": name}
    role |= dict(_numbers(item, {"instances": ("tasks", 1, 100_000)}))
    role |= dict(_numbers(item, {"taskRetryCount": ("retries", -1, 1000)}))
    resource, options, completion = (
        table(item.get(key))
        for key in ("resourcePerInstance", "extraContainerOptions", "completion")
    )
    role |= dict(_numbers(resource, _RESOURCES))
    shm = options.get("shmMB")
    if isinstance(shm, int | float) and shm > 0:
        role["shm_mb"] = int(shm)
    tasks = _number(item.get("instances", 1), 1, 100_000)
    if (failed := _enough(completion.get("minFailedInstances"), tasks)) is not None:
        role["min_failed"] = failed
    # OpenPAI ends a job with the first role whose tasks are done.
    enough = _enough(completion.get("minSucceededInstances"), tasks) or (None if alone else tasks)
    role |= {"min_succeeded": enough} if enough is not None else {}
    found: list[JsonValue] = [
        {"name": label, "count": int(count)}
        for label, count in table(resource.get("ports")).items()
        if isinstance(count, int | float) and 1 <= count <= 1000 and len(label) <= 64
    ]
    role |= {"port": found} if found else {}
    commands = item["commands"]
    assert isinstance(commands, list)
    role["command"] = [*_plain_commands([str(one) for one in commands], name, notes)]
    return role


_PROTOCOLS: Mapping[int, tuple[str, Callable[[Job], Table]]] = {
    1: ("openpai_v1", document_v1),
    2: ("openpai", document_v2),
}
