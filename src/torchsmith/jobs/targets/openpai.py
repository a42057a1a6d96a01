"""Jobs on OpenPAI, through its REST server: protocol 2, and protocol 1 of older ones."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import re
import time
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from torchsmith import yaml_text
from torchsmith.engine.disk import write_whole
from torchsmith.errors import ClusterError, UnansweredError, UsageError
from torchsmith.foreign import MalformedError, Table, number, read_json, table, tables, text
from torchsmith.jobs.client import (
    LineCutter,
    Listed,
    NoAnswerError,
    Output,
    Request,
    Status,
    Submitted,
    TargetId,
    TaskStatus,
    chooser,
    handed_over,
    nothing_before,
    patiently,
)
from torchsmith.jobs.clients import TARGETS
from torchsmith.jobs.kept_secrets import folder, kept_value, value_of
from torchsmith.jobs.launch import pullable
from torchsmith.jobs.models import Job
from torchsmith.jobs.rest import RefusedError, Server, ShrunkError
from torchsmith.jobs.states import State, of_exit, state_of
from torchsmith.redact import Redactor
from torchsmith.ship.uploads import stored_password


@dataclass(frozen=True)
class TaskLog:
    """Where the output of a task is told; of each attempt it is another place."""

    task: TaskStatus
    place: str


def status_of(detail: Table) -> Status:
    """The answer to a question for one job, of either protocol."""
    job = table(detail.get("jobStatus"))
    word = text(job, "state")
    code = number(job, "appExitCode")
    state = _state(word, code)
    tasks = tuple(log.task for log in task_logs(detail))
    return Status(
        state=state,
        said=word,
        reason=_reason(job, detail) if state in (State.FAILED, State.TIMEOUT) else "",
        exit_code=code,
        nodes=tuple(dict.fromkeys(task.node for task in tasks if task.node)),
        started=_seconds(job, "launchedTime", "appLaunchedTime"),
        ended=_seconds(job, "completedTime", "appCompletedTime"),
        tasks=tasks,
    )


def task_logs(detail: Table) -> Iterator[TaskLog]:
    """Every task of a job."""
    for role, inner in table(detail.get("taskRoles")).items():
        for one in tables(table(inner).get("taskStatuses")):
            code = number(one, "containerExitCode")
            task = TaskStatus(
                role=role,
                index=number(one, "taskIndex") or 0,
                state=_state(text(one, "taskState"), code),
                exit_code=code,
                node=text(one, "containerNodeName") or text(one, "containerIp"),
            )
            yield TaskLog(task, text(one, "containerLog"))


def _state(word: str, code: int | None) -> State:
    state = state_of("openpai", word)
    # Its time is kept by the task's own `timeout`: OpenPAI sees one that failed.
    return of_exit(code) if state is State.FAILED and code is not None and code > 0 else state


def _reason(job: Table, detail: Table) -> str:
    """Why it ended badly: the task that pulled the others down, and what OpenPAI knows of it."""
    role, index = text(job, "appExitTriggerTaskRoleName"), number(job, "appExitTriggerTaskIndex")
    spec = table(job.get("appExitSpec"))
    for one, inner in table(detail.get("taskRoles")).items():
        for task in tables(table(inner).get("taskStatuses")):
            if (one, number(task, "taskIndex")) == (role, index):
                spec = table(task.get("containerExitSpec")) or spec
    runtime = table(table(job.get("appExitMessages")).get("runtime"))
    why = text(runtime, "reason") or text(spec, "reason") or text(spec, "phrase")
    why = why or text(job, "appExitTriggerMessage") or text(job, "appExitDiagnostics")
    cures = spec.get("solution")
    cure = str(cures[0]) if isinstance(cures, list) and cures else ""
    where = f"{role}-{index}: " if role and index is not None else ""
    return f"{where}{why}".strip()[:500] + (f" ({cure})" if why and cure else "")


def _seconds(values: Table, *keys: str) -> float | None:
    """The first of several times that is there; OpenPAI counts milliseconds."""
    return next((value / 1000 for key in keys if (value := number(values, key))), None)


# Under `extras`, which both protocols keep as it is: whose submission a job is.
_MARK = "torchsmith"
_REQUEST = "request"
# The end of the name of a log that grew too long; it goes on in one without.
_ROTATED = ".1"
# How often a log that is followed is looked at; a server takes 600 questions a minute.
_PAUSE_S = 1.0
_HINTS = {
    "UnauthorizedUserError": "Renew the token in OPENPAI_TOKEN; the portal makes one under your "
    "profile.",
    "ForbiddenUserError": "Ask its administrator for the right, or name another virtual cluster: "
    "--set queue=NAME.",
    "NoVirtualClusterError": "Name one that is there: --set queue=NAME.",
    "NoStorageError": "Name a storage you may use: from = 'claim:NAME'.",
    "NoEnoughQuotaError": "Ask for less, or wait until other jobs are over.",
    "NoApiError": "This server does not speak that protocol: try the other one, openpai or "
    "openpai-v1.",
    "InvalidProtocolError": "The server knows another form of the protocol than ours; nothing was "
    "submitted.",
}


class OpenPai:
    """Protocol 2."""

    engine = "openpai"

    def __init__(self, place: str = "") -> None:
        self.place = address_of(place)

    # What the protocols differ in.

    def _read(self, content: bytes) -> JsonValue:
        return yaml_text.read(content.decode(errors="replace"))

    def _written(self, document: dict[str, JsonValue]) -> bytes:
        return yaml_text.write(document).encode()

    def _jobs(self) -> tuple[str, str]:
        """Where jobs are submitted to, and in which form."""
        return "/api/v2/jobs", "text/yaml"

    def _mine(self) -> str:
        """Where my jobs are listed."""
        return f"/api/v2/jobs?username={urllib.parse.quote(self._user, safe='')}"

    def _job(self, job_id: str) -> str:
        return f"/api/v2/jobs/{urllib.parse.quote(job_id, safe='~')}"

    def _locations(self, log: TaskLog) -> dict[str, str]:
        """The files of a task's output, in the order in which they were written."""
        answer = table(self._server.read(log.place).json())
        found = {
            str(item.get("name")): str(item.get("uri")) for item in tables(answer.get("locations"))
        }
        # Both streams together where they are kept so; before each what was rotated away.
        names = ("all",) if "all" in found else ("stdout", "stderr")
        wanted = (f"{name}{older}" for name in names for older in (_ROTATED, ""))
        return {name: found[name] for name in wanted if name in found}

    # The client.

    @cached_property
    def _token(self) -> str:
        return token_for(self.place)

    @cached_property
    def _user(self) -> str:
        return user_of(self._token)

    @cached_property
    def _server(self) -> Server:
        return server_at(self.place, self._token)

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse what OpenPAI would refuse."""
        rendering = TARGETS[self.engine].render(request.job)
        pullable(request.job, "OpenPAI")
        nothing_before(request, "OpenPAI")
        _secrets(request.job)
        # Who we are there has to be known, too.
        self._id(request.job.name)
        return rendering.notes

    def submit(self, request: Request, token: str) -> TargetId:
        """Hand the job over; asked again without an answer, it first looks whether it was taken."""
        nothing_before(request, "OpenPAI")
        job = request.job
        ((_, content),) = TARGETS[self.engine].render(job).files.items()
        document = dict(table(self._read(content)))
        document["extras"] = {**table(document.get("extras")), _MARK: token}
        # Without the values of secrets, which go to the server alone.
        write_whole(request.kept / _REQUEST, self._written(document))
        secrets = _secrets(job)
        if secrets:
            document["secrets"] = {**secrets}
        job_id = self._id(job.name)
        server = server_at(self.place, self._token, secrets.values())
        path, kind = self._jobs()
        asked = False

        def hand_over() -> None:
            nonlocal asked
            if asked and self._marked(job_id, server) == token:
                return
            asked = True
            try:
                server.ask("POST", path, self._written(document), kind)
            except RefusedError as error:
                if error.status != 409:
                    raise _refused(job.name, error) from None
                if self._marked(job_id, server) != token:
                    raise ClusterError(
                        f"{job_id.partition('~')[0]} has a job {job.name} on OpenPAI already",
                        f"Give this one another name: --set name={job.name}-2.",
                    ) from None

        handed_over(hand_over)
        return TargetId(job_id)

    def find(self, token: str, kept: Path) -> TargetId | None:
        """The job of this token; its name is in the request that was kept."""
        try:
            document = table(self._read((kept / _REQUEST).read_bytes()))
        except (OSError, ValueError):
            return None
        job_id = self._id(str(document.get("name") or document.get("jobName")))
        found = patiently(lambda: self._marked(job_id, self._server))
        return TargetId(job_id) if found == token else None

    def status(self, job: Submitted) -> Status | None:
        """Where a job is."""
        detail = self._detail(job.id)
        return None if detail is None else status_of(detail)

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """What its tasks wrote; of one that is started again, what it writes then."""
        mine = chooser(job, wanted)
        alone = sum(job.roles.values()) == 1
        cutters: dict[tuple[str, str], LineCutter] = {}
        looked_at: set[str] = set()
        while True:
            detail = self._detail(job.id)
            if detail is None:
                raise ClusterError(f"OpenPAI has no job {job.id} any more")
            logs = [log for log in task_logs(detail) if mine(log.task)]
            over = not wanted.follow or status_of(detail).state.over
            for log in logs:
                head = "" if alone else log.task.name
                for file, place in self._places(log).items():
                    if file.endswith(_ROTATED) and log.place in looked_at:
                        # What was seen before it was put aside.
                        continue
                    cutter = cutters.setdefault((log.place, file), LineCutter(head))
                    with _not_yet(over):
                        yield from self._new_lines(place, cutter)
                looked_at.add(log.place)
            if over:
                break
            time.sleep(_PAUSE_S * max(1.0, len(logs) / 5))
        for cutter in cutters.values():
            yield from cutter.finish()

    def cancel(self, job: Submitted) -> None:
        """Stop a job."""
        detail = self._detail(job.id)
        if detail is None or status_of(detail).state.over:
            return
        stop = json.dumps({"value": "STOP"}).encode()
        path = f"{self._job(job.id)}/executionType"
        try:
            patiently(lambda: self._server.ask("PUT", path, stop, "application/json"))
        except RefusedError as error:
            raise _refused(job.id, error) from None

    def list(self) -> tuple[Listed, ...]:
        """My jobs there. Which of them are torchsmith's, only each one's own request says."""
        try:
            answer = self._server.read(self._mine()).json()
        except RefusedError as error:
            raise _refused("the list of jobs", error) from None
        return tuple(
            Listed(
                TargetId(self._id(str(item.get("name")).rpartition("~")[2])),
                "",
                state_of("openpai", str(item.get("state"))),
            )
            for item in tables(answer)
        )

    def _id(self, name: str) -> str:
        return f"{self._user}~{name}"

    def _detail(self, job_id: str) -> dict[str, JsonValue] | None:
        try:
            return dict(table(self._server.read(self._job(job_id)).json()))
        except RefusedError as error:
            if error.status == 404 and error.code != "NoApiError":
                return None
            raise _refused(job_id, error) from None

    def _marked(self, job_id: str, server: Server) -> str | None:
        """The token in the request of a job; None if there is no such job."""
        try:
            answer = server.ask("GET", f"{self._job(job_id)}/config")
            return str(table(table(self._read(answer.body)).get("extras")).get(_MARK, ""))
        except NoAnswerError:
            raise
        except ClusterError as error:
            if isinstance(error, RefusedError) and error.status == 404:
                return None
            refusal = _refused(job_id, error) if isinstance(error, RefusedError) else error
            raise UnansweredError(refusal.message, refusal.hint) from None
        except ValueError:
            return None

    def _new_lines(self, place: str, cutter: LineCutter) -> Iterator[str]:
        for _ in range(2):
            try:
                for piece in self._server.stream(place, cutter.taken):
                    yield from cutter.feed(piece)
                return
            except ShrunkError:
                cutter.taken = 0

    def _places(self, log: TaskLog) -> dict[str, str]:
        """The addresses of a task's output; none before it has begun."""
        if not log.place:
            return {}
        try:
            found = self._locations(log)
            return {name: urllib.parse.urljoin(self.place, uri) for name, uri in found.items()}
        except RefusedError as error:
            if error.status == 404:
                return {}
            raise _refused(log.task.name, error) from None


class OpenPaiV1(OpenPai):
    """Protocol 1."""

    engine = "openpai-v1"

    def _read(self, content: bytes) -> JsonValue:
        return read_json(content)

    def _written(self, document: dict[str, JsonValue]) -> bytes:
        return json.dumps(document, ensure_ascii=False).encode()

    def _jobs(self) -> tuple[str, str]:
        return self._mine(), "application/json"

    def _mine(self) -> str:
        return f"/api/v1/user/{urllib.parse.quote(self._user, safe='')}/jobs"

    def _job(self, job_id: str) -> str:
        user, _, name = job_id.partition("~")
        quoted = urllib.parse.quote(user, safe=""), urllib.parse.quote(name, safe="")
        return f"/api/v1/user/{quoted[0]}/jobs/{quoted[1]}"

    def _locations(self, log: TaskLog) -> dict[str, str]:
        return {"all": log.place}


def _secrets(job: Job) -> dict[str, str]:
    """The values that go to the server with the job."""
    imported = job.openpai.get("secrets", [])
    names = map(str, imported if isinstance(imported, list) else ())
    kept = {name: (name, name) for name in names}
    kept |= {secret.identifier: (secret.variable, secret.reference) for secret in job.secrets}
    return {name: value_of(*where) for name, where in kept.items()}


def _refused(what: str, error: RefusedError) -> ClusterError:
    """A refusal with what it means and what to do."""
    message = _listed(error.message)
    code = f" ({error.code})" if error.code else f" (HTTP {error.status})"
    hint = error.hint or _HINTS.get(error.code, "")
    return ClusterError(f"OpenPAI refused {what}: {message}{code}", hint)


def _listed(message: str) -> str:
    """What a validator of JSON found, as lines for people."""
    try:
        found = tables(read_json(message))
    except MalformedError:
        return message
    said = (f"{text(item, 'dataPath').lstrip('.')} {text(item, 'message')}" for item in found)
    return "; ".join(map(str.strip, said)) or message


@contextlib.contextmanager
def _not_yet(over: bool) -> Iterator[None]:
    """A log that cannot be read now is read at the next look, unless this is the last."""
    try:
        yield
    except NoAnswerError as error:
        if over or error.lasting:
            raise
    except RefusedError as error:
        # Not there yet, or no more.
        if error.status != 404:
            raise _refused("its log", error) from None


SERVER = "OPENPAI_SERVER"
TOKEN = "OPENPAI_TOKEN"
USER = "OPENPAI_USER"
TIMEOUT = "OPENPAI_TIMEOUT"
_TOKEN_FILE = "openpai/token"


def address_of(place: str) -> str:
    """The server's address: `place`, or the one in the environment, up to its REST server."""
    named = (place or os.environ.get(SERVER, "")).strip()
    if not named:
        raise UsageError(
            "no OpenPAI server is named",
            f"Set {SERVER} in the environment: https://pai.example.org",
        )
    # Quoted without what may hold a secret: a login, a query.
    wrong = UsageError(
        f"{re.sub('[?#].*|[^/]*@', '', named)!r} is not the address of a server",
        f"{SERVER}=https://pai.example.org",
    )
    try:
        parts = urllib.parse.urlsplit(named if "://" in named else f"https://{named}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.username or parts.password:
        raise UsageError(
            f"the address of the OpenPAI server {host} holds a login",
            f"Take it out, and set {TOKEN}: addresses are shown and written down.",
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise wrong
    path = re.sub(r"/+(?:rest-server(?:/.*)?)?$", "", parts.path)
    return f"{parts.scheme}://{parts.netloc}{path}/rest-server"


def token_for(address: str) -> str:
    """The token, from the environment, its file, or the keyring; never from a command line."""
    token = kept_value(TOKEN, _TOKEN_FILE) or stored_password(address, "token")
    if not token:
        raise UsageError(
            f"there is no token for {address}",
            f"Set {TOKEN}, write it into {folder() / _TOKEN_FILE} (chmod 600), or keep it with: "
            f"keyring set {address} token",
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise UsageError(
            "the token of OpenPAI holds characters no token has", "Copy it again: one line."
        )
    return token


def user_of(token: str) -> str:
    """Whose token it is: its own second part says so, as OpenPAI signs it."""
    if user := os.environ.get(USER, ""):
        return user
    try:
        middle = token.split(".")[1]
        claims = table(read_json(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))))
        return str(claims["username"])
    except (IndexError, ValueError, KeyError):
        raise UsageError("the token of OpenPAI does not say whose it is", f"Set {USER}.") from None


def server_at(address: str, token: str, secrets: Iterable[str] = ()) -> Server:
    """The server, asked with the token; no secret is in what it is quoted with."""
    return Server(
        "OpenPAI",
        address,
        {"Authorization": f"Bearer {token}"},
        Redactor((token, *secrets)),
        _timeout(),
    )


def _timeout() -> float:
    text = os.environ.get(TIMEOUT, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 86400:
        raise UsageError(f"{TIMEOUT}={text} is not a number of seconds")
    return seconds
