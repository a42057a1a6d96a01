"""An image with the torchvision that was built here: pushed, pulled elsewhere, used in there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.containers import EngineHere
from tests.registries import RegistryHere

# torchvision is compiled: seven minutes on two cores with the image. What an image is otherwise is
# shown by tests that compile less.
pytestmark = [pytest.mark.integration, pytest.mark.long]

RECIPE = """
name = "seeing"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "3.11"
cuda = "none"

[companions]
vision = "0.21.0"
vision_formats = ["jpeg", "png"]
unmatched = true

[image]
name = "seeing"
build = "wheels"
apt = ["libjpeg62-turbo", "libpng16-16"]
[[image.train]]
name = "dana"
user = "dana"
uid = 1204
gid = 1304
timezone = "Asia/Tokyo"
"""
USED = """
import os, time, torch, torchvision
from torchvision.io import decode_image, encode_jpeg
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 9, 9]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
seen = decode_image(encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8))).shape
loader = torch.utils.data.DataLoader(torch.arange(64.0).reshape(64, 1), 16, num_workers=2)
total = sum(batch.sum().item() for batch in loader)
print(os.getuid(), os.getgid(), time.tzname[0], torchvision.__version__, kept, tuple(seen), total)
"""


def test_an_image_has_the_torchvision_that_was_built_here(
    podman: EngineHere,
    second_podman: EngineHere,
    registry: RegistryHere,
    published_torch: Path,
    tmp_path: Path,
) -> None:
    recipe = RECIPE.format(release=PUBLISHED_TORCH, environment=published_torch)
    (tmp_path / "recipe.toml").write_text(recipe)

    def torchsmith(engine: EngineHere, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "torchsmith", *words],
            cwd=tmp_path,
            env={**engine.env, "TORCHSMITH_STORE": str(tmp_path / "store")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    torchsmith(podman, "image", "build")
    to = f"{registry.address}/lab/seeing:1"
    pushed = json.loads(torchsmith(podman, "image", "push", "seeing:dana", "--to", to, "--json"))
    pinned = pushed["images"][0]["pinned"]
    assert "@sha256:" in pinned
    torchsmith(second_podman, "image", "pull", pinned)
    said = torchsmith(second_podman, "run", pinned, "--", "python", "-c", USED)
    assert said.split(maxsplit=4) == [
        *("1204", "1304", "JST", "0.21.0"),
        "[0, 2] (3, 8, 8) 2016.0\n",
    ]
    assert second_podman.left() == []
