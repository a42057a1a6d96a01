"""A person's own defaults: less than a flag or a variable, and a mistake in them is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.settings import SETTINGS

pytestmark = pytest.mark.unit


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for item in SETTINGS:
        # Set first, so that what the command sets is taken back after the test.
        monkeypatch.setenv(item.variable, "")
        monkeypatch.delenv(item.variable)
    path = tmp_path / "config/torchsmith/config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_a_setting_is_a_default_of_every_command(run: Run, file: Path, tmp_path: Path) -> None:
    file.write_text(f'store = "{tmp_path}/mine"\njobs = 3\nmemory = "5G"\n')
    code, out, _ = run("guard", "--dry-run", "--json", "--", "true")
    assert code == 0
    shown = json.loads(out)
    assert (shown["jobs"], shown["memory"]) == (3, 5 << 30)
    assert str(tmp_path / "mine") in json.dumps(shown["environment"])
    assert json.loads(run("guard", "-j", "2", "--dry-run", "--json", "--", "true")[1])["jobs"] == 2


def test_a_variable_comes_before_the_file(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('container_tool = "docker"\njobs_to = "slurm"\n')
    monkeypatch.setenv("TORCHSMITH_ENGINE", "podman")
    code, out, _ = run("config", "--json")
    assert code == 0
    rows = {row["key"]: (row["value"], row["set_by"]) for row in json.loads(out)["settings"]}
    assert rows["container_tool"] == ("podman", "variable")
    assert rows["jobs_to"] == ("slurm", "file")
    assert rows["store"] == ("", "")
    assert os.environ["TORCHSMITH_JOBS_TO"] == "slurm"


def test_without_a_file_nothing_is_set(run: Run, file: Path) -> None:
    code, out, _ = run("config")
    assert code == 0
    assert f"{file} (does not exist)" in out
    assert out.count("not set") == len(SETTINGS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jops = 3", "jops is not a setting"),
        ('jobs = "3"', "jobs must be a whole number"),
        ("jobs = true", "jobs must be a whole number"),
        ("memory = 8", "memory must be a text in quotes"),
        ('store = ""', "store must be a text in quotes"),
        ("jobs =", "cannot be read: Invalid value"),
    ],
)
def test_a_mistake_in_the_file_is_named(run: Run, file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    code, _, err = run("config")
    assert code == 2
    assert f"error: {file}" in err
    assert reason in err
