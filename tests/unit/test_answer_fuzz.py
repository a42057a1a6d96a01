"""Whatever clusters, registries and container tools answer, a command ends in a sentence.

Their honest answers are changed as the files in `test_reader_fuzz.py` are, and asked for by the
commands that people type. The programs are stand-ins that print the changed answer.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from tests.fuzzing import QUICK, Edit, changed, edits, put_all, puts, respelled, words
from tests.openpai_server import token_of
from tests.troubled_server import Answer as Sent
from tests.troubled_server import Record, TroubledHandler, serving

from torchsmith.cli.job import _report, _table
from torchsmith.errors import TorchsmithError
from torchsmith.images import registry, tools
from torchsmith.jobs import client, kubectl
from torchsmith.jobs.client import Output, TargetId
from torchsmith.jobs.clients import client_for
from torchsmith.jobs.nodes import nodes
from torchsmith.jobs.submissions import Intent, Submissions, refreshed
from torchsmith.jobs.targets import slurm
from torchsmith.programs import Answer

pytestmark = pytest.mark.unit

SCONTROL = """\
JobId=7 ArrayJobId=7 ArrayTaskId=2-9%2 JobName=a JobState=PENDING Reason=JobArrayTaskLimit \
ExitCode=0:0 StartTime=Unknown EndTime=Unknown NodeList= Comment=torchsmith:x
JobId=9 ArrayJobId=7 ArrayTaskId=1 JobName=a JobState=RUNNING Reason=None ExitCode=0:0 \
StartTime=2026-11-16T07:23:24 EndTime=Unknown NodeList=n[1-2]
JobId=8 JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 StartTime=1970-01-01T00:01:00 \
EndTime=1970-01-01T00:02:00 NodeList=gpu[08-10,12]-ib,login
"""
SACCT = """\
12_0|COMPLETED|0:0|1970-01-01T00:01:00|1970-01-01T00:02:00|n[1-2]
12_0.batch|COMPLETED|0:0|1970-01-01T00:01:00|1970-01-01T00:02:00|n1
12_1|CANCELLED by 1000|0:15|1970-01-01T00:01:00|1970-01-01T00:02:00|None assigned
"""
SQUEUE = "12|RUNNING|torchsmith:abcdef-0123\n13|PENDING|of somebody else\n"
SINFO = "n1|idle|2|8000|gpu:2|none\nn2|drained|2|8000|(null)|broken fan\n"
JOBS = {
    "items": [
        {
            "metadata": {"name": "a-main", "labels": {"torchsmith-token": "t"}},
            "status": {
                "startTime": "2026-01-02T03:04:05Z",
                "completionTime": "2026-01-02T03:05:05Z",
                "conditions": [
                    {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"},
                    {"type": "Complete", "status": "False", "lastTransitionTime": "2026-01-02"},
                ],
            },
        }
    ]
}
PODS = {
    "items": [
        {
            "metadata": {
                "name": "a-main-0",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {
                    "app.kubernetes.io/component": "main",
                    "batch.kubernetes.io/job-completion-index": "0",
                    "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": "1",
                },
                "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
            },
            "spec": {
                "nodeName": "n1",
                "containers": [
                    {"name": "main", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}
                ],
            },
            "status": {
                "phase": "Failed",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "x"}],
                "containerStatuses": [
                    {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            },
        }
    ]
}
DETAIL = {
    "name": "a",
    "jobStatus": {
        "username": "alice",
        "state": "FAILED",
        "appExitCode": 1,
        "appExitSpec": {"code": 1, "reason": "r", "phrase": "p", "solution": ["s"]},
        "appExitTriggerMessage": "Task failed",
        "appExitTriggerTaskRoleName": "main",
        "appExitTriggerTaskIndex": 0,
        "appExitMessages": {"runtime": {"reason": "r"}},
        "launchedTime": 1767323045000,
        "completedTime": 1767323145000,
    },
    "taskRoles": {
        "main": {
            "taskStatuses": [
                {
                    "taskIndex": 0,
                    "taskState": "FAILED",
                    "containerNodeName": "n1",
                    "containerIp": "10.0.0.1",
                    "containerLog": "/logs",
                    "containerExitCode": 137,
                    "containerExitSpec": {"reason": "r", "solution": ["s"]},
                }
            ]
        }
    },
}
LISTED = [{"name": "alice~a", "state": "RUNNING"}]
LOCATIONS = {"locations": [{"name": "all", "uri": "/files/all"}, {"name": "all.1", "uri": "x"}]}
REFUSAL = {"code": "InvalidProtocolError", "message": '[{"dataPath": ".a", "message": "m"}]'}
INSPECTED = [
    {
        "Id": f"sha256:{'a' * 64}",
        "RepoTags": ["docker.io/library/a:1"],
        "RepoDigests": [f"a@sha256:{'0' * 64}"],
        "RootFS": {"Layers": [f"sha256:{'0' * 64}"]},
        "Config": {"Labels": {"a": "b"}, "User": "1", "Env": ["A=b"], "WorkingDir": "/", "Cmd": []},
        "Architecture": "arm64",
        "Size": 1,
    }
]
BUILT = {
    "FromImageID": "a" * 64,
    "FromImage": "a:1",
    "FromImageDigest": f"sha256:{'0' * 64}",
    "OCIv1": {
        "architecture": "arm64",
        "rootfs": {"diff_ids": [f"sha256:{'0' * 64}"]},
        "config": {"Labels": {"a": "b"}, "User": "1", "Env": ["A=b"], "WorkingDir": "/", "Cmd": []},
    },
}
MANIFEST = {"mediaType": "m", "config": {"digest": f"sha256:{'0' * 64}"}}
LOGINS = {"auths": {"a.example": {"auth": "YTpi"}}, "credHelpers": {"b": "c"}, "credsStore": "d"}


@dataclass
class Said:
    """What the programs print and the server answers."""

    text: bytes = b""
    status: int = 200
    code: int = 0
    only: str = ""
    otherwise: dict[str, str] = field(default_factory=dict)

    def call(self, argv: Sequence[str | Path], **_: object) -> Answer:
        """Stands in for starting a program."""
        program = Path(argv[0]).name
        text = self.text.decode("utf-8", "replace")
        if self.only and self.only not in map(str, (program, *argv)):
            text = self.otherwise.get(program, "")
        return Answer(self.code, "" if self.code else text, text if self.code else "")


said = Said()


class _Handler(TroubledHandler):
    record = Record()

    def answered(self, path: str, query: str, body: bytes) -> Sent:
        if said.only and said.only not in path:
            return Sent(200, json.dumps(DETAIL).encode())
        return Sent(said.status, said.text)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(_Handler) as number:
        yield number


@pytest.fixture(autouse=True)
def clusters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("kubectl", *slurm._PROGRAMS, "sacct", "sinfo", "srun"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    for module in (slurm, kubectl, tools, registry):
        monkeypatch.setattr(module, "call", said.call)
    monkeypatch.setattr(client, "_ATTEMPTS", 1)
    monkeypatch.setattr(slurm, "_ASK_S", 0.0)
    monkeypatch.setenv("OPENPAI_SERVER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OPENPAI_TOKEN", token_of("alice"))
    said.__dict__.update(Said().__dict__)


def asked_for(store: Path, engine: str, engine_id: str) -> None:
    """All that people can ask of a job, and of the jobs of a target."""
    place = "here" if engine == "kubernetes" else ""
    with contextlib.closing(Submissions(store)) as kept:
        one = kept.intend(Intent("a", engine, place, "d", store, {"main": 1}))
        one = kept.accepted(one.id, TargetId(engine_id))
        with contextlib.suppress(TorchsmithError):
            one = refreshed(one, kept)
        assert kept.get(one.id) == one
    msgspec.json.encode(_table(one))
    "".join(_report(one))
    asked = client_for(engine, place)
    questions: list[Callable[[], object]] = [
        lambda: list(asked.logs(one.submitted, Output())),
        asked.list,
        lambda: asked.find("abcdef-0123", store / "kept"),
    ]
    for question in questions:
        with contextlib.suppress(TorchsmithError):
            question()


def of_slurm(store: Path) -> None:
    asked_for(store, "slurm", "7")


def of_accounting(store: Path) -> None:
    said.only, said.otherwise = "sacct", {"scontrol": ""}
    asked_for(store, "slurm", "7")


def of_nodes(store: Path) -> None:
    nodes(store)
    one = slurm.Slurm()
    for question in (one.nodes, lambda: one.run_on("n1", ["true"])):
        with contextlib.suppress(TorchsmithError):
            question()


def of_kubernetes(store: Path) -> None:
    asked_for(store, "kubernetes", "default/a")


def of_contexts(store: Path) -> None:
    del store
    with contextlib.suppress(TorchsmithError):
        str(kubectl.Kubectl("here").namespace)


def of_a_refusing_cluster(store: Path) -> None:
    said.code = 1
    asked_for(store, "kubernetes", "default/a")
    asked_for(store, "slurm", "7")


def of_openpai(store: Path) -> None:
    asked_for(store, "openpai", "alice~a")
    asked_for(store, "openpai-v1", "alice~a")


def of_logs(store: Path) -> None:
    said.only = "/logs"
    asked_for(store, "openpai", "alice~a")


def of_a_refusing_server(store: Path) -> None:
    for said.status in (400, 404, 503):
        asked_for(store, "openpai", "alice~a")


def of_podman(store: Path) -> None:
    del store
    for kind in (tools.Podman, tools.Docker):
        with contextlib.suppress(TorchsmithError):
            kind("podman").find("a")


def of_buildah(store: Path) -> None:
    del store
    with contextlib.suppress(TorchsmithError):
        tools.Buildah("buildah").find("a")


def of_registries(store: Path) -> None:
    del store
    registry._manifest("sha256:0", said.text)


def of_logins(store: Path) -> None:
    path = store / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(said.text)
    table = registry._read_logins(path)
    for key in ("a.example", "b"):
        registry._from_file(table, key)
        registry._from_helper(table, key)


Ask = Callable[[Path], None]
TEXTS: dict[str, tuple[str, Ask]] = {
    "scontrol": (SCONTROL, of_slurm),
    "squeue": (SQUEUE, of_slurm),
    "sacct": (SACCT, of_accounting),
    "sinfo": (SINFO, of_nodes),
    "a refusal": ('Error from server (NotFound): jobs.batch "a" not found', of_a_refusing_cluster),
}
DOCUMENTS: dict[str, tuple[Any, Ask]] = {
    "jobs": (JOBS, of_kubernetes),
    "pods": (PODS, of_kubernetes),
    "contexts": ({"contexts": [{"context": {"namespace": "a"}}]}, of_contexts),
    "detail": (DETAIL, of_openpai),
    "listed": (LISTED, of_openpai),
    "locations": (LOCATIONS, of_logs),
    "refusal": (REFUSAL, of_a_refusing_server),
    "image": (INSPECTED, of_podman),
    "built image": (BUILT, of_buildah),
    "manifest": (MANIFEST, of_registries),
    "logins": (LOGINS, of_logins),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_was_changed_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    text, ask = TEXTS[name]

    @QUICK
    @given(words, edits)
    def try_it(others: list[tuple[float, str]], how: list[Edit]) -> None:
        for said.text in (respelled(text, others).encode(), changed(text.encode(), how)):
            ask(tmp_path / "store")

    try_it()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_with_other_values_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    document, ask = DOCUMENTS[name]

    @QUICK
    @given(puts(document), edits)
    def try_it(wanted: list[tuple[tuple[Any, ...], Any]], how: list[Edit]) -> None:
        said.text = json.dumps(put_all(document, wanted)).encode()
        ask(tmp_path / "store")
        said.text = changed(said.text, how)
        ask(tmp_path / "store")

    try_it()
