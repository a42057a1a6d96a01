"""What clusters say of a job, read without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.openpai_server import token_of

from torchsmith.errors import ClusterError, TorchsmithError, UsageError
from torchsmith.jobs import client
from torchsmith.jobs.client import (
    LineCutter,
    NoAnswerError,
    Output,
    Submitted,
    TargetId,
    TaskStatus,
    chooser,
    handed_over,
    patiently,
)
from torchsmith.jobs.clients import client_for
from torchsmith.jobs.kept_secrets import kept_value
from torchsmith.jobs.states import State
from torchsmith.jobs.targets import kubernetes, openpai
from torchsmith.jobs.targets.openpai import address_of, token_for, user_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_PAUSE_S", 0.001)


def pod(born: str, role: str = "main", index: int = 0, **status: Any) -> dict[str, Any]:
    labels = {kubernetes.ROLE: role, "batch.kubernetes.io/job-completion-index": str(index)}
    container = {"name": "c", "image": "x", "resources": {"limits": {"memory": "100Mi"}}}
    return {
        "metadata": {"name": f"{role}-{born}", "creationTimestamp": born, "labels": labels},
        "spec": {"nodeName": f"node-{born}", "containers": [container]},
        "status": status,
    }


def test_of_a_task_that_was_started_again_the_latest_pod_counts() -> None:
    failed = pod("2026-01-01T00:00:00Z", phase="Failed")
    again = pod("2026-01-01T00:05:00Z", phase="Running")
    for items in ([failed, again], [again, failed]):
        (found,) = kubernetes.pods_of(items, ["main"])
        assert found.task.state is State.RUNNING
        assert found.name == "main-2026-01-01T00:05:00Z"


def test_pods_are_told_in_the_order_of_their_roles() -> None:
    items = [pod("b", "workers", 1), pod("a", "workers", 0), pod("c", "chief")]
    found = kubernetes.pods_of(items, ["chief", "workers_"])
    assert [one.task.name for one in found] == ["chief-0", "workers_-0", "workers_-1"]


def test_an_eviction_is_not_the_programs_fault() -> None:
    gone = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    (found,) = kubernetes.pods_of([pod("a", phase="Failed", conditions=gone)], ["main"])
    assert found.task.state is State.LOST
    assert found.reason == "PreemptionByScheduler"


def test_a_job_is_waiting_until_one_of_its_pods_runs() -> None:
    job: dict[str, Any] = {"status": {"active": 1}}
    assert kubernetes.status_of([job], []).state is State.WAITING
    (runs,) = kubernetes.pods_of([pod("a", phase="Running")], ["main"])
    assert kubernetes.status_of([job], [runs]).state is State.RUNNING
    held = {"type": "Suspended", "status": "True", "message": "queued"}
    job["status"]["conditions"] = [held]
    found = kubernetes.status_of([job], [])
    assert (found.state, found.reason) == (State.WAITING, "queued")


@pytest.mark.parametrize("answer", [{}, {"jobStatus": None}, {"taskRoles": [1]}, {"jobStatus": {}}])
def test_an_answer_that_says_nothing_breaks_nothing(answer: dict[str, Any]) -> None:
    assert openpai.status_of(answer).tasks == ()
    assert kubernetes.pods_of([answer], ["main"])[0].task.role == ""


def test_the_address_of_a_server_is_its_rest_server() -> None:
    for named in (
        *("pai.example.org", "https://pai.example.org/", "https://pai.example.org/rest-server"),
        "https://pai.example.org/rest-server/api/v2",
    ):
        assert address_of(named) == "https://pai.example.org/rest-server"
    assert address_of("http://host:9186/pai") == "http://host:9186/pai/rest-server"
    for wrong in (
        *("ftp://host", "https://", "https://[host", "https://host:port"),
        *("https://host/?token=hunter2", "https://host/#hunter2", "https://me:hunter2@[host"),
    ):
        with pytest.raises(UsageError) as refused:
            address_of(wrong)
        assert "hunter2" not in refused.value.message


def test_a_token_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENPAI_USER", raising=False)
    assert user_of(token_of("alice")) == "alice"
    for strange in ("no-jwt", "a.b.c", "a.e30.c"):
        with pytest.raises(UsageError, match="does not say whose it is"):
            user_of(strange)
    monkeypatch.setenv("OPENPAI_USER", "bob")
    assert user_of("no-jwt") == "bob"


def test_a_token_of_several_lines_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENPAI_TOKEN", "one\r\nX-Admin: yes")
    with pytest.raises(UsageError) as refused:
        token_for("https://pai.example.org/rest-server")
    assert "X-Admin" not in refused.value.message + refused.value.hint


def test_a_secret_others_can_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSMITH_SECRETS", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert kept_value("HF_TOKEN", "hub/token") is None
    place = tmp_path / "hub/token"
    place.parent.mkdir()
    place.write_text("hunter2\n", encoding="utf-8")
    place.chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        kept_value("HF_TOKEN", "hub/token")
    place.chmod(0o400)
    assert kept_value("HF_TOKEN", "hub/token") == "hunter2"


class Engine:
    """Answers after some silence."""

    def __init__(self, *silences: NoAnswerError) -> None:
        self.silences = list(silences)
        self.asked = 0

    def ask(self) -> str:
        self.asked += 1
        if self.silences:
            raise self.silences.pop(0)
        return "yes"


def silence(**more: Any) -> NoAnswerError:
    return NoAnswerError("nothing", "", **more)


def test_silence_is_waited_out() -> None:
    engine = Engine(silence(), silence(), silence())
    assert patiently(engine.ask) == "yes"
    assert engine.asked == 4
    with pytest.raises(NoAnswerError):
        patiently(Engine(*[silence()] * 4).ask)


@pytest.mark.parametrize("more", [{"lasting": True}, {"wait_s": 3600.0}], ids=["lasting", "long"])
def test_what_waiting_cannot_help_is_said_at_once(more: dict[str, Any]) -> None:
    engine = Engine(silence(**more))
    with pytest.raises(NoAnswerError):
        patiently(engine.ask)
    assert engine.asked == 1


def test_what_nobody_heard_was_not_done() -> None:
    unheard = [silence(unheard=True)] * 4
    with pytest.raises(ClusterError) as certain:
        handed_over(Engine(*unheard).ask)
    assert not isinstance(certain.value, NoAnswerError)
    # Heard once is enough not to know.
    with pytest.raises(NoAnswerError):
        handed_over(Engine(*unheard[:2], silence(), unheard[0]).ask)


def test_lines_are_whole_wherever_pieces_end() -> None:
    cutter = LineCutter("main-0")
    text = "über\r\n10%\r20%\r\nend".encode()
    lines = [line for byte in text for line in cutter.feed(bytes([byte]))]
    assert [*lines, *cutter.finish()] == ["main-0 | über", "main-0 | 20%", "main-0 | end"]
    assert cutter.taken == len(text)


def test_tasks_are_chosen_by_role_number_or_name(tmp_path: Path) -> None:
    job = Submitted(TargetId("x"), tmp_path, {"chief": 1, "worker": 2})
    last = TaskStatus("worker", 1, State.RUNNING)
    for role, task in (("", ""), ("worker", ""), ("", "1"), ("", "worker-1"), ("worker", "1")):
        assert chooser(job, Output(role, task))(last)
    assert not chooser(job, Output("chief"))(last)
    for role, task in (("nobody", ""), ("chief", "1"), ("", "worker-2")):
        with pytest.raises(UsageError):
            chooser(job, Output(role, task))


def test_an_engine_that_is_not_set_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("OPENPAI_SERVER", raising=False)
    for engine in ("kubernetes", "kubeflow", "openpai", "openpai-v1"):
        with pytest.raises(TorchsmithError) as refused:
            client_for(engine)
        assert refused.value.hint
