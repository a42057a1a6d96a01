"""A Kubernetes to test against: the few paths of its API that a job needs, over real HTTPS.

Written from the published API (https://kubernetes.io/docs/reference/kubernetes-api/). Every object
that comes is held against the strict schemas of several releases. Nothing is run: the pods of a
job follow a script, and go on one step whenever the job is looked at.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.kubernetes_objects import RELEASES, check_object, train_pod
from tests.troubled_server import Answer, Record, TroubledHandler, serving

TOKEN = "kubernetes-token-of-alice-9f31"
NOW = "2026-01-02T03:04:05Z"
_KINDS = {
    "/api/v1": ("services", "pods"),
    "/apis/batch/v1": ("jobs",),
    "/apis/kubeflow.org/v1": ("pytorchjobs",),
    "/apis/jobset.x-k8s.io/v1alpha2": ("jobsets",),
    "/apis/trainer.kubeflow.org/v1alpha1": ("trainjobs",),
}
# They are there only where their controllers are.
_OPERATED = ("pytorchjobs", "jobsets", "trainjobs")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")


@dataclass
class Step:
    """Where the pods of a job are, and what they write when they come there.

    `condition` is that of the Job: its type and its reason.
    """

    phase: str
    writes: str = ""
    waiting: dict[str, str] = field(default_factory=dict)
    terminated: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    conditions: list[dict[str, str]] = field(default_factory=list)
    condition: tuple[str, str] | None = None


WELL = (
    Step("Pending", waiting={"reason": "ContainerCreating"}),
    Step("Running", "one\n"),
    Step("Running", "two\n"),
    Step(
        "Succeeded",
        "three\n",
        terminated={"exitCode": 0, "reason": "Completed"},
        condition=("Complete", ""),
    ),
)


class Status(Exception):  # noqa: N818 - what the API calls its refusals
    """A refusal: an object of the kind Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class KubernetesServer(Record):
    """The server and what it holds, by kind, namespace and name."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""
        self.namespaces = {"lab", "default"}
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.steps: list[Step] = list(WELL)
        self.releases: tuple[str, ...] = RELEASES
        self.operator = True
        self.at: dict[tuple[str, str], int] = {}
        self.logs: dict[tuple[str, str], bytes] = {}
        self.authority = b""

    def names(self, kind: str) -> list[str]:
        return [name for one, _, name in self.objects if one == kind]

    def kubeconfig(self, folder: Path, token: str = TOKEN) -> Path:
        """A file that leads here, to the namespace lab."""
        path = folder / "kubeconfig"
        authority = base64.b64encode(self.authority).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [
                {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "lab"}}
            ],
            "clusters": [
                {
                    "name": "c",
                    "cluster": {"server": self.address, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        path.chmod(0o600)
        return path

    def create(self, kind: str, space: str, body: bytes, query: dict[str, list[str]]) -> Any:
        thing = json.loads(body)
        assert query.get("fieldValidation") == ["Strict"]
        name = thing["metadata"]["name"]
        try:
            check_object(thing, self.releases)
        except Exception as error:
            said = str(error).splitlines()[0]
            raise Status(400, "BadRequest", f"strict decoding error: {said}") from None
        if not _NAME.fullmatch(name) or len(name) > 63:
            raise Status(
                422,
                "Invalid",
                f'{kind} "{name}" is invalid: metadata.name: Invalid value: a lowercase RFC 1123 '
                "subdomain must consist of lower case alphanumeric characters",
            )
        with self.lock:
            if (kind, space, name) in self.objects:
                raise Status(409, "AlreadyExists", f'{kind} "{name}" already exists')
            if query.get("dryRun") != ["All"]:
                thing["metadata"] |= {"creationTimestamp": NOW, "uid": f"uid-{name}"}
                self.objects[kind, space, name] = thing
                self.at[space, name] = 0
        return thing

    def delete(self, kind: str, space: str, name: str, query: dict[str, list[str]]) -> Any:
        # Without it a Job leaves its pods behind.
        assert query.get("propagationPolicy") == ["Background"]
        self.found(kind, space, name)
        del self.objects[kind, space, name]
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def found(self, kind: str, space: str, name: str) -> dict[str, Any]:
        if (kind, space, name) not in self.objects:
            raise Status(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind, space, name]

    def listed(self, kind: str, space: str, select: str) -> list[dict[str, Any]]:
        if kind == "pods":
            things = [
                pod
                for (one, at, name) in self.objects
                if at == space
                for pod in self._pods(one, space, name)
            ]
        else:
            things = [
                self._told(kind, space, name)
                for (one, at, name) in list(self.objects)
                if (one, at) == (kind, space)
            ]
        wanted = dict(pair.split("=", 1) for pair in select.split(",") if pair)
        return [thing for thing in things if wanted.items() <= thing["metadata"]["labels"].items()]

    def _told(self, kind: str, space: str, name: str) -> dict[str, Any]:
        """A job with its status; being looked at, it goes on."""
        thing = dict(self.objects[kind, space, name])
        if kind == "services":
            return thing
        at = self.at[space, name] = min(self.at[space, name] + 1, len(self.steps) - 1)
        step = self.steps[at]
        for pod in self._pods(kind, space, name):
            key = (space, pod["metadata"]["name"])
            if step.phase != "Pending":
                written = "".join(one.writes for one in self.steps[: at + 1])
                self.logs[key] = written.encode()
        status: dict[str, Any] = {}
        if kind in ("jobs", "pytorchjobs"):
            status = {"startTime": NOW, "active": 1}
        if step.condition:
            word, reason = step.condition
            if word == "Complete":
                word = {"pytorchjobs": "Succeeded", "jobsets": "Completed"}.get(kind, word)
            status["conditions"] = [
                {
                    "type": word,
                    "status": "True",
                    "reason": reason,
                    "message": f"Job: {reason}",
                    "lastTransitionTime": NOW,
                }
            ]
            if word != "Failed" and "startTime" in status:
                status["completionTime"] = NOW
        return {**thing, "status": status}

    def _pods(self, kind: str, space: str, name: str) -> Iterator[dict[str, Any]]:
        thing = self.objects[kind, space, name]
        if kind == "jobs":
            for index in range(thing["spec"]["completions"]):
                mark = {"batch.kubernetes.io/job-completion-index": str(index)}
                pod = f"{name}-{index}-x7k2p"
                yield self._pod(pod, thing["spec"]["template"], mark, space, name)
        elif kind == "jobsets":
            for one in thing["spec"]["replicatedJobs"]:
                job = one["template"]["spec"]
                for index in range(job["completions"]):
                    mark = {"batch.kubernetes.io/job-completion-index": str(index)}
                    pod = f"{name}-{one['name']}-0-{index}-x7k2p"
                    yield self._pod(pod, job["template"], mark, space, name)
        elif kind == "trainjobs":
            for index in range(thing["spec"]["trainer"]["numNodes"]):
                mark = {"batch.kubernetes.io/job-completion-index": str(index)}
                pod = f"{name}-node-0-{index}-x7k2p"
                yield self._pod(pod, train_pod(thing), mark, space, name)
        elif kind == "pytorchjobs":
            for replica, spec in thing["spec"]["pytorchReplicaSpecs"].items():
                for index in range(spec["replicas"]):
                    mark = {
                        "training.kubeflow.org/replica-type": replica.lower(),
                        "training.kubeflow.org/replica-index": str(index),
                    }
                    pod = f"{name}-{replica.lower()}-{index}"
                    yield self._pod(pod, spec["template"], mark, space, name)

    def _pod(
        self, name: str, template: dict[str, Any], mark: dict[str, str], space: str, job: str
    ) -> dict[str, Any]:
        step = self.steps[self.at[space, job]]
        container = template["spec"]["containers"][0]
        state: dict[str, Any] = {"running": {}}
        if step.phase == "Pending":
            state = {"waiting": step.waiting}
        elif step.terminated:
            state = {"terminated": step.terminated}
        return {
            "metadata": {
                "name": name,
                "namespace": space,
                "creationTimestamp": NOW,
                "labels": {**template["metadata"]["labels"], **mark},
            },
            "spec": {
                **template["spec"],
                **({"nodeName": f"node-{name[-1]}"} if step.phase != "Pending" else {}),
            },
            "status": {
                "phase": step.phase,
                "reason": step.reason,
                "message": step.message,
                "conditions": step.conditions,
                "containerStatuses": [
                    {"name": container["name"], "image": container["image"], "state": state}
                ],
            },
        }


class _Handler(TroubledHandler):
    """The routes."""

    record: ClassVar[KubernetesServer]

    def answered(self, path: str, query: str, body: bytes) -> Answer | None:
        try:
            said = self._route(path, urllib.parse.parse_qs(query), body)
        except Status as status:
            return Answer(status.code, json.dumps(status.body).encode())
        return None if said is None else Answer(200, json.dumps(said).encode())

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> Any:
        server = self.record
        if path == "/version":
            return {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Status(401, "Unauthorized", "Unauthorized")
        match = re.fullmatch(r"(.+)/namespaces/([^/]+)/(\w+)(?:/([^/]+)(/log)?)?", path)
        if match is None or match[3] not in _KINDS.get(match[1], ()):
            raise Status(404, "NotFound", "the server could not find the requested resource")
        group, space, kind, name, log = match.groups()
        if kind in _OPERATED and not server.operator:
            raise Status(404, "NotFound", "the server could not find the requested resource")
        if space == "vip":
            raise Status(
                403,
                "Forbidden",
                f'{kind}.{group.split("/")[2]} is forbidden: User "alice" cannot create resource '
                f'"{kind}" in API group "batch" in the namespace "vip"',
            )
        if log:
            return self._log(space, name, follow=query.get("follow") == ["true"])
        match (self.command, bool(name)):
            case ("POST", False):
                if space not in server.namespaces:
                    raise Status(404, "NotFound", f'namespaces "{space}" not found')
                return server.create(kind, space, body, query)
            case ("GET", False):
                found = server.listed(kind, space, query.get("labelSelector", [""])[0])
                return {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": found}
            case ("GET", True):
                return server.found(kind, space, name)
            case ("DELETE", True):
                return server.delete(kind, space, name, query)
        raise Status(405, "MethodNotAllowed", "the server does not allow this method")

    def _log(self, space: str, name: str, *, follow: bool) -> None:
        """A pod's log; followed until the pod is over."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        try:
            while True:
                with self.record.lock:
                    content = self.record.logs.get((space, name), b"")
                    over = self._over(space, name)
                if new := content[sent:]:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(new), new))
                    self.wfile.flush()
                    sent = len(content)
                if over or not follow:
                    break
                time.sleep(0.05)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _over(self, space: str, pod: str) -> bool:
        for kind, at, name in list(self.record.objects):
            if kind != "services" and at == space and pod.startswith(name):
                step = self.record.steps[self.record.at[space, name]]
                return step.phase in ("Succeeded", "Failed")
        return True


def _certificate(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """A certificate for this machine, and who vouches for it: itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes of the tests")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "server.pem"
    path.write_bytes(private + public)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, public


@contextmanager
def kubernetes_server(folder: Path) -> Iterator[KubernetesServer]:
    """A server, as long as the block lasts."""
    server = KubernetesServer()
    context, server.authority = _certificate(folder)
    with serving(type("Bound", (_Handler,), {"record": server}), context) as port:
        server.address = f"https://127.0.0.1:{port}"
        yield server
