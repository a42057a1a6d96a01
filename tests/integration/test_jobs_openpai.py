"""Jobs on OpenPAI: its published API over real HTTP, in good times and bad."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.jobs_here import JobsHere, watched
from tests.openpai_server import LOG_TOKEN, OpenPaiServer, Step, openpai_server, token_of
from tests.torchsmith_jobs import COMMAND, kept_bytes
from tests.troubled_server import PAGE, Trouble

pytestmark = pytest.mark.integration

TOKEN = token_of("alice")
SECRET = "hunter2-and-more"
SUBMITTED = "/rest-server/api/v2/jobs"
POST = f"POST {SUBMITTED}"
IMAGE = 'image = "lab/torch:2.6"'
EXAMPLES = Path(__file__).parents[1] / "data/jobs"


@pytest.fixture
def pai() -> Iterator[OpenPaiServer]:
    with openpai_server() as server:
        yield server


@pytest.fixture
def jobs(pai: OpenPaiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobsHere:
    monkeypatch.setattr("torchsmith.jobs.client._FIRST_PAUSE_S", 0.1)
    return JobsHere(
        tmp_path,
        "openpai",
        {
            "OPENPAI_SERVER": pai.address,
            "OPENPAI_TOKEN": TOKEN,
            "TORCHSMITH_SECRETS": str(tmp_path / "secrets"),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        },
    )


def refused(jobs: JobsHere, job: Path, *options: str, code: int = 11) -> str:
    """Submit what has to be refused; what was said."""
    done = jobs.call("submit", job, "--to", jobs.to, *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert jobs.list() == []
    return done.stderr


def test_a_job_is_submitted_followed_and_ends_well(jobs: JobsHere, pai: OpenPaiServer) -> None:
    job = jobs.write("python main.py", f"{IMAGE}\nqueue = 'gpu'", "mnist")
    done = jobs.call("submit", job, "--to", "openpai", "--follow")
    assert done.returncode == 0, done.stderr
    head, *said = done.stdout.splitlines()
    assert "(openpai alice~mnist)" in head
    assert said[:3] == ["one", "two", "three"]
    (found,) = jobs.list()
    assert found["state"] == "succeeded"
    assert found["exit_code"] == 0
    assert found["nodes"] == ["node1"]
    assert found["ended"] - found["started"] == 4
    kept = yaml.safe_load(pai.jobs["alice~mnist"].config)
    assert kept["defaults"] == {"virtualCluster": "gpu"}
    assert pai.count(POST) == 1


def test_a_job_of_protocol_1_is_the_same_from_here(jobs: JobsHere, pai: OpenPaiServer) -> None:
    done = jobs.call("import", EXAMPLES / "openpai-mnist.json", "--output", "mnist.toml")
    assert done.returncode == 0, done.stderr
    pai.steps[-1:] = [Step("FAILED", "CUDA error\n", 1)]
    done = jobs.call("submit", "mnist.toml", "--to", "openpai-v1")
    assert done.returncode == 2
    assert "USER may stand for a name of yours" in done.stderr
    mine = ("--set", "image=alice/pai.run.pytorch")
    done = jobs.call("submit", "mnist.toml", "--to", "openpai-v1", "--follow", *mine)
    assert done.returncode == 12, done.stderr
    assert "CUDA error" in done.stdout
    (found,) = jobs.list()
    assert found["state"] == "failed"
    assert found["exit_code"] == 1
    ((key, job),) = pai.jobs.items()
    sent = json.loads(job.config)
    assert sent.pop("extras") == {"torchsmith": sent_token(jobs)}
    guide = json.loads((EXAMPLES / "openpai-mnist.json").read_text(encoding="utf-8"))
    assert sent == {**guide, "image": "alice/pai.run.pytorch"}
    assert found["engine_id"] == key


def sent_token(jobs: JobsHere) -> str:
    (request,) = (jobs.folder / "store/jobs").glob("*/request")
    token = yaml.safe_load(request.read_text(encoding="utf-8"))["extras"]["torchsmith"]
    assert token.startswith(request.parent.name)
    return str(token)


def test_each_task_has_its_state_and_its_lines(jobs: JobsHere, pai: OpenPaiServer) -> None:
    reason = {
        "phrase": "ContainerOOMKilled",
        "reason": "Out of memory",
        "solution": ["Ask for more"],
    }
    pai.steps = [Step("WAITING"), Step("RUNNING", "out\n"), Step("FAILED", "", 137, reason)]
    job = jobs.submit(jobs.write("x", f"{IMAGE}\n", "many"), "--set", "role.tasks=2")
    first = jobs.told(job)
    assert first["state"] == "running"
    assert [task["node"] for task in first["tasks"]] == ["node1", "node2"]
    done = jobs.call("logs", job, "-f")
    assert done.stdout.splitlines() == ["main-0 | out", "main-1 | out"]
    one = jobs.call("logs", job, "--task", "main-1")
    assert one.stdout.splitlines() == ["main-1 | out"]
    told = jobs.call("status", job).stdout
    assert "main-0: Out of memory (Ask for more)" in told
    assert "exit code 137" in told
    wrong = jobs.call("logs", job, "--task", "main-7")
    assert wrong.returncode == 2
    assert "no task" in wrong.stderr


def test_a_job_whose_time_is_up_says_so(jobs: JobsHere, pai: OpenPaiServer) -> None:
    pai.steps = [Step("RUNNING"), Step("FAILED", "", 124)]
    job = jobs.submit(jobs.write("sleep 9", f'{IMAGE}\ntime_limit = "1s"'))
    assert jobs.ended(job)["exit_code"] == 124


def test_a_cancelled_job_is_stopped_there(jobs: JobsHere, pai: OpenPaiServer) -> None:
    pai.steps = [Step("WAITING"), Step("RUNNING")]
    job = jobs.submit(jobs.write("sleep 9", IMAGE))
    done = jobs.call("cancel", job)
    assert done.returncode == 0, done.stderr
    assert "cancelled" in done.stdout
    assert pai.jobs["alice~job"].step.state == "STOPPED"


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"drop": True, "after": True}, id="dropped-after-it-was-taken"),
        pytest.param({"drop": True}, id="dropped-before"),
        pytest.param({"status": 502, "body": PAGE, "kind": "text/html"}, id="502-page"),
        pytest.param({"status": 500, "body": b'{"code":"UnknownError"}', "after": True}, id="500"),
        pytest.param({"sleep_s": 4, "after": True, "drop": True}, id="slow"),
        pytest.param({"status": 429, "headers": {"Retry-After": "2"}, "body": b"busy"}, id="429"),
    ],
)
def test_a_submission_without_an_answer_is_never_made_twice(
    jobs: JobsHere, pai: OpenPaiServer, bad: dict[str, object]
) -> None:
    pai.troubles.append(Trouble("POST", SUBMITTED, **bad))  # type: ignore[arg-type]
    jobs.env["OPENPAI_TIMEOUT"] = "2"
    started = time.monotonic()
    jobs.submit(jobs.write("x", IMAGE))
    assert list(pai.jobs) == ["alice~job"]
    assert pai.count(POST) == (1 if bad.get("after") else 2)
    assert len(jobs.list()) == 1
    if "headers" in bad:
        assert time.monotonic() - started > 2


def test_a_server_that_dies_meanwhile_loses_no_job(jobs: JobsHere, pai: OpenPaiServer) -> None:
    pai.troubles += [
        Trouble("POST", SUBMITTED, drop=True, after=True),
        Trouble("GET", ".*/config", times=9, status=503, body=PAGE, kind="text/html"),
    ]
    job = jobs.write("x", IMAGE)
    done = jobs.call("submit", job, "--to", "openpai")
    assert done.returncode == 11
    assert "503" in done.stderr
    assert "502 Bad Gateway" in done.stderr
    pai.troubles.clear()
    # It is found by its token: by a look at the list, and by submitting it again.
    again = jobs.call("submit", job, "--to", "openpai")
    assert again.returncode == 0, again.stderr
    assert "has it already" in again.stderr
    assert pai.count(POST) == 1
    assert len(jobs.list()) == 1


def test_a_refusal_of_the_look_does_not_say_that_a_job_was_refused(
    jobs: JobsHere, pai: OpenPaiServer
) -> None:
    no = b'{"code": "ForbiddenUserError", "message": "no"}'
    pai.troubles += [
        Trouble("POST", SUBMITTED, drop=True, after=True),
        Trouble("GET", ".*/config", status=403, body=no),
    ]
    job = jobs.write("x", IMAGE)
    assert jobs.call("submit", job, "--to", "openpai").returncode == 11
    again = jobs.call("submit", job, "--to", "openpai")
    assert again.returncode == 0, again.stderr
    assert pai.count(POST) == 1
    assert len(jobs.list()) == 1


def test_a_log_that_begins_anew_is_followed_on(jobs: JobsHere, pai: OpenPaiServer) -> None:
    pai.steps = [
        Step("WAITING"),
        Step("RUNNING", "a line that is long\n"),
        Step("RUNNING", "short\n", rotated=True),
        Step("SUCCEEDED", "end\n", 0),
    ]
    done = jobs.call("submit", jobs.write("x", IMAGE), "--to", "openpai", "--follow")
    assert done.stdout.splitlines()[1:4] == ["a line that is long", "short", "end"]


def test_a_client_that_is_killed_loses_no_job(jobs: JobsHere, pai: OpenPaiServer) -> None:
    pai.troubles.append(Trouble("POST", SUBMITTED, sleep_s=20, after=True, drop=True))
    job = jobs.write("x", IMAGE)
    client = subprocess.Popen(
        [*COMMAND, "submit", job, "--to", "openpai"], cwd=jobs.folder, env=jobs.environ
    )
    end = time.monotonic() + 30
    while not pai.jobs:
        assert time.monotonic() < end
        time.sleep(0.05)
    client.send_signal(signal.SIGKILL)
    client.wait()
    (found,) = jobs.list()
    assert found["engine_id"] == "alice~job"
    assert pai.count(POST) == 1


def test_another_ones_job_of_the_same_name_is_not_taken_for_ours(
    jobs: JobsHere, pai: OpenPaiServer
) -> None:
    job = jobs.write("x", IMAGE)
    jobs.submit(job)
    done = jobs.call("submit", job, "--to", "openpai", "--set", "role.cpus=2")
    assert done.returncode == 11
    assert "alice has a job job on OpenPAI already" in done.stderr
    assert "--set name=job-2" in done.stderr
    assert len(jobs.list()) == 1


def test_refusals_are_explained_and_nothing_is_left(jobs: JobsHere, pai: OpenPaiServer) -> None:
    job = jobs.write("x", IMAGE)
    said = refused(jobs, job, "--set", "queue=nowhere")
    assert "Virtual cluster nowhere is not found. (NoVirtualClusterError)" in said
    assert "--set queue=NAME" in said
    assert "not allowed to do operation in vip" in refused(jobs, job, "--set", "queue=vip")
    pai.protocols = {1}
    assert "try the other one" in refused(jobs, job)
    errors = [{"dataPath": ".taskRoles.main", "message": "should NOT have additional properties"}]
    body = json.dumps({"code": "InvalidProtocolError", "message": json.dumps(errors)}).encode()
    pai.troubles.append(Trouble("POST", ".*", status=400, body=body))
    assert "taskRoles.main should NOT have additional properties" in refused(jobs, job)
    assert pai.jobs == {}


def test_a_web_page_is_not_taken_for_an_answer(jobs: JobsHere, pai: OpenPaiServer) -> None:
    job = jobs.write("x", IMAGE)
    page = b"<html><head><title>Sign in</title></head></html>"
    pai.troubles.append(Trouble("POST", ".*", status=200, body=page, kind="text/html"))
    assert 'answers with a web page ("Sign in")' in refused(jobs, job)
    pai.troubles.append(
        Trouble("POST", ".*", status=302, headers={"Location": "https://sso/login?x"})
    )
    said = refused(jobs, job)
    assert "sends on to https://sso/login" in said
    assert "?x" not in said


def test_a_server_that_is_not_there_was_not_asked(jobs: JobsHere) -> None:
    jobs.env["OPENPAI_SERVER"] = "http://127.0.0.1:9"
    assert "cannot be reached at http://127.0.0.1:9" in refused(jobs, jobs.write("x", IMAGE))


def test_the_token_is_seen_by_nobody(jobs: JobsHere, pai: OpenPaiServer) -> None:
    job = jobs.write("x", IMAGE)
    echo = b'{"code": "UnauthorizedUserError", "message": "Your token {authorization} is invalid."}'
    pai.troubles.append(Trouble("POST", ".*", status=401, body=echo))
    said = refused(jobs, job)
    assert "Your token Bearer *** is invalid." in said
    assert "Renew the token" in said
    jobs.env["OPENPAI_TOKEN"] = token_of("mallory")
    assert "Your token is invalid." in refused(jobs, job)
    jobs.env["OPENPAI_TOKEN"] = TOKEN
    seen = watched(jobs, "submit", job, "--to", "openpai", "--follow")
    assert TOKEN.encode() not in seen
    assert LOG_TOKEN.encode() not in seen
    assert TOKEN.encode() not in kept_bytes(jobs.folder)


def test_secrets_go_to_the_server_alone(jobs: JobsHere, pai: OpenPaiServer) -> None:
    job = jobs.write("x", f'{IMAGE}\nsecrets = {{ HF_TOKEN = "hub/token" }}')
    said = refused(jobs, job, code=2)
    assert "the secret hub/token has no value here" in said
    place = jobs.folder / "secrets/hub/token"
    place.parent.mkdir(parents=True)
    place.write_text(SECRET, encoding="utf-8")
    place.chmod(0o644)
    assert "can be read by others" in refused(jobs, job, code=2)
    assert pai.count(POST) == 0
    place.chmod(0o600)
    seen = watched(jobs, "submit", job, "--to", "openpai")
    assert pai.jobs["alice~job"].secrets == {"hub_token": SECRET}
    assert SECRET not in pai.jobs["alice~job"].config
    assert SECRET.encode() not in seen
    place.unlink()
    assert SECRET.encode() not in kept_bytes(jobs.folder)


def test_the_token_may_lie_in_a_file_of_its_own(jobs: JobsHere, pai: OpenPaiServer) -> None:
    del jobs.env["OPENPAI_TOKEN"]
    job = jobs.write("x", IMAGE)
    assert "there is no token for" in refused(jobs, job, code=2)
    place = jobs.folder / "secrets/openpai/token"
    place.parent.mkdir(parents=True)
    place.write_text(f"{TOKEN}\n", encoding="utf-8")
    place.chmod(0o600)
    jobs.submit(job)
    assert list(pai.jobs) == ["alice~job"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "image=localhost/lab/torch"], "cannot pull localhost/lab/torch"),
        (["--set", "role.cpus=0"], "greater than or equal to 1"),
        (["--set", "role.command="], "command: is missing"),
        (["--set", "name=über"], "name"),
        (["--set", 'env={WANDB_API_KEY="x"}'], "would hold a secret in clear"),
    ],
    ids=["image", "zero", "command", "name", "secret"],
)
def test_bad_jobs_are_refused_before_anybody_is_asked(
    jobs: JobsHere, pai: OpenPaiServer, options: list[str], said: str
) -> None:
    assert said in refused(jobs, jobs.write("x", IMAGE), *options, code=2)
    assert pai.asked == []


def test_a_job_that_waits_for_another_is_refused(jobs: JobsHere, pai: OpenPaiServer) -> None:
    both = jobs.folder / "both.toml"
    both.write_text(
        "".join(
            f'[[job]]\nname = "{name}"\n{IMAGE}\nafter = {after}\n[[job.role]]\ncommand = "x"\n'
            for name, after in (("first", []), ("second", ["first"]))
        ),
        encoding="utf-8",
    )
    assert "OpenPAI starts every job at once" in refused(jobs, both)
    assert pai.asked == []


def test_an_address_with_a_login_is_refused(jobs: JobsHere) -> None:
    jobs.env["OPENPAI_SERVER"] = f"https://alice:{SECRET}@pai.example.org"
    said = refused(jobs, jobs.write("x", IMAGE), code=2)
    assert re.search(r"pai\.example\.org holds a login", said)
    assert SECRET not in said
    assert os.environ.get("OPENPAI_SERVER") is None
