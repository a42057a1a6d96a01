"""A secret is in the environment of its step, and nowhere else."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine.events import Event
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import run_plan
from torchsmith.engine.shell import step_environment
from torchsmith.engine.store import Store
from torchsmith.errors import StepFailed, UsageError
from torchsmith.plan.models import Kind, Plan, Step, step_key
from torchsmith.redact import LineReader, Redactor

pytestmark = pytest.mark.unit

SECRET = 'pa$$ word/with"every+thing'


def plan_of(*steps: Step) -> Plan:
    keys: dict[str, str] = {}
    keyed = []
    for step in steps:
        keys[step.id] = step_key(step, keys, {})
        keyed.append(replace(step, key=keys[step.id]))
    return Plan("tiny", (), tuple(keyed))


def test_a_printed_secret_is_in_no_log_no_journal_and_no_event(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    journal = Journal(store.root / "journal.sqlite")
    seen: list[Event] = []
    step = Step(
        "upload",
        "publish",
        "Upload",
        secrets=("TOKEN",),
        commands=(
            'echo "token is $TOKEN"; printf "%s" "$TOKEN" | base64 -w0; echo; env',
            'printf "%s" "${TOKEN:0:5}"; sleep 0.05; printf "%s\\n" "${TOKEN:5}"',
            'set -x; echo "a.cpp:1:1: error: $TOKEN" >&2; false',
        ),
    )
    environment = {"PATH": "/usr/bin:/bin", "TOKEN": SECRET}
    with pytest.raises(StepFailed) as error:
        run_plan(
            plan_of(step),
            store,
            journal,
            work=tmp_path / "work",
            on_event=seen.append,
            environment=environment,
        )
    encoded = base64.b64encode(SECRET.encode())
    told = repr(seen) + str(error.value) + repr(error.value.excerpt)
    assert "error: ***" in told
    for form in (SECRET.encode(), encoded):
        assert form.decode() not in told
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert form not in path.read_bytes(), path


def test_a_step_does_not_see_the_secrets_of_another(tmp_path: Path) -> None:
    plan = plan_of(
        Step("a", "fetch", "A", commands=('mkdir o; echo "${TOKEN:-none}" > o/a',), outputs=("o",)),
        Step("b", "publish", "B", secrets=("TOKEN",), commands=('test "$TOKEN" = x',)),
    )
    store = Store(tmp_path / "store")
    run_plan(
        plan,
        store,
        Journal(store.root / "journal.sqlite"),
        work=tmp_path / "work",
        environment={"PATH": "/usr/bin:/bin", "TOKEN": "x"},
        only=["a", "b"],
    )
    assert (tmp_path / "work/o/a").read_text() == "none\n"


def test_a_missing_secret_is_known_before_anything_runs(tmp_path: Path) -> None:
    plan = plan_of(
        Step("a", "compile", "A", commands=("mkdir o",), outputs=("o",)),
        Step("b", "publish", "B", needs=("a",), secrets=("TOKEN",), commands=("true",)),
    )
    store = Store(tmp_path / "store")
    journal = Journal(store.root / "journal.sqlite")
    with pytest.raises(UsageError, match="TOKEN"):
        run_plan(
            plan, store, journal, work=tmp_path / "work", environment={"PATH": "/usr/bin:/bin"}
        )
    assert not (tmp_path / "work/o").exists()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("secret", ["hunter22", "first line\nsecond line", "long first line\nno"])
def test_a_secret_cut_anywhere_is_found(secret: str, size: int) -> None:
    reader = LineReader(Redactor([secret]))
    stream = f"before {secret} after\nnext {secret}\rlast {secret}".encode()
    pieces = [reader.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    kept = b"".join([*pieces, reader.finish()])
    assert kept == b"before *** after\nnext ***\rlast ***"


def test_a_secret_in_a_line_without_end_is_found() -> None:
    reader = LineReader(Redactor(["hunter22"]))
    stream = b"x" * 70_000 + b"hunter22" + b"y" * 140_000
    kept = b"".join([reader.feed(stream[at : at + 999]) for at in range(0, len(stream), 999)])
    kept += reader.finish()
    assert b"hunter22" not in kept
    assert kept.count(b"***") == 1


def test_a_secret_inside_another_leaves_no_rest() -> None:
    assert Redactor(["abc", "abcdef"]).clean(b"abcdef abc") == b"*** ***"
    assert Redactor([""]).clean(b"nothing") == b"nothing"


@pytest.mark.parametrize("kind", ["environment", "configure", "compile", "verify"])
def test_what_a_project_runs_sees_none_of_the_callers_secrets(kind: Kind, tmp_path: Path) -> None:
    base = {"GITHUB_TOKEN": "a", "TWINE_PASSWORD": "b", "HOME": "/home/ann", "CC": "gcc"}
    seen = step_environment(Step("a", kind, "A"), tmp_path, base, frozenset(), resume=False)
    assert {"GITHUB_TOKEN", "TWINE_PASSWORD"}.isdisjoint(seen)
    # What has no network has no business in the caller's home either.
    own = tmp_path / ".torchsmith/home"
    assert seen["HOME"] == ("/home/ann" if kind == "environment" else str(own))
    asked = Step("a", kind, "A", secrets=("GITHUB_TOKEN",))
    assert step_environment(asked, tmp_path, base, frozenset(), resume=False)["GITHUB_TOKEN"] == "a"
