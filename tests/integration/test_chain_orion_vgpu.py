"""The document behind `orion-vgpu`: an image whose CUDA a vendor's client replaces, and its job.

An extension that calls CUDA stands for torch, a published torch runs the job over Gloo, and the
client brings a CUDA that is not NVIDIA's. The examples it clones are served by this machine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.containers import EngineHere, served
from tests.integration.test_finish_wheel import compile_library
from tests.lab import Torchsmith, from_preset, git_repository

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.usefixtures("rendering_tools")]

# PyPI has NVIDIA's runtime: it is linked to, and proven with.
SETUP = """
import os, sysconfig
from setuptools import Extension, setup
cuda = os.path.join(sysconfig.get_path("purelib"), "nvidia/cu13")
setup(
    name="near", version="1.0", packages=["near"], package_dir={"near": "."},
    install_requires=["nvidia-cuda-runtime==13.0.*", "pillow"],
    ext_modules=[Extension(
        "near._near", ["near.c"], extra_objects=[cuda + "/lib/libcudart.so.13"],
    )],
)
"""
SOURCE = """
#include <Python.h>
int cudaRuntimeGetVersion(int*);
static PyObject* runtime(PyObject* self, PyObject* none) {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return PyLong_FromLong(version);
}
static PyMethodDef methods[] = {{"runtime", runtime, METH_NOARGS, ""}, {0}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_near", "", -1, methods};
PyMODINIT_FUNC PyInit__near(void) { return PyModule_Create(&definition); }
"""
# The machine's own CUDA first, as torch does it; else what pip brought.
MODULE = """
try:
    from near._near import runtime
except ImportError:
    import ctypes, os, nvidia
    places = [os.path.join(place, "cu13/lib/libcudart.so.13") for place in nvidia.__path__]
    ctypes.CDLL(next(filter(os.path.exists, places)), ctypes.RTLD_GLOBAL)
    from near._near import runtime
"""
CLIENT = """#!/bin/sh
set -eu
test "$1" = -q
sed '1,/^ARCHIVE$/d' "$0" | base64 -d > /usr/local/lib/libcudart.so.13
ldconfig
exit 0
ARCHIVE
"""
VENDORS = 4242
# As PyTorch's ImageNet example is called: a process for each GPU, here for each of two.
TRAIN = """
import argparse, os, near, torch
import torch.distributed as dist, torch.multiprocessing as mp
from PIL import Image

def train(rank, given):
    dist.init_process_group(given.dist_backend, init_method=given.dist_url, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    files = [os.path.join(root, name) for root, _, names in os.walk(given.data + "/train")
             for name in sorted(names)]
    for path in files[rank::2]:
        with Image.open(path) as image:
            pixel = torch.tensor(image.resize((1, 1)).getpixel((0, 0)), dtype=torch.float32) / 255
        model(pixel).sum().backward()
    total = torch.tensor([float(len(files[rank::2]))])
    dist.all_reduce(total)
    shm = os.statvfs("/dev/shm")
    if rank == 0:
        print("pictures", int(total.item()), "of", given.arch, "over", given.dist_backend,
              "shm", shm.f_frsize * shm.f_blocks >> 30, "cuda", near.runtime(), flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("data")
    words.add_argument("--multiprocessing-distributed", action="store_true")
    for name in ("arch", "epochs", "batch-size", "dist-url", "dist-backend", "world-size", "rank"):
        words.add_argument("--" + name)
    mp.spawn(train, (words.parse_args(),), nprocs=2)
"""


def vendors_client(folder: Path) -> None:
    """An installer with a CUDA runtime of the vendor's in it."""
    code = f"int cudaRuntimeGetVersion(int* v) {{ *v = {VENDORS}; return 0; }}"
    library = compile_library(folder / "libcudart.so.13", code, "-Wl,-soname,libcudart.so.13")
    packed = subprocess.run(["base64", library], capture_output=True, text=True, check=True).stdout
    library.unlink()
    (folder / "install-client-9.0").write_text(CLIENT + packed)


@pytest.fixture(scope="module")
def lab(podman: EngineHere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Torchsmith]:
    folder = tmp_path_factory.mktemp("orion")
    commit = git_repository(folder / "internet/pytorch/examples.git", {"imagenet/main.py": TRAIN})
    with served([folder / "internet"]) as address:
        changes = {
            'torch = "1.1.0"': f'torch = {{ release = "{PUBLISHED_TORCH}", use = "wheel" }}',
            'python = "3.5"': 'python = "3.11"',
            'platform = "linux-x86_64"\n': "",
            'system = "ubuntu-16.04"': 'system = "debian-12"',
            'gpus = "3.5;6.0;6.1;7.0+PTX"\n': "",
            # Features, CUDA and NCCL of the torch that is compiled.
            '[cuda]\nversion = "9.0"\n': "",
            'nccl = "2.4"\n': "",
            'nccl = "system"\nstatic_cuda = "off"\n': "",
            'test = "off"\nfbgemm = "off"\nmiopen = "off"\n': "",
            'mkldnn = "off"\nnnpack = "off"\nqnnpack = "off"\n': "",
            'apt = ["libjpeg-dev", "libomp-dev", "libopenmpi-dev", "zlib1g-dev"]\n': "",
            'pip = ["pillow<8"]': 'pip = ["nvidia-cuda-runtime==13.0.*"]',
            'vision = "match"': 'extension = [{ name = "near", folder = "near", '
            'check = "import near; assert near.runtime() >= 13000" }]',
            "https://github.com": f"{address}/0",
            "1de2ff9338bacaaffa123d03ce53d7522d5dcc2e": commit,
            # No GPU: the processes meet over Gloo.
            "remote_gpus = true\n": "",
            'backend = "nccl"': 'backend = "gloo"',
            "--dist-backend nccl": "--dist-backend gloo",
        }
        here = from_preset(folder, "orion-vgpu", changes, podman)
        for name, text in (("setup.py", SETUP), ("near.c", SOURCE), ("__init__.py", MODULE)):
            (here.project / "near" / name).write_text(text)
        vendors_client(here.project)
        yield here


def test_cuda_is_linked_dynamically_and_the_client_replaces_it(
    podman: EngineHere, lab: Torchsmith
) -> None:
    (made, *_) = json.loads(lab("image", "build", "--json"))["images"]
    assert made["name"] == "orion-pytorch:1.1.0-py3.5"
    (report,) = lab.store.glob("work/*/dist/**/near-*.whl.verify.json")
    checks = {item["name"]: item for item in json.loads(report.read_text())["checks"]}
    assert "libcudart.so.13" in checks["CUDA libraries"]["found"]
    # NVIDIA's where it was built and proven; the vendor's in the image, beneath the same wheel.
    ask = ("python", "-c", "import near; print(near.runtime())")
    assert lab("run", made["name"], "--", *ask).split() == [str(VENDORS)]


def test_the_job_finds_program_and_data_in_the_image_and_two_processes_train(
    podman: EngineHere, lab: Torchsmith
) -> None:
    small = ("role.main.gpus=0", "role.main.cpus=1", "role.main.memory_mb=12000")
    changes = [word for change in small for word in ("--set", change)]
    said = lab("job", "submit", "recipe.toml", "--to", "podman", "--follow", *changes)
    assert f"pictures 16 of resnet50 over gloo shm 8 cuda {VENDORS}" in said
    assert podman.left() == []
