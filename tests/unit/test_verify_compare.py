"""A torch is held against what the recipe asked for, point by point."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torchsmith.facts.files import shipped
from torchsmith.facts.models import Mode
from torchsmith.host.models import Host, Libc, Python
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.verify.binary import Library
from torchsmith.verify.checks import Check
from torchsmith.verify.compare import compare, matching
from torchsmith.verify.probing import TorchFacts, read_document

pytestmark = pytest.mark.unit

HOST = Host(
    platform="linux-x86_64",
    system="debian-12",
    libc=Libc(kind="glibc", version="2.36"),
    pythons=(Python(version="3.11.7", path="/usr/bin/python3.11", headers=True),),
)
RECIPE = """
name = "t"
torch = "2.6.0"
python = ["3.10", "3.11"]
cuda = "12.6"
gpus = ["8.6", "9.0+PTX"]
system = "ubuntu-22.04"

[features]
nccl = "static"
mkldnn = "off"
mpi = "off"

[companions]
vision = true
"""
FLAGS = "-gencode;arch=compute_86,code=sm_86;-gencode;arch=compute_90,code=[sm_90,compute_90]"
GOOD = TorchFacts(
    version="2.6.0+cu126.sm86.sm90",
    cuda="12.6",
    config=f"PyTorch built with:\n  - NVCC architecture flags: {FLAGS}\n",
    features={"cuda": True, "nccl": True, "mkldnn": False, "mpi": False},
)


@pytest.fixture(scope="module")
def resolutions() -> list[Resolution]:
    recipe = parse_recipe(RECIPE, "recipe.toml", Path())
    found = [resolve(item, shipped(), HOST, recipe.files) for item in expand(recipe.recipe)]
    return [item for item in found if isinstance(item, Resolution)]


def judged(
    asked: Resolution,
    facts: TorchFacts,
    *libraries: Library,
    python: str = "3.11.7",
    installed: dict[str, str] | None = None,
) -> dict[str, Check]:
    found = compare(asked, facts, python, libraries, installed or {})
    return {check.name: check for check in found}


@pytest.fixture
def asked(resolutions: list[Resolution]) -> Resolution:
    found = matching(resolutions, GOOD.version, "3.11.7")
    assert found is not None
    return found


def test_the_variant_of_the_same_python_is_the_one_compared_with(
    resolutions: list[Resolution],
) -> None:
    assert len(resolutions) == 2
    for python in ("3.10", "3.11"):
        found = matching(resolutions, GOOD.version, f"{python}.4")
        assert found is not None
        assert found.python == python
    assert matching([], "2.6.0", "3.11.7") is None


def test_the_torch_asked_for_passes(asked: Resolution) -> None:
    found = judged(asked, GOOD, Library("torch/lib/libtorch_cuda.so", needed=("libcudart.so.12",)))
    assert [check for check in found.values() if check.status == "fail"] == []
    for name in ("version", "python", "cuda", "architectures", "feature mkldnn"):
        assert found[name].status == "pass"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"version": "2.6.0"}, "version"),
        ({"cuda": "12.4"}, "cuda"),
        ({"cuda": None}, "cuda"),
        ({"archs": ("sm_86", "sm_90")}, "architectures"),
        ({"archs": ()}, "architectures"),
        ({"features": {"nccl": False}}, "feature nccl"),
        ({"features": {"mkldnn": True}}, "feature mkldnn"),
    ],
)
def test_a_difference_fails_its_own_check(
    asked: Resolution, change: dict[str, object], name: str
) -> None:
    found = judged(asked, msgspec.structs.replace(GOOD, **change))
    assert [check.name for check in found.values() if check.status == "fail"] == [name]


def test_another_python_is_caught(asked: Resolution) -> None:
    assert judged(asked, GOOD, python="3.1.1")["python"].status == "fail"


def test_more_architectures_than_asked_for_are_a_warning(asked: Resolution) -> None:
    more = msgspec.structs.replace(GOOD, archs=("sm_75", "sm_86", "sm_90", "compute_90"))
    assert judged(asked, more)["architectures"].status == "warn"


def test_a_static_library_must_not_be_needed(asked: Resolution) -> None:
    dynamic = Library("torch/lib/libtorch_cuda.so", needed=("libnccl.so.2",))
    assert judged(asked, GOOD, dynamic)["linking of nccl"].status == "fail"
    static = Library("torch/lib/libtorch_cuda.so", needed=("libc.so.6",))
    assert judged(asked, GOOD, static)["linking of nccl"].status == "pass"


def test_a_system_library_should_be_needed(asked: Resolution) -> None:
    mode: Mode = "system"
    features = tuple((name, mode if name == "nccl" else old) for name, old in asked.features)
    system = msgspec.structs.replace(asked, features=features)
    dynamic = Library("torch/lib/libtorch_cuda.so", needed=("libnccl.so.2",))
    assert judged(system, GOOD, dynamic)["linking of nccl"].status == "pass"
    assert judged(system, GOOD, Library("x.so"))["linking of nccl"].status == "warn"


def test_a_default_nobody_asked_for_is_only_a_warning(asked: Resolution) -> None:
    without = msgspec.structs.replace(GOOD, features={"nnpack": False})
    assert judged(asked, without)["feature nnpack"].status == "warn"


def test_a_decided_feature_that_cannot_be_seen_is_said_to_be_so(asked: Resolution) -> None:
    blind = msgspec.structs.replace(GOOD, features={})
    assert judged(asked, blind)["feature mpi"].status == "info"


def test_a_companion_of_another_release_is_caught(asked: Resolution) -> None:
    assert judged(asked, GOOD)["torchvision"].status == "absent"
    right = judged(asked, GOOD, installed={"torchvision": "0.21.0+cu126"})
    assert right["torchvision"].status == "pass"
    wrong = judged(asked, GOOD, installed={"torchvision": "0.20.1"})
    assert wrong["torchvision"].status == "fail"


@pytest.mark.parametrize("out", ["", "noise", "\n-----BEGIN TORCHSMITH PROBE-----\n{\n"])
def test_a_probe_that_dies_is_a_failed_check(out: str) -> None:
    found = read_document(out, "Killed", -9)
    assert [(check.name, check.status) for check in found.checks] == [("probe", "fail")]
    assert "SIGKILL" in found.checks[0].found
