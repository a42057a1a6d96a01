"""The Dockerfile builds with podman, from a base image made here, and its user is who was asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.containers import EngineHere

from torchsmith.errors import ContainerToolError
from torchsmith.images.tools import Build
from torchsmith.plan.models import Plan
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Planner = Callable[[str | Path], tuple[Plan, Recipe]]

RECIPE = """
name = "lab"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
[image]
name = "lab"
env = { ODD = 'a "b" $HOME \\ c' }
[[image.train]]
name = "ann"
user = "ann"
uid = 1234
gid = 1235
groups = ["video", "lab"]
timezone = "Asia/Seoul"
"""


def test_the_image_has_torch_and_the_person_it_is_for(
    podman: EngineHere, planned: Planner, tmp_path: Path
) -> None:
    for name, content in dockerfile_context(*planned(RECIPE), "test").items():
        (tmp_path / name).write_bytes(content)
    podman.engine.build(
        Build(tmp_path, "lab:ann", tmp_path / "Dockerfile", target="train-ann"), print
    )
    asked = (
        'id; date +%Z; pwd; echo "$ODD"; touch /workspace/mine; '
        "python -c 'import torch; print(torch.__version__, torch.ones(2).sum().item())'; "
        "test -w /opt/venv/lib/python3.11/site-packages; ! command -v gcc"
    )
    said = podman("run", "--rm", "--shm-size=64m", "lab:ann", "sh", "-euc", asked).splitlines()
    assert said[0].startswith("uid=1234(ann) gid=1235(ann)")
    assert "44(video)" in said[0]
    assert "(lab)" in said[0]
    assert said[1:4] == ["KST", "/workspace", 'a "b" $HOME \\ c']
    assert said[4].startswith("2.13.0")
    assert said[4].endswith(" 2.0")

    # Only the numbers change: every layer up to the person is taken again.
    other = Build(
        tmp_path, "lab:other", tmp_path / "Dockerfile", target="train-ann", args={"UID": "4321"}
    )
    podman.engine.build(other)
    assert podman("run", "--rm", "lab:other", "id", "-u").strip() == "4321"
    with pytest.raises(ContainerToolError) as caught:
        podman.engine.build(replace(other, args={"UID": "0"}))
    assert any("UID is 0" in line for line in caught.value.output)
    assert podman.left() == []
