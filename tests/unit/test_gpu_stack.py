"""A stack for a CUDA machine elsewhere can be planned before anything travels there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import gpu_stack
from benchmarks.gpu_extension import described
from benchmarks.gpu_run import built_with
from tests.unit.conftest import Run

pytestmark = pytest.mark.unit

SETTINGS = {
    "torch": "2.11.0",
    "cuda": "13.0",
    "python": "3.12",
    "gpu": "9.0",
    "gcc": "13.3.0",
    "glibc": "2.39",
    "platform": "linux-x86_64",
    "packages": sorted({*gpu_stack.PACKAGES, "flash-attn", "torch-cluster"}),
}


def test_its_recipe_is_built_published_and_locked(run: Run, tmp_path: Path) -> None:
    gpu_stack.write_project(tmp_path, SETTINGS)
    host = tmp_path / "host.json"
    host.write_text(json.dumps(described(SETTINGS, ["numpy==2.1.0"])))
    recipe = tmp_path / f"{gpu_stack.NAME}.toml"
    code, out, err = run("plan", str(recipe), "--host", str(host), "--json")
    assert code == 0, err
    planned = {step["id"]: step for step in json.loads(out)["steps"]}
    steps = list(planned)
    (made,) = planned["environment-gpu-stack"]["outputs"]
    python = tmp_path / "build" / gpu_stack.NAME / made / "bin/python"
    assert built_with(tmp_path, gpu_stack.NAME) == python
    for name in SETTINGS["packages"]:
        assert f"compile-{name}-gpu-stack" in steps
        assert f"verify-{name}-gpu-stack" in steps
    assert "lock-gpu-stack" in steps
    assert any(step.startswith("publish-") for step in steps)


def test_each_package_has_checks_for_the_gpu() -> None:
    place = Path(gpu_stack.__file__).with_name("gpu_checks.py")
    text = place.read_text("utf-8")
    assert all(f'"{name}": ' in text for name in SETTINGS["packages"])
