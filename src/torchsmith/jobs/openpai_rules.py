"""What OpenPAI's protocol 2 allows, as rules of our own: the server refuses everything else.

Written from the server's own checks, src/rest-server/src/{config,middlewares}/v2/protocol.js of
https://github.com/microsoft/pai v1.8.0: `problems` finds what that refuses and nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from pydantic import JsonValue

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SECRET = re.compile(r"<%\s*\$secrets\.\w+\s*%>")
_REFERENCE = re.compile(r"<%\s*\$(\w+)(?:\.(\w+))?")
# A mustache tag, with <% and %> in place of {{ and }}: what kind it is, and what is in it.
_OPEN = re.compile(r"<%\s*([#^/>{&=!]?)\s*")
_CLOSE = {"=": re.compile(r"\s*=\s*%>"), "{": re.compile(r"\s*\}\s*%>")}
_PLAIN_CLOSE = re.compile(r"\s*%>")

Table = Mapping[str, JsonValue]
Check = Callable[[str, JsonValue], Iterator[str]]


def problems(document: JsonValue) -> list[str]:
    """Everything OpenPAI refuses in a request, each with its place."""
    if not isinstance(document, Mapping):
        return ["it is not a table"]
    return [*_job("", document)] or [*_names(document)] or [*_templates(document)]


def cautions(document: Table) -> list[str]:
    """What OpenPAI takes and would run as nobody means it: a `<% … %>` that leads nowhere."""
    parameters = document.get("parameters", {})
    known = parameters if isinstance(parameters, Mapping) else {}
    found: list[str] = []
    for at, text in _texts("", dict(document)):
        for table, key in _REFERENCE.findall(text):
            if table not in ("parameters", "secrets", "data", "output", "script"):
                found.append(f"{at}: <% ${table} %> leads nowhere and stays as it is")
            elif table == "parameters" and key and key not in known:
                found.append(f"{at}: the parameter {key} is not there: it stays as it is")
    return found


def passwords_in_clear(document: Table) -> list[str]:
    """Where the password of a registry is written, and not named as a secret."""
    items = document.get("prerequisites", [])
    found: list[str] = []
    for index, item in enumerate(items if isinstance(items, list) else []):
        auth = item.get("auth") if isinstance(item, Mapping) else None
        password = auth.get("password") if isinstance(auth, Mapping) else None
        if isinstance(password, str) and password and not _SECRET.fullmatch(password):
            found.append(
                f"prerequisites[{index}].auth.password: is written in clear; it must be "
                "<% $secrets.NAME %>"
            )
    return found


# ------------------------------------------------------------------------------- the schema


def _text(at: str, value: JsonValue) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{at}: must be text"


def _text_or_number(at: str, value: JsonValue) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        yield f"{at}: must be text or a number"


def _form(pattern: re.Pattern[str]) -> Check:
    def check(at: str, value: JsonValue) -> Iterator[str]:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            yield f"{at}: must have the form {pattern.pattern}"

    return check


def _one_of(*values: JsonValue) -> Check:
    def check(at: str, value: JsonValue) -> Iterator[str]:
        if isinstance(value, bool) or value not in values:
            yield f"{at}: must be {' or '.join(dict.fromkeys(map(str, values)))}"

    return check


def _whole(least: int | None = None, *, null: bool = False) -> Check:
    def check(at: str, value: JsonValue) -> Iterator[str]:
        if value is None and null:
            return
        # 1.0 is whole in JavaScript.
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not isinstance(value, int | float) or not whole:
            yield f"{at}: {value!r} is not a whole number"
        elif least is not None and value < least:
            yield f"{at}: {value!r} is less than {least}"

    return check


def _list(each: Check, least: int = 0) -> Check:
    def check(at: str, value: JsonValue) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{at}: must be a list"
            return
        if len(value) < least:
            yield f"{at}: must not be empty"
        for index, item in enumerate(value):
            yield from each(f"{at}[{index}]", item)

    return check


def _table(
    known: Mapping[str, Check] | None = None, needs: tuple[str, ...] = (), *, more: bool = False
) -> Check:
    """A table of these keys; `more`: of others too."""

    def check(at: str, value: JsonValue) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{at}: must be a table"
            return
        for key in needs:
            if key not in value:
                yield _at(at, key) + ": is missing"
        for key, inner in value.items():
            if known is not None and key in known:
                yield from known[key](_at(at, key), inner)
            elif not more:
                yield _at(at, key) + ": is not a key of the protocol"

    return check


def _named(each: Check) -> Check:
    """A table of at least one entry, whose keys are names."""

    def check(at: str, value: JsonValue) -> Iterator[str]:
        if not isinstance(value, Mapping) or not value:
            yield f"{at}: must be a table with at least one entry"
            return
        for key, inner in value.items():
            yield from _form(_IDENTIFIER)(_at(at, key), key)
            yield from each(_at(at, key), inner)

    return check


def _ports(at: str, value: JsonValue) -> Iterator[str]:
    # The server's schema says of what kind its entries are, not that it has any.
    if isinstance(value, Mapping):
        yield from _named(_whole())(at, value)


def _at(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _never(at: str, value: JsonValue) -> Iterator[str]:
    yield f"{at}: is not a key of the protocol"


_VERSION = _one_of(2, "2")
_ABOUT: Mapping[str, Check] = {
    "protocolVersion": _VERSION,
    "name": _form(_NAME),
    "version": _text_or_number,
    "contributor": _text,
    "description": _text,
}
_KINDS: Mapping[str, Check] = {
    **{
        kind: _table(
            {**_ABOUT, "type": _text, "plugin": _text, "require": _list(_text), "uri": uri},
            ("name", "type"),
            more=True,
        )
        for kind, uri in (("script", _text), ("output", _text), ("data", _list(_text)))
    },
    "dockerimage": _table(
        {
            **_ABOUT,
            "type": _text,
            # Each of them is filled in: none of them may be anything but text.
            "auth": lambda at, value: _each(at, value, _text),
            "uri": _text,
        },
        ("name", "type", "uri"),
    ),
}


def _each(at: str, value: JsonValue, check: Check) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{at}: must be a table"
        return
    for key, inner in value.items():
        yield from check(_at(at, key), inner)


def _prerequisite(at: str, item: JsonValue) -> Iterator[str]:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        yield f"{at}.type: must be one of {', '.join(_KINDS)}"
        return
    yield from _KINDS[kind](at, item)


_ROLE = _table(
    {
        "protocolVersion": _VERSION,
        "instances": _whole(1),
        "completion": _table(
            {"minFailedInstances": _whole(null=True), "minSucceededInstances": _whole(null=True)}
        ),
        "taskRetryCount": _whole(),
        "prerequisites": _list(_text),
        **dict.fromkeys(("dockerImage", "data", "output", "script"), _text),
        # The server's own slip: the word that would forbid other keys stands among the keys.
        "extraContainerOptions": _table(
            {"shmMB": _whole(), "additionalProperties": _never}, more=True
        ),
        "resourcePerInstance": _table(
            {"cpu": _whole(), "memoryMB": _whole(), "gpu": _whole(), "ports": _ports},
            ("cpu", "memoryMB", "gpu"),
        ),
        "commands": _list(_text, 1),
    },
    ("dockerImage", "resourcePerInstance", "commands"),
)
_DEPLOYMENT = _table(
    {
        "protocolVersion": _VERSION,
        "name": _form(_NAME),
        "taskRoles": _named(
            _table(dict.fromkeys(("preCommands", "postCommands"), _list(_text, 1)))
        ),
    },
    ("name", "taskRoles"),
    more=True,
)
_job = _table(
    {
        **_ABOUT,
        "type": _one_of("job"),
        "prerequisites": _list(_prerequisite, 1),
        "parameters": _table(more=True),
        "secrets": _table(more=True),
        "jobRetryCount": _whole(0),
        "taskRoles": _named(_ROLE),
        "deployments": _list(_DEPLOYMENT, 1),
        "defaults": _table({"deployment": _text}, more=True),
        "extras": _table(more=True),
    },
    ("protocolVersion", "name", "type", "taskRoles"),
)

# ---------------------------------------------------------------- what names what, and mustache


def _items(table: Table, key: str) -> list[dict[str, JsonValue]]:
    found = table.get(key, [])
    return (
        [dict(item) for item in found if isinstance(item, Mapping)]
        if isinstance(found, list)
        else []
    )


def _roles(table: Table) -> dict[str, dict[str, JsonValue]]:
    found = table.get("taskRoles", {})
    roles = found.items() if isinstance(found, Mapping) else ()
    return {name: dict(role) for name, role in roles if isinstance(role, Mapping)}


def _names(job: Table) -> Iterator[str]:
    names: dict[str, set[JsonValue]] = {}
    for index, item in enumerate(_items(job, "prerequisites")):
        taken = names.setdefault(str(item["type"]), set())
        if item["name"] in taken:
            yield f"prerequisites[{index}]: two of the type {item['type']} are named {item['name']}"
        taken.add(item["name"])
    for name, role in _roles(job).items():
        needed = role.get("prerequisites", [])
        for one in needed if isinstance(needed, list) else []:
            if not any(one in known for known in names.values()):
                yield f"taskRoles.{name}.prerequisites: {one} is not among the prerequisites"
        for key in ("script", "output", "data", "dockerImage"):
            kind = key.lower()
            if key in role and role[key] not in names.get(kind, ()):
                yield (
                    f"taskRoles.{name}.{key}: {role[key]} is not among the prerequisites of the "
                    f"type {kind}"
                )
    deployments = [str(item["name"]) for item in _items(job, "deployments")]
    for name in sorted({name for name in deployments if deployments.count(name) > 1}):
        yield f"deployments: two are named {name}"
    defaults = job.get("defaults", {})
    chosen = defaults.get("deployment") if isinstance(defaults, Mapping) else None
    if chosen is not None and chosen not in deployments:
        yield f"defaults.deployment: {chosen} is not among the deployments"


def _templates(job: Table) -> Iterator[str]:
    """The texts the server fills in: mustache refuses a tag without its end."""
    for index, item in enumerate(_items(job, "prerequisites")):
        auth = item.get("auth", {})
        for key, text in auth.items() if isinstance(auth, Mapping) else ():
            yield from _template(f"prerequisites[{index}].auth.{key}", str(text))
    for name in _roles(job):
        yield from _template(f"taskRoles.{name}.commands", "\n".join(commands_of(job, name)))


def commands_of(job: Table, role: str) -> list[str]:
    """What a role runs: its commands between those of the deployment the job chose."""
    mine = _roles(job)[role].get("commands", [])
    defaults = job.get("defaults", {})
    chosen = defaults.get("deployment") if isinstance(defaults, Mapping) else None
    deployed: Mapping[str, JsonValue] = next(
        (
            _roles(item).get(role, {})
            for item in _items(job, "deployments")
            if chosen is not None and item.get("name") == chosen
        ),
        {},
    )
    parts = (deployed.get("preCommands", []), mine, deployed.get("postCommands", []))
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
