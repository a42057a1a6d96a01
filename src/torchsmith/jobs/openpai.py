"""A job as OpenPAI takes it: protocol 2 in YAML, protocol 1 in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from torchsmith.errors import UsageError
from torchsmith.jobs import yaml_text
from torchsmith.jobs.launch import (
    Rendezvous,
    commands_for,
    environment,
    exports,
    in_time,
    kept_out,
    needs_image,
    started,
)
from torchsmith.jobs.models import Job, Rendering, TaskRole
from torchsmith.jobs.openpai_rules import problems

Table = dict[str, JsonValue]
_INDEX = "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"
_PORT = "rendezvous"
# Where its storage plugin puts a storage: /mnt/NAME.
_STORAGE = "com.microsoft.pai.runtimeplugin"


def render(jobs: tuple[Job, ...]) -> Rendering:
    """Protocol 2: one YAML file for each job."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        needs_image(job, "OpenPAI")
        document = _document(job)
        if wrong := problems(document):
            raise UsageError(
                f"OpenPAI would refuse job {job.name}: {'; '.join(wrong)}",
                "What is written under [openpai] goes there as it is: mend it there.",
            )
        files[f"{job.name}.yaml"] = (_secrets_needed(job) + yaml_text.write(document)).encode()
        notes += [f"{job.name}: {note}" for note in _notes(job, "openpai")]
    return Rendering(files, tuple(notes))


def render_v1(jobs: tuple[Job, ...]) -> Rendering:
    """Protocol 1: one JSON file for each job."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        needs_image(job, "OpenPAI")
        text = json.dumps(_document_v1(job), indent=2, ensure_ascii=False) + "\n"
        files[f"{job.name}.json"] = text.encode()
        notes += [f"{job.name}: {note}" for note in _notes(job, "openpai_v1")]
    return Rendering(files, tuple(notes))


# ------------------------------------------------------------------------------ protocol 2


def _document(job: Job) -> Table:
    kept = dict(job.openpai)
    kept.pop("secrets", None)
    kept_roles = kept.pop("taskRoles", {})
    kept_defaults = kept.pop("defaults", {})
    kept_parameters = kept.pop("parameters", {})
    prerequisites, chosen = _images(job, kept.pop("prerequisites", []))
    roles: Table = {}
    for role in job.roles:
        mine = kept_roles.get(role.name, {}) if isinstance(kept_roles, Mapping) else {}
        mine = dict(mine) if isinstance(mine, Mapping) else {}
        # Several prerequisites may be the same image: the one that was chosen stays.
        image = str(mine.get("dockerImage", ""))
        same = {"type": "dockerimage", "name": image, "uri": role.image}.items()
        if not any(isinstance(item, Mapping) and same <= item.items() for item in prerequisites):
            image = chosen[role.name]
        roles[role.name] = _role(job, role, mine, image)
    document: Table = {
        "protocolVersion": 2,
        "name": job.name,
        "type": "job",
        **{key: kept.pop(key) for key in ("version", "contributor", "description") if key in kept},
        "prerequisites": prerequisites,
    }
    parameters = {**_table(kept_parameters), **job.parameters}
    document |= {"parameters": parameters} if parameters else {}
    document |= {"jobRetryCount": job.retries} if job.retries else {}
    document["taskRoles"] = roles
    defaults = _table(kept_defaults) | ({"virtualCluster": job.queue} if job.queue else {})
    document |= {"defaults": defaults} if defaults else {}
    if storages := _storages(job):
        extras = _table(kept.pop("extras", {}))
        plugins = extras.get(_STORAGE, [])
        extras[_STORAGE] = [*(plugins if isinstance(plugins, list) else []), *storages]
        document["extras"] = extras
    return {**document, **kept}


def _table(value: JsonValue) -> Table:
    return dict(value) if isinstance(value, Mapping) else {}


def _images(job: Job, kept: JsonValue) -> tuple[list[JsonValue], dict[str, str]]:
    """The prerequisites, and which of them is the image of each role."""
    prerequisites: list[JsonValue] = list(kept) if isinstance(kept, list) else []
    known = {
        str(item["uri"]): str(item["name"])
        for item in prerequisites
        if isinstance(item, Mapping) and item.get("type") == "dockerimage"
        if "uri" in item and "name" in item
    }
    for role in job.roles:
        if role.image not in known:
            name = f"image_{len(known)}"
            known[role.image] = name
            prerequisites.append({"type": "dockerimage", "name": name, "uri": role.image})
    return prerequisites, {role.name: known[role.image] for role in job.roles}


def _role(job: Job, role: TaskRole, kept: Table, image: str) -> Table:
    kept["dockerImage"] = image
    options = _table(kept.pop("extraContainerOptions", {}))
    options |= {"shmMB": role.shm_mb} if role.shm_mb else {}
    completion: Table = {}
    if role.min_failed is not None:
        completion["minFailedInstances"] = role.min_failed
    if role.min_succeeded is not None:
        completion["minSucceededInstances"] = role.min_succeeded
    resource: Table = {"cpu": role.cpus, "memoryMB": role.memory_mb, "gpu": role.gpus}
    ports: Table = {port.name: port.count for port in role.ports}
    ports |= {_PORT: 1} if _meets(job) else {}
    resource |= {"ports": ports} if ports else {}
    table: Table = {"instances": role.tasks}
    table |= {"completion": completion} if completion else {}
    table |= {"taskRetryCount": role.retries} if role.retries else {}
    table |= kept
    table |= {"extraContainerOptions": options} if options else {}
    table["resourcePerInstance"] = resource
    table["commands"] = [*_commands(job, role, role.commands)]
    return table


def _storages(job: Job) -> list[JsonValue]:
    names = [mount.source.removeprefix("claim:").partition("/")[0] for mount in job.mounts]
    parameters: Table = {"storageConfigNames": [*dict.fromkeys(names)]}
    return [{"plugin": "teamwise_storage", "parameters": parameters}] if names else []


def _secrets_needed(job: Job) -> str:
    kept = job.openpai.get("secrets", [])
    names = {str(name): "" for name in (kept if isinstance(kept, list) else [])}
    names |= {secret.identifier: f" ({secret.reference})" for secret in job.secrets}
    if not names:
        return ""
    said = ", ".join(f"{name}{where}" for name, where in names.items())
    return f"# Submit it with the values of these secrets, which are not kept here: {said}\n"


# ------------------------------------------------------------------------------ protocol 1


def _document_v1(job: Job) -> Table:
    if job.secrets:
        raise UsageError(
            f"job {job.name}: OpenPAI's protocol 1 knows no secrets, and {job.secrets[0].variable} "
            "is one",
            "Render it for openpai, which is protocol 2.",
        )
    images = list(dict.fromkeys(role.image for role in job.roles))
    if len(images) > 1:
        raise UsageError(
            f"job {job.name}: OpenPAI's protocol 1 knows one image for all roles, not "
            f"{' and '.join(images)}",
            "Render it for openpai, which is protocol 2.",
        )
    kept = dict(job.openpai_v1)
    kept_roles = _table(kept.pop("taskRoles", {}))
    table: Table = {"jobName": job.name, "image": images[0]}
    table |= {"virtualCluster": job.queue} if job.queue else {}
    table |= {"retryCount": job.retries} if job.retries else {}
    table |= kept
    table["taskRoles"] = [
        {**_role_v1(job, role), **_table(kept_roles.get(role.name, {}))} for role in job.roles
    ]
    return table


def _role_v1(job: Job, role: TaskRole) -> Table:
    table: Table = {
        "name": role.name,
        "taskNumber": role.tasks,
        "cpuNumber": role.cpus,
        "memoryMB": role.memory_mb,
    }
    table |= {"shmMB": role.shm_asked} if role.shm_asked else {}
    table["gpuNumber"] = role.gpus
    ports: list[JsonValue] = [
        {"label": port.name, "beginAt": port.number, "portNumber": port.count}
        for port in role.ports
    ]
    if _meets(job):
        ports.append({"label": _PORT, "beginAt": 0, "portNumber": 1})
    table |= {"portList": ports} if ports else {}
    if role.min_failed is not None:
        table["minFailedTaskCount"] = role.min_failed
    if role.min_succeeded is not None:
        table["minSucceededTaskCount"] = role.min_succeeded
    commands = commands_for(job, role, "OpenPAI's protocol 1")
    table["command"] = "\n".join(_commands(job, role, commands))
    return table


# ------------------------------------------------------------------------------------ both


def _meets(job: Job) -> bool:
    return job.distributed and job.nodes > 1


def _commands(job: Job, role: TaskRole, commands: tuple[str, ...]) -> tuple[str, ...]:
    first = job.roles[0].name
    meet = Rendezvous(f'"$PAI_HOST_IP_{first}_0"', f'"$PAI_PORT_LIST_{first}_0_{_PORT}"', _INDEX)
    env = environment(job, role)
    for mount in job.mounts:
        if not mount.source.startswith("claim:"):
            raise UsageError(
                f"job {job.name}: OpenPAI mounts storages by name, not {mount.source}",
                f"Name the storage: from = 'claim:NAME' for {mount.name}.",
            )
        env[mount.variable] = f"/mnt/{mount.source.removeprefix('claim:')}"
    secrets = [
        f'export {secret.variable}="<% $secrets.{secret.identifier} %>"' for secret in job.secrets
    ]
    *before, last = started(job, role, commands, meet)
    return (*exports(env), *secrets, *before, in_time(job, last))


def _notes(job: Job, protocol: str) -> list[str]:
    notes = kept_out(job, protocol)
    notes += [f"after {name}: OpenPAI starts every job at once" for name in job.after]
    for role in job.roles:
        if protocol == "openpai":
            notes += [
                f"role {role.name}: OpenPAI chooses the number of port {port.name}"
                for port in role.ports
                if port.number
            ]
        elif role.retries:
            notes.append(f"role {role.name}: protocol 1 starts jobs again, not single tasks")
    notes += [
        f"{mount.name} is at /mnt/{mount.source.removeprefix('claim:')} there, not at {mount.at}: "
        f"${mount.variable} says so"
        for mount in job.mounts
    ]
    return notes
