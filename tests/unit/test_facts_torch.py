"""What torchsmith claims about PyTorch releases and the features they are built with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import pytest
from packaging.requirements import Requirement

from torchsmith.facts.files import shipped
from torchsmith.facts.models import Feature, Mode, Profile, Switch, TorchRange
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import published_archs, releases, wheel_cudas

pytestmark = pytest.mark.unit

RELEASES = (
    *("1.0.0", "1.0.1", "1.1.0", "1.2.0", "1.3.0", "1.3.1", "1.4.0", "1.5.0", "1.5.1", "1.6.0"),
    *("1.7.0", "1.7.1", "1.8.0", "1.8.1", "1.8.2", "1.9.0", "1.9.1", "1.10.0", "1.10.1", "1.10.2"),
    *(
        "1.11.0",
        "1.12.0",
        "1.12.1",
        "1.13.0",
        "1.13.1",
        "2.0.0",
        "2.0.1",
        "2.1.0",
        "2.1.1",
        "2.1.2",
    ),
    *("2.2.0", "2.2.1", "2.2.2", "2.3.0", "2.3.1", "2.4.0", "2.4.1", "2.5.0", "2.5.1", "2.6.0"),
    *("2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.12.1"),
    *("2.13.0", "2.14.0", "2.14.1", "2.15.0"),
)
LISTS = ("cuda", "cudnn", "cmake", "setuptools", "numpy", "cxx", "archs", "frontend")


class ForTorch(Protocol):
    """An entry that speaks of a range of torch releases."""

    @property
    def torch(self) -> str: ...


Entry = TypeVar("Entry", bound=ForTorch)


def matching(entries: Iterable[Entry], torch: str) -> list[Entry]:
    return [entry for entry in entries if torch in version_range(entry.torch)]


def the(entries: Iterable[Entry], torch: str) -> Entry:
    (entry,) = matching(entries, torch)
    return entry


def accepts(entries: Sequence[TorchRange], torch: str, version: str) -> bool:
    return version in version_range(the(entries, torch).value)


def feature(name: str) -> Feature:
    (found,) = (each for each in shipped().features.feature if each.name == name)
    return found


def environment(torch: str, modes: dict[str, Mode]) -> dict[str, str]:
    """What the switches of these features set, together."""
    result: dict[str, str] = {}
    for name, mode in modes.items():
        switch: Switch = the(feature(name).switch, torch)
        result |= getattr(switch, mode)
    return result


# ----------------------------------------------------------------------------- torch.toml


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("torch", RELEASES)
def test_exactly_one_entry_of_each_list_speaks_of_a_release(name: str, torch: str) -> None:
    assert len(matching(getattr(shipped().torch, name), torch)) == 1


@pytest.mark.parametrize("name", [*LISTS, "published", "trouble"])
def test_no_range_reaches_a_release_nobody_has_looked_at(name: str) -> None:
    looked_at = shipped().torch.looked_at
    assert not matching(getattr(shipped().torch, name), "2.99.0")
    reached = [item for item in RELEASES if matching(getattr(shipped().torch, name), item)]
    assert set(reached) <= set(looked_at)


def test_every_release_has_been_looked_at() -> None:
    known = [item.version for item in releases(shipped())]
    assert list(shipped().torch.looked_at) == known


def test_a_release_nobody_has_looked_at_is_published_for_nothing() -> None:
    assert published_archs(shipped(), "2.14.9", "13.0", "linux-x86_64") is None


def test_the_last_release_with_cuda_12_wheels_was_2_14() -> None:
    assert wheel_cudas(shipped(), "2.13.0", "linux-x86_64") == ("12.6", "12.9", "13.0", "13.2")
    assert wheel_cudas(shipped(), "2.14.1", "linux-x86_64") == ("12.6", "13.0", "13.2")
    assert wheel_cudas(shipped(), "2.15.0", "linux-x86_64") == ("13.0", "13.2")


def test_1_9_was_published_for_two_cudas() -> None:
    assert wheel_cudas(shipped(), "1.9.1", "linux-x86_64") == ("10.2", "11.1")


@pytest.mark.parametrize("torch", RELEASES)
def test_wheels_of_a_release_are_published_with_one_arch_list_for_a_cuda(torch: str) -> None:
    toolkits = [
        *("8.0", "9.0", "9.2", "10.0", "10.1", "10.2"),
        *(f"11.{minor}" for minor in range(9)),
        *(f"12.{minor}" for minor in range(10)),
        *(f"13.{minor}" for minor in range(5)),
    ]
    lists = matching(shipped().torch.published, torch)
    for platform in ("linux-x86_64", "linux-aarch64"):
        for toolkit in toolkits:
            found = [
                each
                for each in lists
                if each.platform == platform and toolkit in version_range(each.cuda)
            ]
            assert len(found) <= 1


def test_every_release_was_published_for_some_cuda() -> None:
    assert all(matching(shipped().torch.published, torch) for torch in RELEASES)


def test_published_arch_lists_hold_only_capabilities_the_release_knows() -> None:
    for torch in RELEASES:
        known = set(the(shipped().torch.archs, torch).known)
        for published in matching(shipped().torch.published, torch):
            archs = [text for text in published.archs.replace("+PTX", "").split(";") if text]
            assert set(archs) <= known, (torch, published.archs)
            assert archs == sorted(archs, key=release)


def test_wheels_are_published_for_toolkits_the_release_builds_with() -> None:
    for torch in RELEASES:
        toolkits = version_range(the(shipped().torch.cuda, torch).value)
        for published in matching(shipped().torch.published, torch):
            ends = published.cuda.split(":")
            assert all(end in toolkits for end in ends), (torch, published.cuda)


@pytest.mark.parametrize(
    ("torch", "cuda", "builds"),
    [
        ("1.1.0", "9.0", True),
        ("1.1.0", "10.0", True),
        ("1.1.0", "11.0", False),
        ("1.2.0", "8.0", False),
        ("1.6.0", "11.0", False),
        ("1.7.1", "11.0", True),
        ("1.8.0", "11.0", True),
        ("1.9.1", "11.1", True),
        ("1.9.1", "12.1", False),
        ("1.13.1", "12.1", False),
        ("2.0.1", "11.8", True),
        ("2.1.0", "12.1", True),
        ("2.3.1", "12.4", False),
        ("2.6.0", "12.4", True),
        ("2.6.0", "12.8", False),
        ("2.7.0", "12.8", True),
        ("2.8.0", "13.0", False),
        ("2.9.0", "13.0", True),
        ("2.9.0", "11.8", False),
        ("2.15.0", "12.4", False),
        ("2.15.0", "13.2", True),
    ],
)
def test_a_release_builds_with_the_toolkits_of_its_time(
    torch: str, cuda: str, builds: bool
) -> None:
    assert accepts(shipped().torch.cuda, torch, cuda) is builds


def test_cmake_4_is_for_2_7_and_newer() -> None:
    cmake = shipped().torch.cmake
    assert not accepts(cmake, "1.8.0", "4.0.0")
    assert not accepts(cmake, "2.6.0", "4.0.0")
    assert accepts(cmake, "2.6.0", "3.31.6")
    assert accepts(cmake, "2.7.0", "4.0.0")
    assert not accepts(cmake, "2.15.0", "3.26.0")


def test_numpy_2_is_for_2_3_and_newer() -> None:
    numpy = shipped().torch.numpy
    assert not accepts(numpy, "2.2.2", "2.0.0")
    assert accepts(numpy, "2.2.2", "1.26.4")
    assert accepts(numpy, "2.3.0", "2.0.0")


@pytest.mark.parametrize(
    ("torch", "standard"),
    [("1.4.0", 11), ("1.5.0", 14), ("1.13.1", 14), ("2.1.0", 17), ("2.11.0", 17), ("2.13.0", 20)],
)
def test_the_cxx_standard_moves_with_the_releases(torch: str, standard: int) -> None:
    assert the(shipped().torch.cxx, torch).standard == standard


def test_neither_the_cxx_standard_nor_the_oldest_gcc_ever_goes_back() -> None:
    entries = [the(shipped().torch.cxx, torch) for torch in RELEASES]
    for older, newer in pairwise(entries):
        assert older.standard <= newer.standard
        assert (version_range(older.gcc).low or ()) <= (version_range(newer.gcc).low or ())


@pytest.mark.parametrize(
    ("torch", "arch", "known"),
    [
        ("1.1.0", "7.2", True),
        ("1.5.0", "8.0", False),
        ("1.6.0", "8.0", True),
        ("1.8.0", "5.3", True),
        ("1.13.1", "9.0", False),
        ("2.0.1", "8.7", False),
        ("2.1.0", "8.7", True),
        ("2.2.0", "9.0a", True),
        ("2.6.0", "12.0", False),
        ("2.7.0", "12.0", True),
        ("2.9.0", "10.1", False),
        ("2.9.0", "11.0", True),
        ("2.14.0", "10.7", True),
    ],
)
def test_a_release_knows_the_gpus_of_its_time(torch: str, arch: str, known: bool) -> None:
    assert (arch in the(shipped().torch.archs, torch).known) is known


def test_build_requirements_are_requirements() -> None:
    for entry in shipped().torch.frontend:
        names = {Requirement(text).name for text in entry.requires}
        assert {"numpy", "pyyaml"} <= names
        assert len(names) == len(entry.requires)


def test_setup_py_is_gone_with_2_14() -> None:
    frontend = shipped().torch.frontend
    assert the(frontend, "1.8.0").command == "setup.py"
    assert the(frontend, "2.13.0").cmake_only
    newest = the(frontend, "2.15.0")
    assert newest.command == "build"
    assert not newest.cmake_only
    assert not any(Requirement(text).name == "setuptools" for text in newest.requires)


# -------------------------------------------------------------------------- features.toml


def test_no_two_features_have_the_same_name() -> None:
    names = [each.name for each in shipped().features.feature]
    assert len(names) == len(set(names))


def test_a_feature_has_exactly_one_switch_for_each_release_that_knows_it() -> None:
    for each in shipped().features.feature:
        for torch in RELEASES:
            expected = 1 if torch in version_range(each.torch) else 0
            assert len(matching(each.switch, torch)) == expected, (each.name, torch)


def test_defaults_are_modes_the_feature_has() -> None:
    for each in shipped().features.feature:
        assert set(each.default) == {"release", "minimal", "debug"}
        assert set(each.default.values()) <= set(each.modes), each.name


def test_what_a_feature_needs_exists() -> None:
    features = shipped().features.feature
    known = {each.name for each in features} | {"linux-x86_64", "linux-aarch64"}
    for each in features:
        assert set(each.needs) <= known - {each.name}


@pytest.mark.parametrize("profile", ["release", "minimal", "debug"])
def test_what_a_default_needs_is_on_by_default_too(profile: Profile) -> None:
    features = {each.name: each for each in shipped().features.feature}
    for each in features.values():
        if each.default[profile] == "off":
            continue
        for need in each.needs:
            if need in features:
                assert features[need].default[profile] != "off", each.name


def test_a_switch_sets_nothing_in_a_mode_its_feature_lacks() -> None:
    for each in shipped().features.feature:
        for switch in each.switch:
            for mode in {"on", "off", "system", "static"} - set(each.modes):
                assert getattr(switch, mode) == {}, each.name


def test_system_copies_name_their_debian_packages() -> None:
    for each in shipped().features.feature:
        assert ("system" in each.modes) == bool(each.apt), each.name


def test_features_that_amd_and_intel_gpus_need_are_off() -> None:
    for name in ("rocm", "miopen", "xpu"):
        assert set(feature(name).default.values()) == {"off"}


def test_minimal_leaves_out_what_tensors_and_training_on_one_machine_do_not_need() -> None:
    off = (
        *("distributed", "mkldnn", "xnnpack", "nnpack", "qnnpack", "pytorch_qnnpack", "fbgemm"),
        *("kineto", "itt", "tensorpipe", "gloo", "mpi", "numa", "magma", "nccl", "test"),
    )
    assert {feature(name).default["minimal"] for name in off} == {"off"}
    assert {feature(name).default["minimal"] for name in ("numpy", "openmp")} == {"on"}


def test_a_debug_build_has_the_features_of_a_release_build() -> None:
    for each in shipped().features.feature:
        assert each.default["debug"] == each.default["release"], each.name


OFF_IN_THE_VENDOR_DOCUMENT = ("test", "fbgemm", "miopen", "mkldnn", "nnpack", "qnnpack")
VENDOR_ENVIRONMENT = {
    "NO_TEST": "1",
    "NO_FBGEMM": "1",
    "NO_MIOPEN": "1",
    "NO_MKLDNN": "1",
    "NO_NNPACK": "1",
    "NO_QNNPACK": "1",
    "USE_NCCL": "1",
    "USE_SYSTEM_NCCL": "1",
}


def test_1_1_0_with_the_systems_nccl_gets_the_environment_vendors_document() -> None:
    modes: dict[str, Mode] = dict.fromkeys(OFF_IN_THE_VENDOR_DOCUMENT, "off")
    assert environment("1.1.0", modes | {"nccl": "system"}) == VENDOR_ENVIRONMENT


def test_the_release_defaults_of_1_1_0_add_nothing_to_that_environment() -> None:
    modes: dict[str, Mode] = {
        each.name: each.default["release"]
        for each in shipped().features.feature
        if "1.1.0" in version_range(each.torch) and "1.1.0" in version_range(each.default_in)
    }
    modes |= dict.fromkeys(OFF_IN_THE_VENDOR_DOCUMENT, "off")
    assert environment("1.1.0", modes | {"nccl": "system"}) == VENDOR_ENVIRONMENT


def test_1_1_0_says_that_leaving_nccl_out_takes_a_patch() -> None:
    assert "patch" in the(feature("nccl").switch, "1.1.0").note
    assert environment("1.2.0", {"nccl": "off"}) == {"USE_NCCL": "0"}


def test_1_8_0_links_cudnn_and_nccl_statically_when_asked() -> None:
    assert environment("1.8.0", {"cudnn": "static", "nccl": "static"}) == {
        "USE_STATIC_CUDNN": "1",
        "USE_STATIC_NCCL": "1",
    }


@pytest.mark.parametrize(
    ("torch", "variable"), [("1.0.1", "NO_CUDA"), ("1.1.0", "NO_CUDA"), ("1.2.0", "USE_CUDA")]
)
def test_cuda_is_turned_off_by_the_variable_of_the_day(torch: str, variable: str) -> None:
    assert list(environment(torch, {"cuda": "off"})) == [variable]


def test_only_releases_up_to_1_1_are_spoken_to_in_the_negative() -> None:
    for each in shipped().features.feature:
        for torch in RELEASES:
            for switch in matching(each.switch, torch):
                variables = {**switch.on, **switch.off, **switch.system, **switch.static}
                negative = any(variable.startswith("NO_") for variable in variables)
                assert not negative or release(torch) < (1, 2), (each.name, torch)
