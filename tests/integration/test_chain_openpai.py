"""The document behind `openpai`: two images, a registry, two jobs; one file for every engine.

Debian stands for NVIDIA's image of CUDA 8.0, a newer torch for 1.0.1. What the image downloads is
served by this machine: a repository of examples, MNIST, Hadoop.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from tests.conftest import PUBLISHED_TORCH
from tests.containers import EngineHere, served
from tests.lab import Torchsmith, from_preset, git_repository
from tests.openpai_server import openpai_server, token_of
from tests.registries import RegistryHere
from tests.slurm_cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.usefixtures("rendering_tools")]

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests/data/openpai"
GUIDE = ROOT / "tests/data/jobs"
COMMIT = "fe8abc3c810420df2856c6e668258f396b154cee"
BASE = "pai.build.base:hadoop2.7.2-cuda8.0-cudnn6-devel-ubuntu16.04"
PROGRAMS = {
    f"{name}/main.py": (ROOT / "examples/jobs" / program).read_text(encoding="utf-8")
    for name, program in (("mnist", "digits.py"), ("regression", "regression.py"))
}
# A CPU, a GPU less and less memory than PAI's machines have.
SMALL = (
    "--set",
    "role.main.gpus=0",
    "--set",
    "role.main.cpus=1",
    "--set",
    "role.main.memory_mb=3000",
)


def downloads(folder: Path) -> None:
    """MNIST's files and Hadoop's archive, both smaller than the real ones."""
    (folder / "mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"mnist/{name}-ubyte.gz").write_bytes(gzip.compress(name.encode()))
    hadoop = folder / "hadoop-2.7.2"
    hadoop.mkdir()
    program = b"#!/bin/sh\necho Hadoop $HADOOP_VERSION\n"
    with tarfile.open(hadoop / "hadoop-2.7.2.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("hadoop-2.7.2/bin/hadoop")
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))


@pytest.fixture(scope="module")
def lab(
    podman: EngineHere, registry: RegistryHere, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Torchsmith]:
    folder = tmp_path_factory.mktemp("pai")
    internet = folder / "internet"
    internet.mkdir()
    # Today's mnist needs a newer torch, as the real one does.
    newer = {"mnist/main.py": "import torch\ntorch.of_tomorrow()\n"}
    commit = git_repository(internet / "pytorch/examples.git", PROGRAMS, newer)
    downloads(internet)
    with served([internet]) as address:
        changes = {
            'release = "1.0.1"': f'release = "{PUBLISHED_TORCH}"',
            'python = "3.5"': 'python = "3.11"',
            'platform = "linux-x86_64"\n': "",
            'system = "ubuntu-16.04"': 'system = "debian-12"',
            'cuda = "8.0"': 'cuda = "none"',
            '"torchvision==0.2.2.post3"': '"pillow"',
            "https://github.com": f"{address}/0",
            COMMIT: commit,
            "https://ossci-datasets.s3.amazonaws.com": f"{address}/0",
            "https://archive.apache.org/dist/hadoop/common": f"{address}/0",
            '"nvidia/cuda:8.0-cudnn6-devel-ubuntu16.04"': '"debian:12"',
            # What this Debian has no more, and what only takes time.
            **{
                f'  "{name}",\n': ""
                for name in (
                    *("automake", "build-essential", "libcupti-dev", "openjdk-8-jdk", "python"),
                    *("python-dev", "python-pip", "python-six", "python-yaml", "python3-dev"),
                    *("unzip", "wget", "lsof"),
                )
            },
            '"docker.io/USER"': f'"{registry.address}/alice"',
            '"USER/pai.run.pytorch"': f'"{registry.address}/alice/pai.run.pytorch"',
        }
        here = from_preset(folder, "openpai", changes, podman)
        yield here


def test_both_images_are_built_and_pushed(
    podman: EngineHere, registry: RegistryHere, lab: Torchsmith
) -> None:
    made = json.loads(lab("image", "build", "--json"))["images"]
    assert [image["name"] for image in made] == [BASE, "pai.run.pytorch:latest"]
    told = podman("run", "--rm", BASE, "sh", "-euc", "hadoop; echo $JAVA_HOME; ssh -V 2>&1")
    assert told.splitlines()[0] == "Hadoop 2.7.2"
    (pushed,) = json.loads(lab("image", "push", "recipe.toml", "--json"))["images"]
    assert pushed["name"] == f"{registry.address}/alice/pai.run.pytorch:latest"
    assert registry.digest("alice/pai.run.pytorch", "latest") == pushed["digest"]


def test_the_jobs_are_those_of_the_document_and_openpai_takes_them(
    registry: RegistryHere, lab: Torchsmith
) -> None:
    for version, engine in ((1, "openpai-v1"), (2, "openpai")):
        lab("job", "render", "recipe.toml", "--to", engine, "--output", engine)
        schema = json.loads((SCHEMAS / f"protocol-{version}.schema.json").read_text())
        files = sorted((lab.project / engine).iterdir())
        assert len(files) == 2
        for file in files:
            jsonschema.validate(yaml.safe_load(file.read_text()), schema)
    image = f"{registry.address}/alice/pai.run.pytorch"
    for name in ("mnist", "regression"):
        wanted = json.loads((GUIDE / f"openpai-{name}.json").read_text())
        (found,) = (lab.project / "openpai-v1").glob(f"*{name}*.json")
        assert json.loads(found.read_text()) == {**wanted, "image": image}
    with openpai_server() as server:
        lab.env = {**lab.env, "OPENPAI_SERVER": server.address, "OPENPAI_TOKEN": token_of("alice")}
        lab("job", "submit", "recipe.toml", "--to", "openpai", "--wait")
        assert sorted(server.jobs) == ["alice~pytorch-mnist", "alice~pytorch-regression"]


def learned(said: str) -> None:
    assert "accuracy 0.9" in said or "accuracy 1.0" in said, said
    assert " rounds" in said, said


def test_both_jobs_run_in_the_pushed_image_on_a_machine_without_it(
    second_podman: EngineHere, registry: RegistryHere, lab: Torchsmith
) -> None:
    there = Torchsmith(lab.project, {**lab.env, **second_podman.env}, lab.store)
    there("image", "pull", f"{registry.address}/alice/pai.run.pytorch:latest")
    learned(there("job", "submit", "recipe.toml", "--to", "podman", "--follow", *SMALL))
    assert second_podman.left() == []


def test_both_jobs_run_on_slurm_from_the_same_file(
    slurm: Cluster, published_torch: Path, lab: Torchsmith
) -> None:
    for name, text in PROGRAMS.items():
        path = lab.project / "examples" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    there = Torchsmith(lab.project, {**lab.env, **slurm.env}, lab.store)
    # No pyxis on these nodes: the torch that is installed there.
    own = ("--set", "image=", "--set", f"environment={published_torch}")
    learned(there("job", "submit", "recipe.toml", "--to", "slurm", "--follow", *own, *SMALL))
