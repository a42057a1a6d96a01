"""What cuda.toml and boards.toml say of toolkits, architectures, compilers, cuDNN and boards."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from torchsmith.facts.cuda import (
    find_toolkit,
    has_image,
    host_compiler,
    image_end,
    repositories,
    repository_packages,
    toolkits,
)
from torchsmith.facts.files import Facts
from torchsmith.facts.models import Board
from torchsmith.facts.ranges import release, version_range

pytestmark = pytest.mark.unit

FACTS = Facts()
TOOLKITS = [toolkit.version for toolkit in FACTS.cuda.toolkit]
ARCHS = {arch.arch: version_range(arch.cuda) for arch in FACTS.cuda.arch}
BOARDS = {board.name: board for board in FACTS.boards.board}


def accepts(cuda: str, compiler: str, version: str) -> bool:
    """Whether the one rule for this toolkit lets this compiler through."""
    (rule,) = (
        rule
        for rule in FACTS.cuda.host_compiler
        if rule.compiler == compiler and cuda in version_range(rule.cuda)
    )
    return version in version_range(f":{rule.newest}")


# ------------------------------------------------------------------------------ toolkits


def test_the_toolkits_run_from_8_0_to_13_4_in_order_and_without_repetition() -> None:
    assert TOOLKITS[0] == "8.0"
    assert TOOLKITS[-1] == "13.4"
    assert all(release(low) < release(high) for low, high in pairwise(TOOLKITS))


def test_there_was_no_cuda_12_7() -> None:
    assert "12.7" not in TOOLKITS


def test_the_builds_of_a_toolkit_belong_to_it_and_are_in_order() -> None:
    for toolkit in FACTS.cuda.toolkit:
        assert toolkit.builds, toolkit.version
        assert all(build in version_range(toolkit.version) for build in toolkit.builds)
        assert all(release(low) < release(high) for low, high in pairwise(toolkit.builds))


def test_conda_s_11_0_221_is_a_build_of_11_0() -> None:
    (toolkit,) = (item for item in FACTS.cuda.toolkit if "11.0.221" in item.builds)
    assert toolkit.version == "11.0"


def test_newer_toolkits_never_need_older_drivers() -> None:
    drivers = [release(toolkit.driver) for toolkit in FACTS.cuda.toolkit]
    assert drivers == sorted(drivers)


@pytest.mark.parametrize(
    ("cuda", "driver", "compat"),
    [
        ("8.0", "367.48", None),
        ("9.0", "384.81", None),
        ("10.2", "440.33", None),
        ("11.0", "450.51.05", "450.80.02"),
        ("11.1", "455.23", "450.80.02"),
        ("11.8", "520.61.05", "450.80.02"),
        ("12.4", "550.54.14", "525.60.13"),
        ("13.0", "580.65.06", "580.65.06"),
        ("13.4", "615", "580.65.06"),
    ],
)
def test_the_driver_of_a_toolkit_is_that_of_the_release_notes(
    cuda: str, driver: str, compat: str | None
) -> None:
    (toolkit,) = (item for item in FACTS.cuda.toolkit if item.version == cuda)
    assert (toolkit.driver, toolkit.driver_compat) == (driver, compat)


def test_minor_version_compatibility_is_a_matter_of_the_major_and_begins_with_11() -> None:
    compat: dict[int, set[str | None]] = {}
    for toolkit in FACTS.cuda.toolkit:
        compat.setdefault(release(toolkit.version)[0], set()).add(toolkit.driver_compat)
    assert compat.pop(8) == compat.pop(9) == compat.pop(10) == {None}
    assert compat == {11: {"450.80.02"}, 12: {"525.60.13"}, 13: {"580.65.06"}}


def test_only_the_wheels_of_cuda_13_hold_nvcc_itself() -> None:
    wheels = {toolkit.version for toolkit in FACTS.cuda.toolkit if toolkit.wheels}
    assert wheels == {"13.0", "13.1", "13.2", "13.3", "13.4"}


def test_an_image_tag_belongs_to_its_toolkit() -> None:
    for toolkit in FACTS.cuda.toolkit:
        assert toolkit.images, toolkit.version
        assert toolkit.image in version_range(toolkit.version)


# ------------------------------------------------------------------------- architectures


def test_every_architecture_is_named_once() -> None:
    assert len(ARCHS) == len(FACTS.cuda.arch)


@pytest.mark.parametrize(
    ("arch", "first", "last"),
    [
        ("3.0", "8.0", "10.2"),
        ("3.5", "8.0", "11.8"),
        ("3.7", "8.0", "11.8"),
        ("5.0", "8.0", "12.9"),
        ("5.3", "8.0", "12.9"),
        ("6.2", "8.0", "12.9"),
        ("7.0", "9.0", "12.9"),
        ("7.2", "9.1", "12.9"),
        ("7.5", "10.0", "13.4"),
        ("8.0", "11.0", "13.4"),
        ("8.6", "11.1", "13.4"),
        ("8.7", "11.4", "13.4"),
        ("8.9", "11.8", "13.4"),
        ("9.0", "11.8", "13.4"),
        ("9.0a", "12.0", "13.4"),
        ("10.0", "12.8", "13.4"),
        ("10.0f", "12.9", "13.4"),
        ("10.1", "12.8", "12.9"),
        ("10.3", "12.9", "13.4"),
        ("11.0", "13.0", "13.4"),
        ("12.0", "12.8", "13.4"),
        ("12.1", "12.9", "13.4"),
    ],
)
def test_an_architecture_compiles_with_the_toolkits_from_first_to_last(
    arch: str, first: str, last: str
) -> None:
    compiling = [cuda for cuda in TOOLKITS if cuda in ARCHS[arch]]
    assert (compiling[0], compiling[-1]) == (first, last)


def test_thor_is_10_1_or_11_0_but_never_both() -> None:
    for cuda in TOOLKITS:
        assert not (cuda in ARCHS["10.1"] and cuda in ARCHS["11.0"])


def test_cuda_13_begins_at_turing() -> None:
    compiling = {arch for arch, cuda in ARCHS.items() if "13.0" in cuda}
    assert min(compiling, key=lambda arch: release(arch.rstrip("af"))) == "7.5"


def test_a_variant_comes_with_its_plain_architecture_or_later() -> None:
    for arch in ARCHS:
        for cuda in TOOLKITS:
            if cuda in ARCHS[arch]:
                assert cuda in ARCHS[arch.rstrip("af")], (arch, cuda)


# ------------------------------------------------------------------------ host compilers


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_toolkit_has_exactly_one_rule_for_a_host_compiler(compiler: str) -> None:
    for cuda in TOOLKITS:
        rules = [
            rule
            for rule in FACTS.cuda.host_compiler
            if rule.compiler == compiler and cuda in version_range(rule.cuda)
        ]
        assert len(rules) == 1, cuda


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_newer_toolkits_never_accept_less(compiler: str) -> None:
    rules = [rule for rule in FACTS.cuda.host_compiler if rule.compiler == compiler]
    # 11 means every 11.x, so more than 11.1.
    newest = [(*release(rule.newest), 99) for rule in rules]
    assert newest == sorted(newest)


@pytest.mark.parametrize(
    ("cuda", "version", "accepted"),
    [
        ("8.0", "5.4.0", True),
        ("8.0", "6.1", False),
        ("9.0", "6.4", True),
        ("9.0", "7.5", False),
        ("10.0", "7.5.0", True),
        ("10.2", "8.4", True),
        ("10.2", "9.4", False),
        ("11.0", "9.4.0", True),
        ("11.0", "10.2", False),
        ("11.0.221", "10.2", False),
        ("11.1", "10.5.0", True),
        ("11.3", "11.1", False),
        ("11.5", "11.4.0", False),
        ("11.8", "11.4.0", True),
        ("11.8", "12.1", False),
        ("12.2", "12.3.0", True),
        ("12.2", "13.1", False),
        ("12.4", "13.2.0", True),
        ("12.6", "14.1", False),
        ("12.9", "14.2.0", True),
        ("13.0", "15.2", True),
        ("13.3", "16.1", False),
        ("13.4", "16.1", True),
        ("13.4", "17.1", False),
    ],
)
def test_a_gcc_is_accepted_or_refused(cuda: str, version: str, accepted: bool) -> None:
    assert accepts(cuda, "gcc", version) is accepted


@pytest.mark.parametrize(
    ("cuda", "version", "accepted"),
    [
        ("9.0", "3.9.1", True),
        ("9.0", "4.0", False),
        ("11.8", "14.0.6", True),
        ("11.8", "15.0", False),
        ("12.3", "17.0", False),
        ("12.4", "17.0", True),
        ("13.4", "22.1", True),
    ],
)
def test_a_clang_is_accepted_or_refused(cuda: str, version: str, accepted: bool) -> None:
    assert accepts(cuda, "clang", version) is accepted


# --------------------------------------------------------------------------------- cuDNN


def pairs(cudnn: str, cuda: str) -> bool:
    return any(
        cudnn in version_range(line.cudnn) and cuda in version_range(line.cuda)
        for line in FACTS.cuda.cudnn
    )


@pytest.mark.parametrize(
    ("cudnn", "cuda", "together"),
    [
        ("8.0.5", "11.0", True),
        ("8.0.5.39", "11.0.221", True),
        ("8.0.3", "11.1", False),
        ("7.6.5", "10.2", True),
        ("7.6.5", "11.0", False),
        ("7.1.5", "9.0", True),
        ("8.9.7", "12.2", True),
        ("9.10.2", "11.8", True),
        ("9.11.0", "11.8", False),
        ("9.11.0", "13.0", False),
        ("9.12.0", "13.0", True),
        ("9.27.0.42", "13.4", True),
    ],
)
def test_a_cudnn_goes_with_a_cuda_or_not(cudnn: str, cuda: str, together: bool) -> None:
    assert pairs(cudnn, cuda) is together


def test_every_toolkit_has_a_cudnn() -> None:
    lines = [version_range(line.cuda) for line in FACTS.cuda.cudnn]
    assert all(any(cuda in line for line in lines) for cuda in TOOLKITS)


def test_no_cudnn_is_in_two_lines() -> None:
    for line in FACTS.cuda.cudnn:
        first = line.cudnn.partition(":")[0]
        assert sum(first in version_range(other.cudnn) for other in FACTS.cuda.cudnn) == 1


# -------------------------------------------------------------------------------- boards


def test_the_architecture_of_a_board_is_known() -> None:
    assert all(board.arch in ARCHS for board in BOARDS.values())


@pytest.mark.parametrize("board", FACTS.boards.board, ids=lambda board: board.name)
def test_every_jetpack_of_a_board_compiles_for_it_and_brings_a_fitting_cudnn(board: Board) -> None:
    for jetpack in board.jetpack:
        assert jetpack.cuda in TOOLKITS
        assert jetpack.cuda in ARCHS[board.arch]
        assert pairs(jetpack.cudnn, jetpack.cuda)


def test_a_jetpack_is_the_same_on_every_board() -> None:
    seen: dict[str, tuple[str, str, str, str]] = {}
    for board in BOARDS.values():
        for jetpack in board.jetpack:
            holds = (jetpack.system, jetpack.cuda, jetpack.cudnn, jetpack.python)
            assert seen.setdefault(jetpack.version, holds) == holds


def test_a_tx2_has_512_threads_no_nccl_and_no_magma() -> None:
    board = BOARDS["jetson-tx2"]
    assert board.arch == "6.2"
    assert board.max_threads_per_block == 512
    assert {lack.feature for lack in board.lacks} == {"nccl", "magma"}
    assert all(lack.reason and lack.instead for lack in board.lacks)
    assert board.env == {
        "CUDNN_INCLUDE_DIR": "/usr/include",
        "CUDNN_LIB_DIR": "/usr/lib/aarch64-linux-gnu",
    }


def test_jetpack_3_3_on_a_tx2_is_ubuntu_16_04_with_cuda_9_0_and_python_3_5() -> None:
    jetpack = BOARDS["jetson-tx2"].jetpack[0]
    assert jetpack.version == "3.3"
    assert jetpack.system == "ubuntu-16.04"
    assert (jetpack.cuda, jetpack.cudnn, jetpack.python) == ("9.0", "7.1.5", "3.5")


def test_only_boards_with_half_the_registers_limit_their_blocks() -> None:
    limited = {board.arch for board in BOARDS.values() if board.max_threads_per_block}
    assert limited == {"5.3", "6.2"}
    for board in BOARDS.values():
        assert (board.max_threads_per_block == 512) == (board.arch in limited)


def test_boards_that_take_server_packages_lack_nothing() -> None:
    assert not BOARDS["jetson-agx-thor"].lacks
    assert not BOARDS["dgx-spark"].lacks


def test_docker_hub_has_no_image_of_cuda_8_to_10_and_says_since_when() -> None:
    for toolkit in toolkits(FACTS):
        end = image_end(FACTS, toolkit.version)
        assert (end is not None and end.gone) == (release(toolkit.version) < (11,))
        assert end is None or re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", end.since)
    assert not has_image(FACTS, "9.0", "ubuntu-16.04")
    assert has_image(FACTS, "12.6", "ubuntu-22.04")
    assert not has_image(FACTS, "12.6", "debian-12")


@pytest.mark.parametrize("version", TOOLKITS)
def test_every_deleted_image_for_x86_can_be_made_of_packages_but_one(version: str) -> None:
    toolkit = find_toolkit(FACTS, version)
    assert toolkit is not None
    assert repository_packages(FACTS, version) is not None
    for name in toolkit.images:
        system = name.replace("ubuntu", "ubuntu-")
        if has_image(FACTS, version, system) or system == "ubuntu-14.04":
            continue
        # 9.2 for Ubuntu 18.04 lay in a repository whose key was never renewed.
        packaged = repositories(FACTS, version, system, "linux-x86_64")
        assert bool(packaged) == ((version, system) != ("9.2", "ubuntu-18.04"))


def test_a_repository_names_its_key_by_the_end_of_its_fingerprint() -> None:
    systems = {item.name for item in FACTS.systems.system}
    for item in FACTS.cuda.repository:
        assert item.system in systems
        assert item.url.startswith("https://developer.download.nvidia.com/")
        assert item.url.endswith("/")
        assert item.fingerprint.lower().endswith(item.key.removesuffix(".pub"))


def test_a_repository_of_libraries_alone_brings_no_toolkit() -> None:
    for item in FACTS.cuda.repository:
        for toolkit in toolkits(FACTS):
            found = repositories(FACTS, toolkit.version, item.system, item.platform)
            assert not found or any(one.holds == "toolkit" for one in found)


def test_debian_packages_cuda_11_8_and_12_4_and_a_gcc_that_goes_with_it() -> None:
    assert [(item.system, item.cuda) for item in FACTS.cuda.debian] == [
        ("debian-12", "11.8"),
        ("debian-13", "12.4"),
    ]
    for item in FACTS.cuda.debian:
        (system,) = (one for one in FACTS.systems.system if one.name == item.system)
        limit = host_compiler(FACTS, item.cuda, "gcc")
        assert limit is not None
        assert limit.newest in system.gccs
