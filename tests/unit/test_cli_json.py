"""Every command answers scripts in JSON, with the version of its keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.every_command import LEAVES, options
from tests.unit.conftest import Run

pytestmark = pytest.mark.unit

# `schema` is JSON already; servers answer in a browser.
WITHOUT = {("schema",), ("serve",), ("portal",)}


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TORCHSMITH_STORE", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))


def test_every_command_can_answer_in_json() -> None:
    assert {words for words in LEAVES if "--json" not in options(words)} == WITHOUT


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("store list", {"results"}),
        ("store verify", {"damaged"}),
        ("store gc --dry-run", {"dry_run", "results", "leftovers", "bytes"}),
        ("store share", {"store"}),
        ("key export", {"id", "public", "file"}),
        ("key export -o mine.pem", {"id", "public", "file"}),
        ("key rotate", {"id", "old"}),
        ("config", {"file", "settings"}),
        ("init --list", {"presets"}),
        ("init new.toml --torch 2.6.0 --python 3.11", {"recipe", "file"}),
        ("init - --torch 2.6.0 --python 3.11", {"recipe", "file"}),
    ],
)
def test_an_answer_in_json_is_one_document(run: Run, words: str, keys: set[str]) -> None:
    run("key", "export")
    code, out, err = run(*words.split(), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document.pop("version") == 1
    assert set(document) == keys


def test_keys_are_trusted_and_revoked_in_json(run: Run) -> None:
    key = json.loads(run("key", "export", "-o", "mine.pem", "--json")[1])["id"]
    trusted = json.loads(run("key", "trust", "mine.pem", "--until", "2099-01-31", "--json")[1])
    assert trusted == {"version": 1, "id": key, "until": "2099-01-31"}
    assert json.loads(run("key", "revoke", key, "--json")[1]) == {"version": 1, "revoked": [key]}


def test_a_recipe_that_cannot_exist_is_not_written(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("init", "new.toml", "--torch", "2.6.0", "--python", "3.6", "--json")
    assert code == 3
    assert "Python 3.6 and torch 2.6.0 do not go together" in json.loads(out)["error"]["message"]
    assert not (tmp_path / "new.toml").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["facts gpu", "init --list", "schema", "build --help"])
def test_a_reader_that_has_seen_enough_is_no_failure(words: str, unbuffered: str) -> None:
    command = [sys.executable, "-m", "torchsmith", *words.split()]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    ) as program:
        assert program.stdout is not None
        program.stdout.close()
        assert program.stderr is not None
        assert program.stderr.read() == b""
    assert program.returncode == 0


@pytest.mark.parametrize("words", ["init --list", "-V", "build --help"])
def test_an_answer_that_finds_no_room_is_a_failure(words: str) -> None:
    line = f"{sys.executable} -m torchsmith {words} >/dev/full"
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(line, shell=True, env=env, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 7
    assert done.stderr.startswith(b"error: No space left on device")
    assert b"Exception ignored" not in done.stderr


def test_ctrl_c_before_the_command_begins_leaves_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchsmith.cli._open_closed_streams", stopped)
    code, out, err = run("facts", "torch")
    assert (code, out, err) == (130, "", "interrupted\n")


def test_a_task_that_is_stopped_leaves_no_traceback_in_the_log() -> None:
    program = """
import os, signal, msgspec
from torchsmith.tasks import run_task
class Nothing(msgspec.Struct): pass
run_task(Nothing, lambda _: os.kill(os.getpid(), signal.SIGINT))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=b"{}", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_refusal_that_nobody_can_read_keeps_its_exit_code() -> None:
    line = f"{sys.executable} -m torchsmith plan missing.toml 2>/dev/full"
    assert subprocess.run(line, shell=True, check=False).returncode == 2


def test_a_value_that_cannot_be_is_explained_in_words(run: Run) -> None:
    for words, reason in (
        ("build --jobs 0", "it must be greater than or equal to 1"),
        ("plan --as jsn", "'jsn' is not one of"),
    ):
        code, _, err = run(*words.split())
        assert code == 2
        assert reason in err
        assert "Value error" not in err
        assert "Input should" not in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("build --preset quickstart --memory lots", "--memory: 'lots' is not a size"),
        ("build --preset quickstart --engine podmn", "Did you mean podman?"),
        ("build --preset quickstart --on slrum", "Did you mean slurm?"),
        ("image build --preset training-image --engine podmn", "Did you mean podman?"),
    ],
)
def test_an_option_is_checked_before_anything_is_planned(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, reason: str
) -> None:
    monkeypatch.setattr("torchsmith.engine.door.plan_recipe", None)
    code, _, err = run(*words.split())
    assert code == 2
    assert reason in err


@pytest.mark.parametrize("words", [(), ("--torch", "2.6.0", "--python", "3.11")])
def test_a_lock_is_written_beside_no_shipped_recipe(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("torchsmith.engine.door.plan_recipe", None)
    code, _, err = run("lock", *words)
    assert code == 2
    assert "there is no recipe file to put the lock beside" in err


def test_help_explains_itself_and_repeats_no_dots(run: Run) -> None:
    assert run("help", "help") == run("help")
    for words in (("job", "cancel"), ("key", "revoke")):
        assert "......" not in run("help", *words)[1]


def test_a_bundle_can_be_looked_at_before_it_is_made(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "sources.bundle"
    words = ("bundle", "--preset", "quickstart", "--python", "3.11", "-o", str(target))
    code, out, _ = run(*words, "--dry-run", "--json")
    assert code == 0
    assert {step["kind"] for step in json.loads(out)["steps"]} == {"fetch"}
    assert not target.exists()


def test_steps_are_named_by_the_beginning_of_their_ids(run: Run) -> None:
    words = ("build", "--preset", "quickstart", "--python", "3.11", "--dry-run", "--json")
    kinds = {step["kind"] for step in json.loads(run(*words, "--step", "patch")[1])["steps"]}
    assert kinds == {"fetch", "patch"}
    code, out, _ = run(*words, "--step", "compile-tarch")
    assert code == 2
    assert "Did you mean compile-torch-quickstart?" in json.loads(out)["error"]["hint"]
