"""A job as OpenPAI takes it: protocol 2 in YAML, protocol 1 in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import JsonValue

from torchsmith import yaml_text
from torchsmith.errors import UsageError
from torchsmith.jobs.launch import (
    BASH,
    STRICT,
    Rendezvous,
    commands_for,
    end_of,
    environment,
    exports,
    left_out,
    needs_image,
    started,
)
from torchsmith.jobs.models import Job, Rendering, TaskRole, rendering
from torchsmith.jobs.openpai_rules import cautions, passwords_in_clear, problems
from torchsmith.recipe.job import NULL

Table = dict[str, JsonValue]
_INDEX = "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"
_PORT = "rendezvous"
# The storage plugin of old; `extras.storages` switches it off.
_PLUGINS, _TEAMWISE = "com.microsoft.pai.runtimeplugin", "teamwise_storage"
# What stands for "without end" where the protocol takes a number from 0 on.
_MOST_RETRIES = 1000


def render(job: Job) -> Rendering:
    """Protocol 2, as YAML."""
    document = document_v2(job)
    if wrong := [*problems(document), *passwords_in_clear(document)]:
        raise UsageError(
            f"OpenPAI would refuse job {job.name}: {'; '.join(wrong)}",
            "What is written under [openpai] goes there as it is: mend it there.",
        )
    notes = [*_notes(job, "openpai"), *_storages(job)[1], *cautions(document)]
    return rendering(job, "yaml", _secrets_needed(job) + yaml_text.write(document), notes)


def render_v1(job: Job) -> Rendering:
    """Protocol 1, as JSON."""
    text = json.dumps(document_v1(job), indent=2, ensure_ascii=False) + "\n"
    return rendering(job, "json", text, _notes(job, "openpai_v1"))


def merged(computed: Table, kept: Table) -> Table:
    """Both tables in one; where both have a key, the computed value stays."""
    table = dict(computed)
    for key, value in kept.items():
        mine = table.get(key)
        if key not in table:
            table[key] = value
        elif isinstance(mine, dict) and isinstance(value, dict):
            table[key] = merged(mine, value)
    return table


def _kept(value: JsonValue) -> JsonValue:
    """What was kept, with its nulls: a job file has no word for them."""
    if isinstance(value, Mapping):
        return {key: _kept(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_kept(inner) for inner in value]
    return None if value == NULL else value


# ------------------------------------------------------------------------------ protocol 2


def document_v2(job: Job) -> Table:
    """The request, as a table."""
    kept = _table(_kept(dict(job.openpai)))
    kept.pop("secrets", None)
    kept_roles = _table(kept.pop("taskRoles", {}))
    prerequisites, chosen = _images(job, kept.pop("prerequisites", []), kept_roles)
    roles: Table = {
        role.name: _role(job, role, _table(kept_roles.get(role.name)), chosen[role.name])
        for role in job.roles
    }
    document: Table = {
        "protocolVersion": 2,
        "name": job.name,
        "type": "job",
        **{key: kept.pop(key) for key in ("version", "contributor", "description") if key in kept},
        "prerequisites": prerequisites,
    }
    document |= {"parameters": dict(job.parameters)} if job.parameters else {}
    if job.retries:
        document["jobRetryCount"] = _MOST_RETRIES if job.retries < 0 else job.retries
    document["taskRoles"] = roles
    document |= {"defaults": {"virtualCluster": job.queue}} if job.queue else {}
    if job.mounts:
        document["extras"] = {"storages": _storages(job)[0]}
    return merged(document, kept)


def _table(value: JsonValue) -> Table:
    return dict(value) if isinstance(value, Mapping) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return list(value) if isinstance(value, list) else []


def _images(
    job: Job, kept: JsonValue, kept_roles: Table
) -> tuple[list[JsonValue], dict[str, JsonValue]]:
    """The prerequisites, and which of them is the image of each role."""
    prerequisites = _list(kept)
    images = [
        (item.get("name"), item.get("uri"))
        for item in prerequisites
        if isinstance(item, Mapping) and item.get("type") == "dockerimage"
    ]
    chosen: dict[str, JsonValue] = {}
    for role in job.roles:
        before = _table(kept_roles.get(role.name)).get("dockerImage")
        if any(name == before and role.image in (uri, "") for name, uri in images):
            # Several may be the same image: the one that was chosen stays.
            chosen[role.name] = before
            continue
        needs_image(job, "OpenPAI")
        if role.image not in (uri for _, uri in images):
            taken = {name for name, _ in images}
            name = next(f"image_{n}" for n in range(len(taken) + 1) if f"image_{n}" not in taken)
            images.append((name, role.image))
            prerequisites.append({"type": "dockerimage", "name": name, "uri": role.image})
        chosen[role.name] = next(name for name, uri in images if uri == role.image)
    return prerequisites, chosen


def _role(job: Job, role: TaskRole, kept: Table, image: JsonValue) -> Table:
    completion: Table = {}
    if role.min_failed is not None:
        completion["minFailedInstances"] = role.min_failed
    if role.min_succeeded is not None and role.min_succeeded != role.tasks:
        completion["minSucceededInstances"] = role.min_succeeded
    elif role.min_succeeded is None and len(job.roles) > 1:
        # By itself OpenPAI ends a job with the first role that is done.
        completion["minSucceededInstances"] = -1
    ports: Table = {port.name: port.count for port in role.ports}
    ports |= {_PORT: 1} if _meets(job) else {}
    table: Table = {"instances": role.tasks}
    table |= {"completion": completion} if completion else {}
    table |= {"taskRetryCount": role.retries} if role.retries else {}
    table |= {"dockerImage": image}
    table |= {"extraContainerOptions": {"shmMB": role.shm_mb}} if role.shm_mb else {}
    table["resourcePerInstance"] = {
        "cpu": role.cpus,
        "memoryMB": role.memory_mb,
        "gpu": role.gpus,
        **({"ports": ports} if ports else {}),
    }
    # What was imported comes back as it was; OpenPAI stops at the first failure by itself.
    strict = role.name not in _table(job.openpai.get("taskRoles"))
    table["commands"] = [*_commands(job, role, role.commands, strict=strict)]
    return merged(table, kept)


def _places(job: Job) -> dict[str, str]:
    """Where each storage is mounted: there is one place for each of them."""
    places: dict[str, str] = {}
    extras = _table(job.openpai.get("extras"))
    for item in _list(extras.get("storages")):
        name = _table(item).get("name")
        if isinstance(name, str):
            places[name] = str(_table(item).get("mountPath") or f"/mnt/{name}")
    if "storages" not in extras:
        for plugin in map(_table, _list(extras.get(_PLUGINS))):
            if plugin.get("plugin") == _TEAMWISE:
                names = _list(_table(plugin.get("parameters")).get("storageConfigNames"))
                places |= {str(name): f"/mnt/{name}" for name in names}
    for mount in job.mounts:
        if not mount.source.startswith("claim:"):
            raise UsageError(
                f"job {job.name}: OpenPAI mounts storages by name, not {mount.source}",
                f"Name the storage: from = 'claim:NAME' for {mount.name}.",
            )
        places.setdefault(mount.source.removeprefix("claim:").partition("/")[0], mount.at)
    return places


def _storages(job: Job) -> tuple[list[JsonValue], list[str]]:
    """The storages of `extras`, and what cannot be said of them there."""
    if not job.mounts:
        return [], []
    notes = [
        f"{mount.name} is at {_place(job, mount.source)} there, not at {mount.at}: "
        f"${mount.variable} says so"
        for mount in job.mounts
        if _place(job, mount.source) != mount.at
    ]
    notes += [
        f"{mount.name}: whether a storage is only read is the storage's own there"
        for mount in job.mounts
        if mount.read_only
    ]
    extras = _table(job.openpai.get("extras"))
    kept = _list(extras.get("storages"))
    plugins = [_table(item) for item in _list(extras.get(_PLUGINS))]
    by_default = any(
        item.get("plugin") == _TEAMWISE
        and not _table(item.get("parameters")).get("storageConfigNames")
        for item in plugins
    )
    if extras.get("storages") == [] or ("storages" not in extras and by_default):
        notes.append("the storages OpenPAI mounts by default are not, beside those that are named")
    named = {_table(item).get("name") for item in kept}
    made: list[JsonValue] = [
        {"name": name, "mountPath": at} for name, at in _places(job).items() if name not in named
    ]
    return [*kept, *made], notes


def _place(job: Job, source: str) -> str:
    """Where a folder of a storage is."""
    name, _, inside = source.removeprefix("claim:").partition("/")
    return f"{_places(job)[name]}/{inside}" if inside else _places(job)[name]


def _secrets_needed(job: Job) -> str:
    kept = job.openpai.get("secrets", [])
    names = {str(name): "" for name in (kept if isinstance(kept, list) else [])}
    names |= {secret.identifier: f" ({secret.reference})" for secret in job.secrets}
    if not names:
        return ""
    listed = ", ".join(f"{name}{where}" for name, where in names.items())
    return f"# Submit it with the values of these secrets, which are not kept here: {listed}\n"


# ------------------------------------------------------------------------------ protocol 1


def document_v1(job: Job) -> Table:
    """The request, as a table."""
    kept = _table(_kept(dict(job.openpai_v1)))
    if "image" not in kept:
        needs_image(job, "OpenPAI")
    if job.secrets:
        raise UsageError(
            f"job {job.name}: OpenPAI's protocol 1 has no secrets, and {job.secrets[0].variable} "
            "is one",
            "Render it for openpai, which is protocol 2.",
        )
    if job.mounts:
        raise UsageError(
            f"job {job.name}: OpenPAI's protocol 1 mounts nothing, and {job.mounts[0].name} comes "
            f"from {job.mounts[0].source}",
            "Render it for openpai, which is protocol 2.",
        )
    images = list(dict.fromkeys(role.image for role in job.roles))
    if len(images) > 1:
        raise UsageError(
            f"job {job.name}: OpenPAI's protocol 1 has one image for all roles, not "
            f"{' and '.join(images)}",
            "Render it for openpai, which is protocol 2.",
        )
    kept_roles = _table(kept.pop("taskRoles", {}))
    # Names we have no form for are kept as they were.
    before = kept.pop("image", "")
    table: Table = {"jobName": kept.pop("jobName", job.name), "image": images[0] or before}
    table |= {"virtualCluster": job.queue} if job.queue else {}
    table |= {"retryCount": job.retries} if job.retries else {}
    roles = [_role_v1(job, role, _table(kept_roles.get(role.name))) for role in job.roles]
    return {**merged(table, kept), "taskRoles": [*roles]}


def _role_v1(job: Job, role: TaskRole, kept: Table) -> Table:
    table: Table = {
        "name": kept.pop("name", role.name),
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
    # Its word for "none does".
    for key, count in (
        ("minFailedTaskCount", role.min_failed),
        ("minSucceededTaskCount", role.min_succeeded),
    ):
        table |= {key: None if count == -1 else count} if count is not None else {}
    commands = commands_for(job, role, "OpenPAI's protocol 1")
    table["command"] = "\n".join(_commands(job, role, commands, strict=True))
    return merged(table, kept)


# ------------------------------------------------------------------------------------ both


def _meets(job: Job) -> bool:
    return job.distributed and job.nodes > 1


def _commands(
    job: Job, role: TaskRole, commands: tuple[str, ...], *, strict: bool
) -> tuple[str, ...]:
    """What a task runs; `strict`: the first command that fails is the last."""
    first = job.roles[0].name
    meet = Rendezvous(f'"$PAI_HOST_IP_{first}_0"', f'"$PAI_PORT_LIST_{first}_0_{_PORT}"', _INDEX)
    env = environment(job, role)
    env |= {mount.variable: _place(job, mount.source) for mount in job.mounts}
    secrets = [
        f'export {secret.variable}="<% $secrets.{secret.identifier} %>"' for secret in job.secrets
    ]
    text = (*exports(env), *secrets, *started(job, role, commands, meet))
    if job.seconds is not None:
        # All of it in one shell, which ends when its time is up. The text comes from a file
        # descriptor of its own: what OpenPAI fills in needs no quoting, and stdin stays free.
        end = end_of("\n".join(text))
        return (f"timeout {job.seconds} {BASH} /dev/fd/3 3<<'{end}'", *text, end)
    # Its own shell ends at a variable that is not set, which no other does.
    return (f"set +u {STRICT}", *text) if strict and len(text) > 1 else text


def _notes(job: Job, protocol: str) -> list[str]:
    notes = left_out(job, protocol)
    notes += [f"after {name}: OpenPAI starts every job at once" for name in job.after]
    if job.retries < 0 and protocol == "openpai":
        notes.append(f"retries: OpenPAI has no word for always, {_MOST_RETRIES} stands for it")
    one_by_one = _table(job.openpai.get("extras")).get("gangAllocation") is False
    for role in job.roles:
        if protocol == "openpai":
            notes += [
                f"role {role.name}: OpenPAI chooses the number of port {port.name}"
                for port in role.ports
                if port.number
            ]
            if role.retries and not one_by_one:
                notes.append(
                    f"role {role.name}: retries count only with openpai.extras.gangAllocation = "
                    "false; else OpenPAI starts whole jobs again"
                )
        elif role.retries:
            notes.append(f"role {role.name}: retries: protocol 1 starts jobs again, not tasks")
    return notes
