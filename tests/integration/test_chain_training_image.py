"""The document behind `training-image`, from its one line to a person who trains in the image.

A published torch and an extension stand for the torch and the companions that take hours.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.containers import EngineHere
from tests.lab import Torchsmith, from_preset

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.usefixtures("rendering_tools")]

CHANGES = {
    'torch = "1.9.1"': f'torch = {{ release = "{PUBLISHED_TORCH}", use = "wheel" }}',
    'python = "3.8"': 'python = "3.11"',
    'platform = "linux-x86_64"\n': "",
    'vision = "match"\ntext = "match"\naudio = "match"': (
        'extension = [{ name = "near", folder = "near", check = "import near; near.answer()" }]'
    ),
    # Hundreds of packages, which say nothing more of the image than a small one.
    '"jupyterlab", "tensorboard"': '"absl-py"',
    '"scikit-learn"': '"joblib"',
    '"opencv-python-headless"': '"imagesize"',
}
# No GPU is here, nor an image of Ubuntu.
HERE = ("--cuda", "none", "--system", "debian-12")
TRAIN = """
import os, time, near, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.rand(256, 1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(20):
    for batch, wanted in DataLoader(TensorDataset(x, near.answer() * x), 32, num_workers=2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), wanted).backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
shm = os.statvfs("/dev/shm")
print(os.getuid(), os.getgid(), time.tzname[0], shm.f_frsize * shm.f_blocks >> 30,
      round(model.weight.item()))
"""


@pytest.fixture(scope="module")
def lab(podman: EngineHere, tmp_path_factory: pytest.TempPathFactory) -> Torchsmith:
    return from_preset(tmp_path_factory.mktemp("train"), "training-image", CHANGES, podman)


def test_one_line_makes_the_image_that_one_trains_in(
    podman: EngineHere, lab: Torchsmith, tmp_path: Path
) -> None:
    """`make all TRAIN_IMAGE_NAME=train_mine TZ=America/Los_Angeles`, as a person of 1501:1502."""
    words = (*HERE, "--timezone", "America/Los_Angeles")
    mine = ("--only", "train", "--tag", "train_mine", "--uid", "1501", "--gid", "1502")
    (made,) = json.loads(lab("image", "build", *words, *mine, "--json"))["images"]
    assert made["name"] == "pytorch_source:train_mine"
    os.chown(tmp_path, 1501, 1502)
    program = ("run", made["name"], "--mount", f"{tmp_path}:/workspace", "--")
    said = lab(*program, "python", "-c", TRAIN).split()
    assert said[:2] == ["1501", "1502"]
    assert said[2] in ("PST", "PDT")
    assert said[3:] == ["8", "42"]
    kept = (tmp_path / "model.pt").stat()
    assert (kept.st_uid, kept.st_gid) == (1501, 1502)
    lab("run", made["name"], "--", "python", "-c", "import absl")
    podman(
        "run", "--rm", made["name"], "sh", "-euc", "git --version; htop --version; vim --version"
    )


def test_alice_and_bob_have_theirs_of_the_same_build(podman: EngineHere, lab: Torchsmith) -> None:
    for name, uid, zone, module in (
        ("alice", 1001, ("PST", "PDT"), "joblib"),
        ("bob", 1002, ("KST",), "imagesize"),
    ):
        words = (*HERE, "--only", f"train_{name}", "--json")
        (made,) = json.loads(lab("image", "build", *words))["images"]
        # Nothing was compiled, and pip brought what this one asks for: nothing of torch again.
        (log,) = (lab.store / "logs").glob(f"*/image-train-train_{name}-*.log")
        installed = re.findall("Installing collected packages: (.*)", log.read_text())
        assert len(installed) == 1
        assert module in installed[0]
        assert not {"near", "numpy", "torch"}.intersection(installed[0].split(", "))
        assert len(list((lab.store / "logs").glob("*/compile-*.log"))) == 1
        ask = f"import os, time, {module}, near; print(os.getuid(), os.getgid(), time.tzname[0])"
        said = lab("run", made["name"], "--", "python", "-c", ask).split()
        assert said[:2] == [str(uid), str(uid)]
        assert said[2] in zone
    mine, alice, bob = (
        podman.engine.inspect(f"pytorch_source:{tag}").layers
        for tag in ("train_mine", "train_alice", "train_bob")
    )
    common = [len(set(mine) & set(alice)), len(set(alice) & set(bob))]
    assert min(common) >= 3


def test_its_wheels_come_out_for_those_without_docker(lab: Torchsmith, tmp_path: Path) -> None:
    lab("image", "build", *HERE, "--only", "wheels", "--quiet")
    lab("image", "wheels", "pytorch_source:train_alice", "--output", str(tmp_path))
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["near"]
