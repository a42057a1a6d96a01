"""A real build, as a person does it: a C++ extension against the published torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import CODE, Torchsmith

pytestmark = pytest.mark.e2e

RECIPE = """
name = "tiny"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "host"

[[companions.extension]]
name = "tiny"
folder = "tiny"
"""


def test_a_build_gives_a_working_wheel_and_never_builds_twice(
    tiny: Path, torchsmith: Torchsmith, published_torch: Path
) -> None:
    project = tiny
    text = RECIPE.format(release=PUBLISHED_TORCH, environment=published_torch)
    (project / "recipe.toml").write_text(text, encoding="utf-8")
    broken = project / "tiny" / "tiny.cpp"
    broken.write_text(CODE.replace("x.mul", "y.mul"), encoding="utf-8")
    failed = torchsmith(project, "build")
    assert failed.returncode == 6
    # The compiler's own words, and how to go on.
    assert "error: ‘y’ was not declared in this scope" in failed.stderr
    assert "goes on" in failed.stderr

    broken.write_text(CODE, encoding="utf-8")
    built = torchsmith(project, "build")
    assert built.returncode == 0, built.stderr
    assert "Environment: Python" in built.stderr
    assert "(in the store)" in built.stderr
    wheel = Path(built.stdout.strip())
    assert wheel.name.startswith("tiny-1.0-cp3")
    assert wheel.is_file()
    believed = torchsmith(project, "verify", "--signature", str(wheel))
    assert believed.returncode == 0, believed.stderr
    inspected = json.loads(torchsmith(project, "inspect", "--json", str(wheel)).stdout)["artifact"]
    assert inspected["signature"]["state"] == "trusted"
    assert inspected["verification"]["fits"]
    assert inspected["made"]["sources"][0]["annotations"]["folder"] == "tiny"
    assert inspected["bill"] == f"{wheel.name}.cdx.json"

    again = torchsmith(project, "build")
    assert again.returncode == 0
    assert again.stdout == built.stdout
    assert again.stderr.count("(in the store)") == 5

    (project / "tiny" / "tiny" / "__init__.py").write_text(
        "import torch\nfrom tiny._C import twice\nVERSION = 2\n", encoding="utf-8"
    )
    planned = torchsmith(project, "build", "--dry-run")
    assert planned.returncode == 0
    assert planned.stdout.count("in the store") == 1
    assert planned.stdout.count("to be run") == 4

    runs = json.loads(torchsmith(project, "log", "--json").stdout)["runs"]
    assert [run["status"] for run in runs] == ["done", "done", "failed"]
    steps = torchsmith(project, "log", runs[1]["id"])
    assert "compile-tiny-tiny" in steps.stdout
    whole = torchsmith(project, "log", runs[1]["id"], "compile-tiny-tiny")
    assert "tiny-1.0" in whole.stdout

    checked = torchsmith(project, "store", "verify")
    assert checked.returncode == 0, checked.stdout
    kept = json.loads(torchsmith(project, "store", "list", "--json").stdout)["results"]
    assert {entry["step"] for entry in kept} >= {"compile-tiny-tiny", "verify-tiny-tiny"}
