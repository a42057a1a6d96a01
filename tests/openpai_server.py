"""An OpenPAI to test against: its REST server's answers over real HTTP, and every kind of trouble.

Written from what OpenPAI publishes: the OpenAPI document of `@microsoft/openpai-js-sdk`, the rules
and messages of its REST server (https://github.com/microsoft/pai, src/rest-server, v1.8.0; for
protocol 1 v0.14.0). Nothing is run: states and output follow a script. One rule is stricter than
the real one: the value of a secret anywhere outside `secrets` is refused.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import yaml
from tests.troubled_server import Answer, Record, TroubledHandler, serving

_DATA = Path(__file__).parent / "data/openpai"
_SCHEMAS = {
    version: json.loads((_DATA / f"protocol-{version}.schema.json").read_text(encoding="utf-8"))
    for version in (1, 2)
}
_SIGNED_WITH = b"the secret of the test server"
# What the files of the log manager are read with; made for each list of files.
LOG_TOKEN = "log-manager-token-5a17"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def token_of(user: str) -> str:
    """A token as OpenPAI signs it: a JWT that names its user."""
    head = _base64(b'{"alg":"HS256","typ":"JWT"}')
    claims = _base64(json.dumps({"username": user, "application": True}).encode())
    seal = hmac.digest(_SIGNED_WITH, f"{head}.{claims}".encode(), "sha256")
    return f"{head}.{claims}.{_base64(seal)}"


class Refusal(Exception):  # noqa: N818 - the answer, said as one
    """An answer of the kind {code, message}."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status = status
        self.body = {"code": code, "message": message}


@dataclass
class Step:
    """One state of a job, and what its tasks write when it comes to it.

    `rotated`: what they wrote before is put aside.
    """

    state: str
    writes: str = ""
    exit_code: int | None = None
    exit_spec: dict[str, Any] | None = None
    rotated: bool = False


@dataclass
class KeptJob:
    """A job the server has taken."""

    user: str
    name: str
    protocol: int
    config: str
    roles: dict[str, int]
    secrets: dict[str, str]
    steps: list[Step]
    at: int = 0
    log: bytes = b""
    since: float = field(default_factory=time.time)

    @property
    def step(self) -> Step:
        return self.steps[self.at]

    def go_on(self) -> None:
        if self.at + 1 < len(self.steps):
            self.at += 1
            before = b"" if self.step.rotated else self.log
            self.log = before + self.step.writes.encode()


WELL = (
    Step("WAITING"),
    Step("RUNNING", "one\n"),
    Step("RUNNING", "two\n"),
    Step("SUCCEEDED", "three\n", 0),
)


class OpenPaiServer(Record):
    """The server, its users and its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""
        self.users = {"alice": ["default", "gpu"], "bob": ["default"]}
        self.clusters = ["default", "gpu", "vip"]
        self.jobs: dict[str, KeptJob] = {}
        self.steps: list[Step] = list(WELL)
        self.protocols = {1, 2}

    def user_of(self, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        if not authorization:
            raise Refusal(
                401, "UnauthorizedUserError", "Guest is not allowed to do this operation."
            )
        for user in self.users:
            if scheme == "Bearer" and hmac.compare_digest(token, token_of(user)):
                return user
        raise Refusal(401, "UnauthorizedUserError", "Your token is invalid.")

    def submit(self, user: str, protocol: int, body: bytes) -> None:
        try:
            job = yaml.safe_load(body) if protocol == 2 else json.loads(body)
        except (yaml.YAMLError, ValueError) as error:
            raise Refusal(400, "InvalidParametersError", str(error)) from None
        validate(job, protocol)
        name = job["name" if protocol == 2 else "jobName"]
        if protocol == 2:
            cluster = (job.get("defaults") or {}).get("virtualCluster", "default")
            roles = {key: role.get("instances", 1) for key, role in job["taskRoles"].items()}
        else:
            cluster = job.get("virtualCluster") or "default"
            roles = {role["name"]: role.get("taskNumber", 1) for role in job["taskRoles"]}
        secrets = job.get("secrets") or {}
        open_part = json.dumps({key: job[key] for key in job if key != "secrets"})
        for key, value in secrets.items():
            if str(value) in open_part:
                raise Refusal(400, "InvalidProtocolError", f"The value of {key} is in clear.")
        if cluster not in self.clusters:
            raise Refusal(400, "NoVirtualClusterError", f"Virtual cluster {cluster} is not found.")
        if cluster not in self.users[user]:
            raise Refusal(
                403,
                "ForbiddenUserError",
                f"User {user} is not allowed to do operation in {cluster}",
            )
        with self.lock:
            if f"{user}~{name}" in self.jobs:
                raise Refusal(409, "ConflictJobError", f"Job {user}~{name} already exists.")
            kept = {**job, "secrets": "******"} if secrets else job
            config = yaml.safe_dump(kept) if protocol == 2 else json.dumps(kept)
            self.jobs[f"{user}~{name}"] = KeptJob(
                user, name, protocol, config, roles, secrets, list(self.steps)
            )

    def job(self, key: str) -> KeptJob:
        if key not in self.jobs:
            raise Refusal(404, "NoJobError", f"Job {key} is not found.")
        return self.jobs[key]

    def stop(self, user: str, key: str, body: bytes) -> None:
        job = self.job(key)
        wish = json.loads(body)
        if wish not in ({"value": "STOP"}, {"value": "START"}):
            raise Refusal(400, "InvalidParametersError", "Could not validate request data.")
        if job.user != user:
            raise Refusal(
                403, "ForbiddenUserError", f"User {user} is not allowed to execute job {key}."
            )
        job.steps, job.at = [Step("STOPPING"), Step("STOPPED", exit_code=-220)], 0

    def detail(self, key: str) -> dict[str, Any]:
        """A job as it is told; being asked for it, it goes on."""
        job = self.job(key)
        job.go_on()
        over = job.step.state in ("SUCCEEDED", "FAILED", "STOPPED")
        begun = job.step.state != "WAITING"
        exit_spec = job.step.exit_spec or {"code": job.step.exit_code}
        times = {
            "createdTime": int(job.since * 1000),
            "launchedTime": int(job.since * 1000) + 1000 if begun else None,
            "completedTime": int(job.since * 1000) + 5000 if over else None,
        }
        first = next(iter(job.roles))
        failed = job.step.state == "FAILED"
        roles = {
            role: {
                "taskRoleStatus": {"name": role},
                "taskStatuses": [
                    {
                        "taskIndex": index,
                        "taskState": job.step.state,
                        "containerId": f"pod-{index}",
                        "containerIp": f"10.0.0.{index + 1}" if begun else None,
                        "containerNodeName": f"node{index + 1}" if begun else None,
                        "containerPorts": {"ssh": 30000 + index},
                        "containerGpus": None,
                        "containerLog": self._log_place(job, role, index) if begun else None,
                        "containerExitCode": job.step.exit_code,
                        "containerExitSpec": exit_spec,
                        "attemptId": 0,
                        **times,
                    }
                    for index in range(count)
                ],
            }
            for role, count in job.roles.items()
        }
        return {
            "name": job.name,
            "tags": [],
            "jobStatus": {
                "username": job.user,
                "state": job.step.state,
                "subState": "Completed" if over else "AttemptRunning",
                "executionType": "STOP" if job.step.state.startswith("STOP") else "START",
                "retries": 0,
                "attemptId": 0,
                "appExitCode": job.step.exit_code,
                "appExitSpec": exit_spec if over else None,
                "appExitTriggerMessage": "Task failed" if failed else None,
                "appExitTriggerTaskRoleName": first if failed else None,
                "appExitTriggerTaskIndex": 0 if failed else None,
                "virtualCluster": "default",
                **times,
            },
            "taskRoles": roles,
        }

    def _log_place(self, job: KeptJob, role: str, index: int) -> str:
        if job.protocol == 1:
            return f"/containerlogs/{job.user}~{job.name}/{role}/{index}"
        return (
            f"/api/v2/jobs/{job.user}~{job.name}/attempts/0/taskRoles/{role}/taskIndex/{index}"
            "/attempts/0/logs"
        )


def validate(job: Any, protocol: int) -> None:
    """The server's own rules, and its way of telling which one is broken."""
    found = [
        {
            "keyword": str(error.validator),
            "dataPath": "".join(
                f"['{part}']" if "-" in str(part) else f".{part}" for part in error.absolute_path
            ),
            "message": error.message,
        }
        for error in jsonschema.Draft7Validator(_SCHEMAS[protocol]).iter_errors(job)
    ]
    if found:
        raise Refusal(400, "InvalidProtocolError", json.dumps(found))
    if protocol == 1:
        return
    known: dict[str, set[str]] = {}
    for item in job.get("prerequisites", ()):
        names = known.setdefault(item["type"], set())
        if item["name"] in names:
            raise Refusal(
                400,
                "InvalidProtocolError",
                f"Duplicate {item['type']} prerequisites {item['name']}.",
            )
        names.add(item["name"])
    deployed: set[str] = set()
    for item in job.get("deployments", ()):
        if item["name"] in deployed:
            raise Refusal(400, "InvalidProtocolError", f"Duplicate deployments {item['name']}.")
        deployed.add(item["name"])
    for role in job["taskRoles"].values():
        for name in role.get("prerequisites", ()):
            if not any(name in names for names in known.values()):
                raise Refusal(400, "InvalidProtocolError", f"Prerequisite {name} does not exist.")
        for key in ("script", "output", "data", "dockerImage"):
            if key in role and role[key] not in known.get(key.lower(), ()):
                raise Refusal(
                    400, "InvalidProtocolError", f"Prerequisite {role[key]} does not exist."
                )
    default = job.get("defaults", {}).get("deployment")
    if default is not None and default not in deployed:
        raise Refusal(400, "InvalidProtocolError", f"Default deployment {default} does not exist.")


class _Handler(TroubledHandler):
    """The routes."""

    record: ClassVar[OpenPaiServer]

    def answered(self, path: str, query: str, body: bytes) -> Answer:
        try:
            return self._route(path, urllib.parse.parse_qs(query), body)
        except Refusal as refusal:
            return Answer(refusal.status, json.dumps(refusal.body).encode())

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        pai = self.record
        if match := re.fullmatch(r"/log-manager/[^/]+/api/v1/logs/user\.pai\.all", path):
            return self._file(query["job"][0], query.get("token") == [LOG_TOKEN])
        if match := re.fullmatch(r"/containerlogs/([^/]+)/\w+/\d+", path):
            return self._file(urllib.parse.unquote(match[1]), True)
        user = pai.user_of(self.headers.get("Authorization", ""))
        # A token is for the REST server alone.
        assert path.startswith("/rest-server/")
        v2 = re.fullmatch(r"/rest-server/api/v2/jobs(?:/([^/]+)(/.*)?)?", path)
        v1 = re.fullmatch(r"/rest-server/api/v1/user/([^/]+)/jobs(?:/([^/]+)(/.*)?)?", path)
        if v2 and 2 in pai.protocols:
            key = urllib.parse.unquote(v2[1] or "")
            return self._jobs(2, user, key, v2[2] or "", query.get("username", [""])[0], body)
        if v1 and 1 in pai.protocols:
            key = f"{v1[1]}~{urllib.parse.unquote(v1[2])}" if v1[2] else ""
            if self.command == "POST" and v1[1] != user:
                raise Refusal(403, "ForbiddenUserError", f"You are not {v1[1]}.")
            return self._jobs(1, user, key, v1[3] or "", v1[1], body)
        raise Refusal(404, "NoApiError", f"API {path} is not found.")

    def _jobs(
        self, protocol: int, user: str, key: str, rest: str, owner: str, body: bytes
    ) -> Answer:
        pai = self.record
        match (self.command, bool(key), rest):
            case ("POST", False, ""):
                kind = "text/yaml" if protocol == 2 else "application/json"
                if self.headers["Content-Type"] != kind:
                    raise Refusal(400, "InvalidProtocolError", "data should be object")
                pai.submit(user, protocol, body)
                return Answer(202, b'{"status": 202, "message": "Update job"}')
            case ("GET", False, ""):
                found = [
                    {
                        "name": job.name,
                        "username": job.user,
                        "state": job.step.state,
                        "tags": [],
                    }
                    for job in pai.jobs.values()
                    if job.user == owner and job.protocol == protocol
                ]
                return Answer(200, json.dumps(found).encode())
            case ("GET", True, ""):
                return Answer(200, json.dumps(pai.detail(key)).encode())
            case ("GET", True, "/config"):
                kind = "text/yaml" if protocol == 2 else "application/json"
                return Answer(200, pai.job(key).config.encode(), kind)
            case ("PUT", True, "/executionType"):
                pai.stop(user, key, body)
                return Answer(202, b'{"message": "Execute job"}')
            case ("GET", True, place) if place.endswith("/logs"):
                if not pai.job(key).log:
                    raise Refusal(404, "NoTaskLogError", "Log of task is not found.")
                node = "/log-manager/10.0.0.1:9103/api/v1/logs"
                uri = f"{node}/user.pai.all?job={key}&token={LOG_TOKEN}"
                files = [{"name": name, "uri": uri} for name in ("stderr", "all", "stdout")]
                return Answer(200, json.dumps({"locations": files}).encode())
        raise Refusal(404, "NoApiError", f"API {self.path} is not found.")

    def _file(self, key: str, allowed: bool) -> Answer:
        # Whoever may read a log is told by its own token, never by ours.
        assert "Authorization" not in self.headers
        if not allowed:
            return Answer(401, b"", "text/plain")
        content = self.record.job(key).log
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])  # type: ignore[index]
        if start >= len(content):
            size = {"Content-Range": f"bytes */{len(content)}"}
            return Answer(416, b"", "text/plain", size)
        return Answer(206, content[start:], "text/plain")


@contextmanager
def openpai_server() -> Iterator[OpenPaiServer]:
    """A server, as long as the block lasts."""
    pai = OpenPaiServer()
    with serving(type("Bound", (_Handler,), {"record": pai})) as port:
        pai.address = f"http://127.0.0.1:{port}"
        yield pai
