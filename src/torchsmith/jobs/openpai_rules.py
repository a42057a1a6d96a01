"""What OpenPAI's protocol 2 allows, as rules of our own: the server refuses everything else.

Written from the server's own checks, src/rest-server/src/{config,middlewares}/v2/protocol.js of
https://github.com/microsoft/pai v1.8.0: `problems` finds what that refuses and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from torchsmith.foreign import Table, table, tables

# What stands for a secret in a request.
SECRET = re.compile(r"<%\s*\$secrets\.\w+\s*%>")
_REFERENCE = re.compile(r"<%\s*\$(\w+)(?:\.(\w+))?")
# A mustache tag, with <% and %> in place of {{ and }}: what kind it is, and what is in it.
_OPEN = re.compile(r"<%\s*([#^/>{&=!]?)\s*")
_CLOSE = {"=": re.compile(r"\s*=\s*%>"), "{": re.compile(r"\s*\}\s*%>")}
_PLAIN_CLOSE = re.compile(r"\s*%>")


def problems(document: JsonValue) -> list[str]:
    """Everything OpenPAI refuses in a request, each with its place."""
    if not isinstance(document, dict):
        return ["it is not a table"]
    try:
        job = _Job.model_validate(document)
    except ValidationError as error:
        return [
            _problem(item, document) for item in error.errors() if item["type"] != "none_required"
        ]
    return [*_names(job)] or [*_templates(job, document)]


def cautions(document: Table) -> list[str]:
    """What OpenPAI takes and would run as nobody means it: a `<% … %>` that leads nowhere."""
    known = table(document.get("parameters"))
    found: list[str] = []
    for at, text in _texts("", dict(document)):
        for name, key in _REFERENCE.findall(text):
            if name not in ("parameters", "secrets", "data", "output", "script"):
                found.append(f"{at}: <% ${name} %> leads nowhere and stays as it is")
            elif name == "parameters" and key and key not in known:
                found.append(f"{at}: the parameter {key} is not there: it stays as it is")
    return found


def passwords_in_clear(document: Table) -> list[str]:
    """Where the password of a registry is written, and not named as a secret."""
    passwords = [
        table(item.get("auth")).get("password") for item in tables(document.get("prerequisites"))
    ]
    return [
        f"prerequisites[{index}].auth.password: is written in clear; it must be <% $secrets.NAME %>"
        for index, password in enumerate(passwords)
        if isinstance(password, str) and password and not SECRET.fullmatch(password)
    ]


# ------------------------------------------------------------------------------- the schema


def _whole(value: Any) -> Any:
    # 1.0 is whole in JavaScript.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _version(value: Any) -> Any:
    if isinstance(value, bool) or value not in (2, "2"):
        raise ValueError("must be 2")
    return value


def _text_or_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be text or a number")
    return value


def _never(value: Any) -> Any:
    raise ValueError("is not a key of the protocol")


_Whole = Annotated[int, PlainValidator(_whole)]
_Version = Annotated[Any, PlainValidator(_version)]
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,255}$")]
_Identifier = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
_Commands = Annotated[list[str], Field(min_length=1)]
# The server's schema says of what kind the entries of ports are, not that there are any.
_Ports = Annotated[
    Annotated[dict[_Identifier, _Whole], Field(min_length=1)] | None,
    BeforeValidator(lambda value: value if isinstance(value, dict) else None),
]


class _Table(BaseModel):
    """A table of the protocol, with these keys and no others."""

    model_config = ConfigDict(
        strict=True, extra="forbid", alias_generator=to_camel, defer_build=True
    )


class _OpenTable(_Table):
    """A table that may have other keys too."""

    model_config = ConfigDict(extra="allow")


class _Described(_Table):
    protocol_version: _Version = 2
    name: _Name
    version: Annotated[Any, PlainValidator(_text_or_number)] = ""
    contributor: str = ""
    description: str = ""


class _Plugged(_Described):
    model_config = ConfigDict(extra="allow")
    plugin: str = ""
    require: list[str] = []


class _Script(_Plugged):
    type: Literal["script", "output"]
    uri: str = ""


class _Data(_Plugged):
    type: Literal["data"]
    uri: list[str] = []


class _Image(_Described):
    type: Literal["dockerimage"]
    uri: str
    # Each of them is filled in: none of them may be anything but text.
    auth: dict[str, str] = {}


class _Completion(_Table):
    min_failed_instances: _Whole | None = None
    min_succeeded_instances: _Whole | None = None


class _ContainerOptions(_OpenTable):
    shm_mb: _Whole = Field(0, alias="shmMB")
    # The server's own slip: the word that would forbid other keys stands among the keys.
    additional_properties: Annotated[Any, PlainValidator(_never)] = None


class _Resources(_Table):
    cpu: _Whole
    memory_mb: _Whole = Field(alias="memoryMB")
    gpu: _Whole
    ports: _Ports = None


class _Role(_Table):
    protocol_version: _Version = 2
    instances: Annotated[_Whole, Field(ge=1)] = 1
    completion: _Completion = _Completion.model_construct()
    task_retry_count: _Whole = 0
    prerequisites: list[str] = []
    docker_image: str
    data: str = ""
    output: str = ""
    script: str = ""
    extra_container_options: _ContainerOptions = _ContainerOptions.model_construct()
    resource_per_instance: _Resources
    commands: _Commands


class _DeployedRole(_Table):
    pre_commands: _Commands = []
    post_commands: _Commands = []


class _Deployment(_OpenTable):
    protocol_version: _Version = 2
    name: _Name
    task_roles: Annotated[dict[_Identifier, _DeployedRole], Field(min_length=1)]


class _Defaults(_OpenTable):
    deployment: str = ""


class _Job(_Described):
    protocol_version: _Version
    type: Literal["job"]
    prerequisites: Annotated[
        list[Annotated[_Script | _Data | _Image, Field(discriminator="type")]], Field(min_length=1)
    ] = []
    parameters: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    job_retry_count: Annotated[_Whole, Field(ge=0)] = 0
    task_roles: Annotated[dict[_Identifier, _Role], Field(min_length=1)]
    deployments: Annotated[list[_Deployment], Field(min_length=1)] = []
    defaults: _Defaults = _Defaults.model_construct()
    extras: dict[str, Any] = {}


_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not a key of the protocol",
    "value_error": "{error}",
    "string_type": "must be text",
    "string_pattern_mismatch": "must have the form {pattern}",
    # The protocol has one such key.
    "literal_error": "must be job",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "union_tag_invalid": "its type must be one of {expected_tags}",
    "union_tag_not_found": "has no type",
    "greater_than_equal": "must be {ge} or more",
}


def _problem(error: ErrorDetails, document: JsonValue) -> str:
    """One error with its place; pydantic's own steps on the way there are left out."""
    at, place = "", document
    for part in error["loc"]:
        if isinstance(part, int) and isinstance(place, list):
            at, place = f"{at}[{part}]", place[part]
        elif isinstance(place, dict) and part in place:
            at, place = _at(at, str(part)), place[str(part)]
    if error["type"] == "missing":
        at = _at(at, str(error["loc"][-1]))
    context = error.get("ctx", {})
    if error["type"] == "too_short":
        listed = isinstance(place, list)
        message = "must not be empty" if listed else "must be a table with at least one entry"
    else:
        message = _MESSAGES.get(error["type"], error["msg"]).format(**context)
    return f"{at}: {message}"


def _at(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


# ---------------------------------------------------------------- what names what, and mustache


def _names(job: _Job) -> Iterator[str]:
    names: dict[str, set[str]] = {}
    for index, item in enumerate(job.prerequisites):
        taken = names.setdefault(item.type, set())
        if item.name in taken:
            yield f"prerequisites[{index}]: two of the type {item.type} are named {item.name}"
        taken.add(item.name)
    for name, role in job.task_roles.items():
        for one in role.prerequisites:
            if not any(one in known for known in names.values()):
                yield f"taskRoles.{name}.prerequisites: {one} is not among the prerequisites"
        for field in sorted(role.model_fields_set & {"script", "output", "data", "docker_image"}):
            key, wanted = to_camel(field), getattr(role, field)
            if wanted not in names.get(key.lower(), ()):
                yield (
                    f"taskRoles.{name}.{key}: {wanted} is not among the prerequisites of the "
                    f"type {key.lower()}"
                )
    deployments = [item.name for item in job.deployments]
    for name in sorted({name for name in deployments if deployments.count(name) > 1}):
        yield f"deployments: two are named {name}"
    chosen = job.defaults.deployment
    if "deployment" in job.defaults.model_fields_set and chosen not in deployments:
        yield f"defaults.deployment: {chosen} is not among the deployments"


def _templates(job: _Job, document: Table) -> Iterator[str]:
    """The texts the server fills in: mustache refuses a tag without its end."""
    for index, item in enumerate(job.prerequisites):
        for key, text in item.auth.items() if isinstance(item, _Image) else ():
            yield from _template(f"prerequisites[{index}].auth.{key}", text)
    for name in job.task_roles:
        yield from _template(f"taskRoles.{name}.commands", "\n".join(commands_of(document, name)))


def commands_of(job: Table, role: str) -> list[str]:
    """What a role runs: its commands between those of the deployment the job chose."""
    mine = table(table(job.get("taskRoles")).get(role)).get("commands")
    chosen = table(job.get("defaults")).get("deployment")
    deployed: Table = next(
        (
            table(table(item.get("taskRoles")).get(role))
            for item in tables(job.get("deployments"))
            if chosen is not None and item.get("name") == chosen
        ),
        {},
    )
    parts = (deployed.get("preCommands"), mine, deployed.get("postCommands"))
    return [str(command).strip() for part in parts if isinstance(part, list) for command in part]


def _template(at: str, text: str) -> Iterator[str]:
    sections: list[str] = []
    place = 0
    while opened := _OPEN.search(text, place):
        kind = opened[1]
        shown = text[opened.start() :].split("\n", 1)[0][:40]
        closed = _CLOSE.get(kind, _PLAIN_CLOSE).search(text, opened.end())
        if closed is None:
            yield f"{at}: {shown!r} begins with <% and no %> follows"
            return
        if kind == "=":
            # The words that open and close a tag are others from here on: nothing is known.
            return
        name = text[opened.end() : closed.start()]
        if kind in ("#", "^"):
            sections.append(name)
        elif kind == "/" and (not sections or sections.pop() != name):
            yield f"{at}: {shown!r} ends a section that was not begun"
            return
        place = closed.end()
    if sections:
        yield f"{at}: the section <%#{sections[-1]}%> has no end"


def _texts(at: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(_at(at, key), inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(f"{at}[{index}]", inner)
