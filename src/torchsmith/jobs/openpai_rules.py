"""What OpenPAI's protocol 2 allows, as rules of our own: the server refuses everything else.

Written from the published specification, https://github.com/microsoft/openpai-protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_REFERENCE = re.compile(r"<%\s*\$(\w+)(?:\.(\w+))?")
_ABOUT = ("protocolVersion", "name", "version", "contributor", "description")
_PREREQUISITE = {
    "dockerimage": ("auth", "uri"),
    "script": ("uri",),
    "output": ("uri",),
    "data": ("uri",),
}
_AUTH = ("username", "password", "registryuri")
_SELECTED = {"dockerImage": "dockerimage", "data": "data", "output": "output", "script": "script"}
_KNOWN = {
    "job": (
        *_ABOUT,
        *("type", "prerequisites", "parameters", "secrets", "jobRetryCount"),
        *("taskRoles", "deployments", "defaults", "extras"),
    ),
    "role": (
        *("instances", "completion", "taskRetryCount", "dockerImage", "data", "output", "script"),
        *("extraContainerOptions", "resourcePerInstance", "commands"),
    ),
    "completion": ("minFailedInstances", "minSucceededInstances"),
    "options": ("shmMB", "infiniband"),
    "resource": ("cpu", "memoryMB", "gpu", "ports"),
    "deployment": ("name", "version", "taskRoles"),
    "deployed": ("preCommands", "postCommands"),
    "defaults": ("virtualCluster", "deployment"),
}
Table = Mapping[str, JsonValue]
# The least number, and those above it that are not taken.
_FROM_0, _FROM_1, _ENOUGH = (0,), (1,), (-1, 0)


def problems(document: JsonValue) -> list[str]:
    """Everything that is wrong with a request, each with its place."""
    if not isinstance(document, Mapping):
        return ["it is not a table"]
    return [*_job(document), *_references(document)]


def _job(job: Table) -> Iterator[str]:
    yield from _unknown("", job, "job")
    if str(job.get("protocolVersion")) != "2":
        yield "protocolVersion: must be 2"
    if job.get("type") != "job":
        yield "type: must be job"
    yield from _matches("name", job.get("name"), _NAME)
    yield from _number("jobRetryCount", job.get("jobRetryCount"), _FROM_0)
    names: dict[str, set[str]] = {}
    items = job.get("prerequisites")
    if not isinstance(items, list) or not items:
        yield "prerequisites: must be a list with a docker image in it"
        items = []
    for index, item in enumerate(items):
        yield from _prerequisite(f"prerequisites[{index}]", item, names)
    roles = job.get("taskRoles")
    if not isinstance(roles, Mapping) or not roles:
        yield "taskRoles: must be a table with at least one role"
        roles = {}
    for name, role in roles.items():
        yield from _matches(f"taskRoles.{name}", name, _IDENTIFIER)
        yield from _role(f"taskRoles.{name}", role, names)
    for key in ("parameters", "secrets", "extras"):
        if not isinstance(job.get(key, {}), Mapping):
            yield f"{key}: must be a table"
    yield from _deployments(job, roles)


def _prerequisite(at: str, item: JsonValue, names: dict[str, set[str]]) -> Iterator[str]:
    if not isinstance(item, Mapping):
        yield f"{at}: must be a table"
        return
    kind, name = item.get("type"), item.get("name")
    if not isinstance(kind, str) or kind not in _PREREQUISITE:
        yield f"{at}.type: must be one of {', '.join(_PREREQUISITE)}"
        return
    for key in item:
        if key not in (*_ABOUT, "type", *_PREREQUISITE[kind]):
            yield f"{at}.{key}: is not a key of the protocol"
    yield from _matches(f"{at}.name", name, _NAME)
    taken = names.setdefault(kind, set())
    if str(name) in taken:
        yield f"{at}: there are two of the type {kind} named {name}"
    taken.add(str(name))
    uri = item.get("uri")
    if kind == "data":
        if not isinstance(uri, list) or not uri or not all(isinstance(one, str) for one in uri):
            yield f"{at}.uri: must be a list of addresses"
    elif not isinstance(uri, str) or not uri:
        yield f"{at}.uri: must be an address"
    auth = item.get("auth", {})
    if not isinstance(auth, Mapping) or set(auth) - set(_AUTH):
        yield f"{at}.auth: must be a table of {', '.join(_AUTH)}"
    elif "password" in auth and not re.fullmatch(
        r"<%\s*\$secrets\.\w+\s*%>", str(auth["password"])
    ):
        yield f"{at}.auth.password: is written in clear; it must be <% $secrets.NAME %>"


def _role(at: str, role: JsonValue, names: dict[str, set[str]]) -> Iterator[str]:
    if not isinstance(role, Mapping):
        yield f"{at}: must be a table"
        return
    yield from _unknown(at, role, "role")
    for key, kind in _SELECTED.items():
        if key in role and str(role[key]) not in names.get(kind, ()):
            yield f"{at}.{key}: {role[key]} is not among the prerequisites of the type {kind}"
    if "dockerImage" not in role:
        yield f"{at}.dockerImage: is missing"
    yield from _number(f"{at}.instances", role.get("instances"), _FROM_1)
    yield from _number(f"{at}.taskRetryCount", role.get("taskRetryCount"), _FROM_0)
    commands = role.get("commands")
    if not isinstance(commands, list) or not commands:
        yield f"{at}.commands: must be a list of commands"
    elif not all(isinstance(command, str) for command in commands):
        yield f"{at}.commands: must be text, each of them"
    for key, kind in (
        ("completion", "completion"),
        ("extraContainerOptions", "options"),
        ("resourcePerInstance", "resource"),
    ):
        inner = role.get(key, {})
        if not isinstance(inner, Mapping):
            yield f"{at}.{key}: must be a table"
            continue
        yield from _unknown(f"{at}.{key}", inner, kind)
        yield from _numbers(f"{at}.{key}", inner)
    resource = role.get("resourcePerInstance")
    for key in ("cpu", "memoryMB", "gpu"):
        if not isinstance(resource, Mapping) or resource.get(key) is None:
            yield f"{at}.resourcePerInstance.{key}: is missing"


def _numbers(at: str, table: Table) -> Iterator[str]:
    for key, value in table.items():
        if key == "infiniband":
            if not isinstance(value, bool):
                yield f"{at}.{key}: must be true or false"
        elif key == "ports":
            if not isinstance(value, Mapping):
                yield f"{at}.ports: must be a table of labels and numbers"
                continue
            for label, count in value.items():
                yield from _matches(f"{at}.ports.{label}", label, _IDENTIFIER)
                yield from _number(f"{at}.ports.{label}", count, _FROM_1)
        elif key.startswith("min"):
            yield from _number(f"{at}.{key}", value, _ENOUGH)
        else:
            yield from _number(f"{at}.{key}", value, _FROM_0 if key == "gpu" else _FROM_1)


def _deployments(job: Table, roles: Table) -> Iterator[str]:
    names: list[str] = []
    items = job.get("deployments", [])
    if not isinstance(items, list):
        yield "deployments: must be a list"
        items = []
    for index, item in enumerate(items):
        at = f"deployments[{index}]"
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            yield f"{at}.name: is missing"
            continue
        names.append(str(item["name"]))
        yield from _unknown(at, item, "deployment")
        deployed = item.get("taskRoles", {})
        for role, table in deployed.items() if isinstance(deployed, Mapping) else ():
            if role not in roles:
                yield f"{at}.taskRoles.{role}: is no role of the job"
            if isinstance(table, Mapping):
                yield from _unknown(f"{at}.taskRoles.{role}", table, "deployed")
    defaults = job.get("defaults", {})
    if not isinstance(defaults, Mapping):
        yield "defaults: must be a table"
        return
    yield from _unknown("defaults", defaults, "defaults")
    if "deployment" in defaults and defaults["deployment"] not in names:
        yield f"defaults.deployment: {defaults['deployment']} is not among the deployments"


def _references(job: Table) -> Iterator[str]:
    """A `<% … %>` has to lead somewhere. Values of secrets come with the submission."""
    parameters = job.get("parameters", {})
    known = parameters if isinstance(parameters, Mapping) else {}
    for at, text in _texts("", dict(job)):
        for table, key in _REFERENCE.findall(text):
            if table not in ("parameters", "secrets", "data", "output", "script"):
                yield f"{at}: <% ${table} %> leads nowhere"
            elif table == "parameters" and key and key not in known:
                yield f"{at}: the parameter {key} is not there"


def _texts(at: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{at}.{key}" if at else key, inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{at}[{index}]", inner)


def _unknown(at: str, table: Table, kind: str) -> Iterator[str]:
    for key in table:
        if key not in _KNOWN[kind]:
            yield f"{at}.{key}: is not a key of the protocol".lstrip(".")


def _matches(at: str, value: JsonValue, form: re.Pattern[str]) -> Iterator[str]:
    if not isinstance(value, str) or not form.fullmatch(value):
        yield f"{at}: must have the form {form.pattern}"


def _number(at: str, value: JsonValue, takes: tuple[int, ...]) -> Iterator[str]:
    if value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, int) or not whole or (value < takes[0] or value in takes[1:]):
        yield f"{at}: {value!r} is not a whole number it takes"
