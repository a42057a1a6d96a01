"""What a step sees of the environment torchsmith is called in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchsmith.engine.shell import step_environment, step_script
from torchsmith.plan.models import Kind, Step

pytestmark = pytest.mark.unit


def seen(kind: Kind, monkeypatch: pytest.MonkeyPatch, network: str = "") -> dict[str, str]:
    for name in ("LD_PRELOAD", "MY_SETTING", "PIP_INDEX_URL", "HTTPS_PROXY", "CUDA_HOME"):
        monkeypatch.setenv(name, f"/the/caller/{name}")
    monkeypatch.setenv("HOME", "/the/caller")
    step = Step("a", kind, "", network=network, secrets=("MINE",))
    monkeypatch.setenv("MINE", "given")
    base = {**os.environ, "OURS": "set by torchsmith"}
    return step_environment(step, Path("/work"), base, frozenset(["MINE"]), resume=False)


def test_a_step_without_network_sees_only_named_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen("compile", monkeypatch)
    assert not {"LD_PRELOAD", "MY_SETTING", "PIP_INDEX_URL", "HTTPS_PROXY"} & found.keys()
    assert {"OURS", "MINE", "CUDA_HOME", "PATH"} <= found.keys()
    assert found["HOME"] == "/work/.torchsmith/home"


@pytest.mark.parametrize(("kind", "network"), [("environment", ""), ("compile", "asked for")])
def test_a_step_with_network_knows_how_to_reach_it(
    kind: Kind, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = seen(kind, monkeypatch, network)
    assert "MY_SETTING" not in found
    assert {"PIP_INDEX_URL", "HTTPS_PROXY"} <= found.keys()
    assert found["HOME"] == "/the/caller"


def test_what_torchsmith_does_itself_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MY_SETTING" in seen("fetch", monkeypatch)
    assert "MY_SETTING" in seen("image", monkeypatch)


def test_a_script_that_gets_no_leave_does_nothing(tmp_path: Path) -> None:
    script = step_script(Step("a", "fetch", "", commands=("touch ran",)))
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 1
    assert not (tmp_path / "ran").exists()
    subprocess.run(command, cwd=tmp_path, input=b"\n", check=True)
    assert (tmp_path / "ran").exists()
