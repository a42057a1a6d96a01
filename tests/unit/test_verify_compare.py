"""A torch is held against what the recipe asked for, point by point."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from torchsmith.checks import Check
from torchsmith.facts.files import shipped
from torchsmith.facts.models import Mode
from torchsmith.host.models import Host, Libc, Python
from torchsmith.plan.expects import Expects, expected, expected_companion
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.verify.binary import Library
from torchsmith.verify.compare import compare, compare_companion, matching
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
    asked: Expects,
    facts: TorchFacts,
    *libraries: Library,
    python: str = "3.11.7",
    installed: dict[str, str] | None = None,
    tags: tuple[str, ...] = (),
) -> dict[str, Check]:
    found = compare(asked, facts, python, libraries, installed or {}, tags)
    return {check.name: check for check in found}


@pytest.fixture(scope="module")
def variants(resolutions: list[Resolution]) -> list[Expects]:
    return [expected(item) for item in resolutions]


@pytest.fixture
def asked(variants: list[Expects]) -> Expects:
    found = matching(variants, GOOD.version, "3.11.7")
    assert found is not None
    return found


def test_the_variant_of_the_same_python_is_the_one_compared_with(
    variants: list[Expects],
) -> None:
    assert len(variants) == 2
    for python in ("3.10", "3.11"):
        found = matching(variants, GOOD.version, f"{python}.4")
        assert found is not None
        assert found.python == python
    assert matching([], "2.6.0", "3.11.7") is None


def test_the_torch_asked_for_passes(asked: Expects) -> None:
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
    asked: Expects, change: dict[str, object], name: str
) -> None:
    found = judged(asked, msgspec.structs.replace(GOOD, **change))
    assert [check.name for check in found.values() if check.status == "fail"] == [name]


def test_another_python_is_caught(asked: Expects) -> None:
    assert judged(asked, GOOD, python="3.1.1")["python"].status == "fail"


def test_more_architectures_than_asked_for_are_a_warning(asked: Expects) -> None:
    more = msgspec.structs.replace(GOOD, archs=("sm_75", "sm_86", "sm_90", "compute_90"))
    assert judged(asked, more)["architectures"].status == "warn"


def test_a_static_library_must_not_be_needed(asked: Expects) -> None:
    dynamic = Library("torch/lib/libtorch_cuda.so", needed=("libnccl.so.2",))
    assert judged(asked, GOOD, dynamic)["linking of nccl"].status == "fail"
    static = Library("torch/lib/libtorch_cuda.so", needed=("libc.so.6",))
    assert judged(asked, GOOD, static)["linking of nccl"].status == "pass"


def test_a_system_library_should_be_needed(resolutions: list[Resolution]) -> None:
    mode: Mode = "system"
    one = resolutions[1]
    features = tuple((name, mode if name == "nccl" else old) for name, old in one.features)
    system = expected(msgspec.structs.replace(one, features=features))
    assert system.system_libraries
    dynamic = Library("torch/lib/libtorch_cuda.so", needed=("libnccl.so.2",))
    assert judged(system, GOOD, dynamic)["linking of nccl"].status == "pass"
    assert judged(system, GOOD, Library("x.so"))["linking of nccl"].status == "fail"
    undecided = msgspec.structs.replace(system, decided=())
    assert judged(undecided, GOOD, Library("x.so"))["linking of nccl"].status == "warn"


def test_a_default_nobody_asked_for_is_only_a_warning(asked: Expects) -> None:
    without = msgspec.structs.replace(GOOD, features={"nnpack": False})
    assert judged(asked, without)["feature nnpack"].status == "warn"


def test_a_decided_feature_that_cannot_be_seen_is_said_to_be_so(asked: Expects) -> None:
    blind = msgspec.structs.replace(GOOD, features={})
    assert judged(asked, blind)["feature mpi"].status == "info"


def test_a_companion_of_another_release_is_caught(asked: Expects) -> None:
    assert judged(asked, GOOD)["torchvision"].status == "absent"
    right = judged(asked, GOOD, installed={"torchvision": "0.21.0+cu126"})
    assert right["torchvision"].status == "pass"
    wrong = judged(asked, GOOD, installed={"torchvision": "0.20.1"})
    assert wrong["torchvision"].status == "fail"


@pytest.mark.parametrize(
    ("tag", "status"),
    [
        ("cp311-cp311-linux_x86_64", "pass"),
        ("cp311-cp311-manylinux_2_28_x86_64", "pass"),
        ("cp310-cp310-linux_x86_64", "fail"),
        ("cp311-cp311-linux_aarch64", "fail"),
        ("cp311-cp311-manylinux_2_28_aarch64", "fail"),
    ],
)
def test_a_wheel_has_the_tag_asked_for(asked: Expects, tag: str, status: str) -> None:
    assert judged(asked, GOOD, tags=(tag,))["tag asked for"].status == status


def test_the_cuda_runtime_is_shared_unless_asked_otherwise(resolutions: list[Resolution]) -> None:
    shared = Library("torch/lib/libc10_cuda.so", needed=("libcudart.so.12",))
    packed = Library("torch/lib/libc10_cuda.so", needed=("libc.so.6",))
    asked = expected(resolutions[1])
    assert judged(asked, GOOD, shared)["linking of cuda runtime"].status == "pass"
    assert judged(asked, GOOD, packed)["linking of cuda runtime"].status == "warn"
    decided = msgspec.structs.replace(asked, decided=("static_cuda",))
    assert judged(decided, GOOD, packed)["linking of cuda runtime"].status == "fail"
    mode: Mode = "on"
    features = (*resolutions[1].features, ("static_cuda", mode))
    static = expected(msgspec.structs.replace(resolutions[1], features=features))
    assert judged(static, GOOD, shared)["linking of cuda runtime"].status == "fail"
    assert judged(static, GOOD, packed)["linking of cuda runtime"].status == "pass"


def test_a_companion_is_held_against_what_is_asked_of_it(resolutions: list[Resolution]) -> None:
    (vision,) = resolutions[1].companions
    asked = msgspec.structs.replace(
        expected_companion(resolutions[1], vision), decodes=("png", "jpeg")
    )
    tried = [
        Check("torchvision", "decode png", "pass"),
        Check("torchvision", "decode jpeg", "absent", detail="not compiled with libjpeg"),
    ]
    found = {
        check.name: check
        for check in compare_companion(asked, "3.11.7", {"torchvision": "0.21.0+cu126"}, tried)
    }
    assert found["torchvision"].status == "pass"
    assert found["reads png"].status == "pass"
    # A format that need not be there may be absent; one that was asked for may not.
    assert found["reads jpeg"].status == "fail"
    assert "libjpeg" in found["reads jpeg"].found
    untried = compare_companion(asked, "3.11.7", {}, [])
    assert {check.name for check in untried if check.status == "fail"} == {
        "torchvision",
        "reads png",
        "reads jpeg",
    }


@pytest.mark.parametrize("out", ["", "noise", "\n-----BEGIN TORCHSMITH PROBE-----\n{\n"])
def test_a_probe_that_dies_is_a_failed_check(out: str) -> None:
    found = read_document(out, "Killed", -9)
    assert [(check.name, check.status) for check in found.checks] == [("probe", "fail")]
    assert "SIGKILL" in found.checks[0].found
