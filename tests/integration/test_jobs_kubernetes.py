"""Jobs on Kubernetes: the real kubectl, against the paths of the published API it asks for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.jobs_here import JobsHere, watched
from tests.kubernetes_server import TOKEN, WELL, KubernetesServer, Step, kubernetes_server
from tests.torchsmith_jobs import kept_bytes
from tests.troubled_server import PAGE, Trouble

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

IMAGE = 'image = "lab/torch:2.6"'
JOBS = "/apis/batch/v1/namespaces/lab/jobs"
POST = f"POST {JOBS}"
TOGETHER = """
name = "pair"
image = "lab/torch:2.6"
distributed = true
secrets = { HF_TOKEN = "hub/token" }

[[role]]
name = "chief"
command = "python main.py"

[[role]]
name = "workers_"
tasks = 2
command = "python main.py"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KubernetesServer]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with kubernetes_server(folder) as server:
        yield server


@pytest.fixture
def jobs(cluster: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobsHere:
    monkeypatch.setattr("torchsmith.jobs.client._FIRST_PAUSE_S", 0.1)
    monkeypatch.setattr("torchsmith.jobs.targets.kubernetes._LOOK_S", 0.5)
    config = cluster.kubeconfig(tmp_path / "cluster")
    folder = tmp_path / "jobs"
    folder.mkdir()
    return JobsHere(folder, "kubernetes", {"KUBECONFIG": str(config), "HOME": str(folder)})


def refused(jobs: JobsHere, job: Path, *options: str, code: int = 11) -> str:
    """Submit what has to be refused; what was said."""
    done = jobs.call("submit", job, "--to", jobs.to, *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert jobs.list() == []
    return done.stderr


def pending(reason: str, message: str) -> Step:
    return Step("Pending", waiting={"reason": reason, "message": message})


def test_a_job_is_submitted_followed_and_ends_well(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    done = jobs.call(
        "submit", jobs.write("python main.py", IMAGE, "mnist"), "--to", "kubernetes", "-f"
    )
    assert done.returncode == 0, done.stderr
    head, *said = done.stdout.splitlines()
    assert "(kubernetes lab/mnist)" in head
    assert said[:3] == ["one", "two", "three"]
    (found,) = jobs.list()
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)
    assert found["nodes"] == ["node-p"]
    assert cluster.count(POST) == 1


def test_roles_are_created_all_or_none(jobs: JobsHere, cluster: KubernetesServer) -> None:
    path = jobs.folder / "pair.toml"
    path.write_text(TOGETHER, encoding="utf-8")
    # The second of its objects is refused, by a rule no dry run knows.
    no = b'{"kind":"Status","status":"Failure","reason":"Forbidden","message":"quota","code":403}'
    cluster.troubles += [
        Trouble("POST", JOBS, times=2, status=200, body=b"{}"),
        Trouble("POST", JOBS, status=403, body=no),
    ]
    assert "quota (Forbidden)" in refused(jobs, path)
    assert cluster.objects == {}
    job = jobs.submit(path)
    assert cluster.names("services") == ["pair"]
    assert cluster.names("jobs") == ["pair-chief", "pair-workers"]
    done = jobs.call("logs", job, "--follow", "--role", "workers_")
    assert sorted(done.stdout.splitlines()) == sorted(
        f"workers_-{index} | {word}" for index in (0, 1) for word in ("one", "two", "three")
    )
    assert [task["role"] for task in jobs.told(job)["tasks"]] == ["chief", "workers_", "workers_"]


def test_a_pytorchjob_is_submitted_too(jobs: JobsHere, cluster: KubernetesServer) -> None:
    jobs.to = "kubeflow"
    more = f"{IMAGE}\ndistributed = true"
    job = jobs.submit(jobs.write("python main.py", more, "ddp"), "--set", "role.tasks=3")
    assert cluster.names("pytorchjobs") == ["ddp"]
    found = jobs.ended(job)
    assert [task["index"] for task in found["tasks"]] == [0, 1, 2]
    cluster.operator = False
    said = jobs.call("submit", jobs.write("x", IMAGE, "late"), "--to", "kubeflow").stderr
    assert "the cluster of test has no kind PyTorchJob" in said
    assert "--to kubernetes" in said


def test_a_trainjob_is_submitted_too(jobs: JobsHere, cluster: KubernetesServer) -> None:
    jobs.to = "kubeflow-trainer"
    more = f'{IMAGE}\ndistributed = true\nsecrets = {{ HF_TOKEN = "hub/token" }}'
    changes = ("--set", "role.tasks=3", "--set", "role.shm_mb=512")
    job = jobs.submit(jobs.write("python main.py", more, "ddp"), *changes)
    assert cluster.names("trainjobs") == ["ddp"]
    found = jobs.ended(job)
    assert found["state"] == "succeeded"
    assert [task["index"] for task in found["tasks"]] == [0, 1, 2]
    cluster.operator = False
    said = jobs.call("submit", jobs.write("x", IMAGE, "late"), "--to", jobs.to).stderr
    assert "the cluster of test has no kind TrainJob" in said


SERVED = """
name = "served"
image = "lab/torch:2.6"

[[role]]
name = "ps"
min_succeeded = -1
command = "python ps.py"

[[role]]
name = "worker"
tasks = 2
min_succeeded = 2
command = "python worker.py --ps $PAI_HOST_IP_ps_0"
"""


def test_roles_that_end_each_other_are_one_jobset(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    path = jobs.folder / "served.toml"
    path.write_text(SERVED, encoding="utf-8")
    job = jobs.submit(path)
    assert cluster.names("jobsets") == ["served"]
    assert cluster.names("jobs") == []
    found = jobs.ended(job)
    assert found["state"] == "succeeded"
    assert found["ended"]
    assert [task["role"] for task in found["tasks"]] == ["ps", "worker", "worker"]
    assert [one["name"] for one in jobs.list()] == ["served"]
    cluster.steps = [*WELL[:2]]
    other = jobs.submit(path, "--set", "name=other")
    assert jobs.call("cancel", other).returncode == 0
    assert cluster.names("jobsets") == ["served"]


def test_a_cluster_without_jobsets_still_lists_its_jobs(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    cluster.operator = False
    jobs.submit(jobs.write("python main.py", IMAGE, "mnist"))
    assert [one["name"] for one in jobs.list()] == ["mnist"]
    path = jobs.folder / "served.toml"
    path.write_text(SERVED, encoding="utf-8")
    done = jobs.call("submit", path, "--to", "kubernetes")
    assert done.returncode == 11
    assert "the cluster of test has no kind JobSet" in done.stderr


def test_a_cancelled_job_leaves_nothing(jobs: JobsHere, cluster: KubernetesServer) -> None:
    cluster.steps = [*WELL[:2]]
    path = jobs.folder / "pair.toml"
    path.write_text(TOGETHER, encoding="utf-8")
    job = jobs.submit(path)
    done = jobs.call("cancel", job)
    assert done.returncode == 0, done.stderr
    assert "cancelled" in done.stdout
    assert cluster.objects == {}
    assert jobs.told(job)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("step", "state", "told"),
    [
        pytest.param(
            pending("ImagePullBackOff", 'Back-off pulling image "lab/torch:2.6"'),
            "waiting",
            "main-0: the image lab/torch:2.6 cannot be pulled (ImagePullBackOff): Back-off",
            id="image",
        ),
        pytest.param(
            pending("CreateContainerConfigError", 'secret "hub" not found'),
            "waiting",
            'main-0: CreateContainerConfigError: secret "hub" not found',
            id="secret",
        ),
        pytest.param(
            Step(
                "Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
                    }
                ],
            ),
            "waiting",
            "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
            id="no-node",
        ),
        pytest.param(
            Step(
                "Failed",
                "Killed\n",
                terminated={"exitCode": 137, "reason": "OOMKilled"},
                condition=("Failed", "BackoffLimitExceeded"),
            ),
            "failed",
            "main-0: it used more memory than its 100Mi (OOMKilled)",
            id="memory",
        ),
        pytest.param(
            Step("Failed", reason="DeadlineExceeded", condition=("Failed", "DeadlineExceeded")),
            "timeout",
            "main-0: its time was up",
            id="time",
        ),
        pytest.param(
            Step(
                "Failed",
                reason="Evicted",
                message="The node was low on resource: memory.",
                condition=("Failed", "BackoffLimitExceeded"),
            ),
            "failed",
            "main-0: Evicted: The node was low on resource: memory.",
            id="evicted",
        ),
        pytest.param(
            Step(
                "Failed",
                "ValueError: no\n",
                terminated={"exitCode": 3, "reason": "Error"},
                condition=("Failed", "BackoffLimitExceeded"),
            ),
            "failed",
            "main-0 said last (exit code 3):\n    ValueError: no",
            id="program",
        ),
    ],
)
def test_why_a_job_does_not_run_is_told(
    jobs: JobsHere, cluster: KubernetesServer, step: Step, state: str, told: str
) -> None:
    cluster.steps = [WELL[0], step]
    job = jobs.submit(jobs.write("x", IMAGE))
    said = jobs.call("status", job).stdout
    assert told in said
    assert jobs.told(job)["state"] == state


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"drop": True, "after": True}, id="dropped-after-it-was-created"),
        pytest.param({"drop": True}, id="dropped-before"),
        pytest.param({"status": 502, "body": PAGE, "kind": "text/html"}, id="502-page"),
        pytest.param({"status": 503, "body": PAGE, "kind": "text/html", "after": True}, id="503"),
    ],
)
def test_a_submission_without_an_answer_is_never_made_twice(
    jobs: JobsHere, cluster: KubernetesServer, bad: dict[str, object]
) -> None:
    cluster.troubles.append(Trouble("POST", JOBS, **bad))  # type: ignore[arg-type]
    jobs.submit(jobs.write("x", IMAGE))
    assert cluster.names("jobs") == ["job"]
    assert cluster.count(POST) == 2
    assert len(jobs.list()) == 1


def test_a_cluster_that_dies_meanwhile_loses_no_job(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    job = jobs.write("x", IMAGE)
    cluster.troubles += [
        Trouble("POST", JOBS, drop=True, after=True),
        Trouble("POST", JOBS, times=9, status=500, body=b"{}"),
    ]
    done = jobs.call("submit", job, "--to", "kubernetes")
    assert done.returncode == 11, done.stderr
    cluster.troubles.clear()
    asked = cluster.count(POST)
    again = jobs.call("submit", job, "--to", "kubernetes")
    assert again.returncode == 0, again.stderr
    assert "has it already" in again.stderr
    assert cluster.count(POST) == asked
    assert len(jobs.list()) == 1


def test_a_submission_that_stopped_half_way_is_brought_to_its_end(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    path = jobs.folder / "pair.toml"
    path.write_text(TOGETHER, encoding="utf-8")
    # Two dry runs and the first of two roles; then the cluster is gone for a while.
    cluster.troubles += [
        Trouble("POST", JOBS, times=2, status=200, body=b"{}"),
        Trouble("POST", JOBS, drop=True, after=True),
        Trouble("POST", JOBS, times=3, status=500, body=b"{}"),
    ]
    assert jobs.call("submit", path, "--to", "kubernetes").returncode == 11
    assert cluster.names("jobs") == ["pair-chief"]
    (found,) = jobs.list()
    assert found["engine_id"] == "lab/pair"
    assert cluster.names("jobs") == ["pair-chief", "pair-workers"]


def test_a_log_goes_on_where_its_connection_broke(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    cluster.troubles.append(Trouble("GET", ".*/log", drop=True))
    done = jobs.call("submit", jobs.write("x", IMAGE), "--to", "kubernetes", "--follow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:4] == ["one", "two", "three"]


def test_another_ones_job_of_the_same_name_is_not_taken_for_ours(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    job = jobs.write("x", IMAGE)
    jobs.submit(job)
    done = jobs.call("submit", job, "--to", "kubernetes", "--set", "role.cpus=2")
    assert done.returncode == 11
    assert "there is a Job job in the namespace lab already" in done.stderr
    assert len(jobs.list()) == 1
    assert cluster.names("jobs") == ["job"]


def test_refusals_are_explained_and_nothing_is_left(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    job = jobs.write("x", IMAGE)
    said = refused(jobs, job, "--set", "kubernetes.namespace=vip")
    assert "(Forbidden)" in said
    assert "--set kubernetes.namespace=NAME" in said
    said = refused(jobs, job, "--set", "kubernetes.namespace=nowhere")
    assert 'namespaces "nowhere" not found' in said
    # What a cluster is too old for is refused by it, and not dropped.
    cluster.releases = ("1.25",)
    said = refused(jobs, job, "--set", "role.tasks=2", "--set", "role.min_succeeded=1")
    assert "strict decoding error" in said
    assert "too new for it" in said
    assert cluster.objects == {}


def test_who_is_not_known_there_is_told(jobs: JobsHere, cluster: KubernetesServer) -> None:
    cluster.kubeconfig(jobs.folder.parent / "cluster", token="nobody-knows-this-one")
    said = refused(jobs, jobs.write("x", IMAGE))
    assert "does not know who you are" in said
    assert "nobody-knows" not in said


def test_no_token_is_seen_by_anybody(jobs: JobsHere, cluster: KubernetesServer) -> None:
    job = jobs.write("x", f'{IMAGE}\nsecrets = {{ HF_TOKEN = "hub/token" }}')
    echo = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403}
    body = json.dumps({**echo, "message": "not with {authorization}"}).encode()
    cluster.troubles.append(Trouble("POST", JOBS, status=403, body=body))
    said = refused(jobs, job)
    assert "not with Bearer ***" in said
    jobs.env["HF_TOKEN"] = "hunter2-and-more"
    seen = watched(jobs, "submit", job, "--to", "kubernetes", "--follow")
    for secret in (TOKEN.encode(), b"hunter2-and-more"):
        assert secret not in seen
        assert secret not in kept_bytes(jobs.folder)
    # The cluster has the secret itself; nothing of ours goes there.
    assert "hunter2" not in json.dumps(list(cluster.objects.values()))


def test_a_cluster_that_is_not_there_was_not_asked(
    jobs: JobsHere, cluster: KubernetesServer
) -> None:
    job = jobs.write("x", IMAGE)
    cluster.address = "https://127.0.0.1:9"
    cluster.kubeconfig(jobs.folder.parent / "cluster")
    assert "the cluster of test cannot be reached" in refused(jobs, job)
    jobs.env["KUBECONFIG"] = "/nonexistent"
    assert "kubectl has no cluster set up" in refused(jobs, job)


@pytest.mark.parametrize(
    ("does", "said", "left"),
    [
        ("echo 'Error from server: etcdserver: request timed out'", "timed out", 1),
        ("kill -9 $$", "ended by signal 9", 1),
        ("echo 'Unable to connect to the server: x509: unknown authority'", "x509", 0),
        ("echo 'Unable to connect to the server: dial tcp: no such host'", "no such host", 0),
        ("echo 'error: exec plugin: Bearer abcdefghijkl is old'", "Bearer *** is old", 0),
    ],
    ids=["etcd", "killed", "certificate", "host", "plugin"],
)
def test_whatever_kubectl_says_nothing_is_lost(
    jobs: JobsHere, does: str, said: str, left: int
) -> None:
    """In its place a program that says what it says where something else is broken."""
    fake = jobs.folder / "bin/kubectl"
    fake.parent.mkdir()
    config = 'case "$*" in *view*) echo "{}"; exit;; *current*) echo test; exit;; esac'
    fake.write_text(f"#!/bin/sh\n{config}\n{does} >&2\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    jobs.env["PATH"] = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = jobs.call("submit", jobs.write("x", IMAGE), "--to", "kubernetes")
    assert done.returncode == 11
    assert said in done.stderr
    assert [one["state"] for one in jobs.list()] == ["unsent"] * left


def test_without_kubectl_that_is_said(jobs: JobsHere) -> None:
    jobs.env["PATH"] = str(jobs.folder)
    said = refused(jobs, jobs.write("x", IMAGE), code=4)
    assert "kubectl is missing" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "image=localhost/lab/torch"], "cannot pull localhost/lab/torch"),
        (["--set", "role.memory_mb=0"], "greater than or equal to 1"),
        (["--set", 'env={WANDB_API_KEY="x"}'], "would hold a secret in clear"),
    ],
    ids=["image", "zero", "secret"],
)
def test_bad_jobs_are_refused_before_anybody_is_asked(
    jobs: JobsHere, cluster: KubernetesServer, options: list[str], said: str
) -> None:
    assert said in refused(jobs, jobs.write("x", IMAGE), *options, code=2)
    # Some kubectl ask for the version before anything else.
    assert set(cluster.asked) <= {"GET /version"}


def test_every_kubectl_at_hand_is_understood(
    jobs: JobsHere, cluster: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest and the newest of those beside the one on the PATH, if it has such neighbours."""
    found = shutil.which("kubectl")
    assert found is not None
    beside = sorted(Path(os.path.realpath(found)).parent.glob("kubectl.*"))
    for number, program in enumerate({beside[0], beside[-1]} if beside else {Path(found)}):
        folder = jobs.folder / f"bin-{number}"
        folder.mkdir()
        (folder / "kubectl").symlink_to(program)
        jobs.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        done = jobs.call(
            *("submit", jobs.write("x", IMAGE, f"job-{number}"), "--to", "kubernetes", "--follow")
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1:4] == ["one", "two", "three"]
