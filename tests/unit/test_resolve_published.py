"""What PyTorch itself published is never refused, and what it did not publish for a Python is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchsmith.facts.conditions import Place
from torchsmith.facts.cuda import toolkits
from torchsmith.facts.files import Facts
from torchsmith.facts.models import Platform
from torchsmith.facts.ranges import python_release, version_range
from torchsmith.facts.torch import releases, wheel_pythons
from torchsmith.host.models import Host
from torchsmith.recipe.gpus import split_arch_list
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Refusal, Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.resolve.toolchain import default_system

pytestmark = pytest.mark.unit

FACTS = Facts()
BARE = Host(platform="linux-x86_64")
EVERY = [item.version for item in releases(FACTS)]
PYTHONS = sorted(
    {python for item in releases(FACTS) for python in item.pythons}, key=python_release
)


def published(torch: str) -> Iterator[tuple[str, Platform, list[str]]]:
    """CUDA, platform and arch list of every wheel of a release."""
    for entry in FACTS.torch.published:
        for toolkit in toolkits(FACTS):
            if torch in version_range(entry.torch) and toolkit.version in version_range(entry.cuda):
                yield toolkit.version, entry.platform, split_arch_list(entry.archs)


def outcome(torch: str, python: str, cuda: str, platform: str, gpus: list[str], use: str) -> object:
    place = Place(platform, bundled=("xnnpack", "gloo", "fbgemm", "mkldnn"))
    recipe = Recipe.model_validate(
        {
            "torch": {"release": torch, "use": use},
            "python": python,
            "cuda": cuda,
            "platform": platform,
            "gpus": gpus,
            "system": default_system(FACTS, "" if cuda == "none" else cuda, torch, place, python),
        }
    )
    return resolve(Variant("published", recipe), FACTS, BARE)


@pytest.mark.parametrize("torch", EVERY)
def test_every_published_wheel_can_be_built(torch: str) -> None:
    (pythons,) = (item.pythons for item in releases(FACTS) if item.version == torch)
    for python in pythons:
        made = outcome(torch, python, "none", "linux-x86_64", ["published"], "source")
        assert isinstance(made, Resolution), (torch, python, made)
        for cuda, platform, archs in published(torch):
            for gpus in (["published"], archs) if archs else ():
                made = outcome(torch, python, cuda, platform, gpus, "source")
                assert isinstance(made, Resolution), (torch, python, cuda, platform, made)
                assert made.cuda is not None
                assert {str(arch) for arch in made.cuda.archs} == set(archs)
                assert all(choice.reason and choice.value for choice in made.choices)


@pytest.mark.parametrize("torch", EVERY)
def test_every_published_wheel_can_be_taken_as_it_is(torch: str) -> None:
    (known,) = (item for item in releases(FACTS) if item.version == torch)
    for cuda, platform, _ in published(torch):
        for python in wheel_pythons(known, platform):
            made = outcome(torch, python, cuda, platform, ["published"], "wheel")
            assert isinstance(made, Resolution), (torch, cuda)


def test_a_python_a_release_was_not_published_for_is_refused() -> None:
    for item in releases(FACTS):
        for python in set(PYTHONS) - {*item.pythons, *item.experimental}:
            made = outcome(item.version, python, "none", "linux-x86_64", ["published"], "source")
            assert isinstance(made, Refusal), (item.version, python)
            assert [conflict.kind for conflict in made.conflicts] == ["python-torch"]


def test_cuda_11_8_wheels_were_published_up_to_2_7() -> None:
    assert "11.8" in {cuda for cuda, _, _ in published("2.7.1")}
    assert "11.8" not in {cuda for cuda, _, _ in published("2.8.0")}


def test_a_list_as_long_as_pytorch_s_own_is_compressed_as_pytorch_does() -> None:
    made = outcome("2.6.0", "3.11", "12.6", "linux-x86_64", ["published"], "source")
    assert isinstance(made, Resolution)
    assert made.cuda is not None
    assert made.cuda.nvcc_flags == ("-Xfatbin", "-compress-all")
    assert not any("2 GiB" in caution.message for caution in made.cautions)
