"""The doctor's lines: what a machine has against what a plan needs there."""

from __future__ import annotations

from typing import Any

import pytest

from torchsmith.checks import Check, worst
from torchsmith.facts.files import Facts
from torchsmith.host.models import (
    Compiler,
    Engine,
    Host,
    InstalledGpu,
    Libc,
    Library,
    Python,
    Tool,
    Toolkit,
)
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Refusal, Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.resolve.verdicts import GIB, Needs, examine

pytestmark = pytest.mark.unit

FACTS = Facts()
TOOLS = {name: Tool(version="1.0", path=f"/usr/bin/{name}") for name in ("git", "patch")}


def gcc(version: str) -> Compiler:
    return Compiler(kind="gcc", version=version, path="/usr/bin/gcc", cxx="/usr/bin/g++")


def cuda(version: str) -> Toolkit:
    return Toolkit(version=version, path="/usr/local/cuda", nvcc="/usr/local/cuda/bin/nvcc")


def gpu(name: str, arch: str | None = None) -> InstalledGpu:
    return InstalledGpu(name=name, arch=arch)


def host(**parts: Any) -> Host:
    plain: dict[str, Any] = {
        "platform": "linux-x86_64",
        "system": "ubuntu-22.04",
        "libc": Libc(kind="glibc", version="2.35"),
        "pythons": (Python(version="3.11.4", path="/usr/bin/python3", headers=True),),
        "compilers": (gcc("11.4.0"),),
        "tools": TOOLS,
        "cores": 8,
        "memory_bytes": 64 * GIB,
        "disk_free_bytes": 200 * GIB,
        "shm_bytes": 16 * GIB,
        "apt": True,
    }
    return Host(**{**plain, **parts})


def lines(machine: Host, needs: Needs | None = None, /, **wish: Any) -> dict[str, Check]:
    """The table by subject; without a wish, the machine by itself."""
    wanted: Resolution | None = None
    if wish:
        (variant,) = expand(Recipe.model_validate(wish))
        outcome = resolve(variant, FACTS, machine)
        assert not isinstance(outcome, Refusal), [item.message for item in outcome.conflicts]
        wanted = outcome
    table = examine(machine, FACTS, wanted, needs or Needs())
    for line in table:
        assert line.name
        assert line.found
        assert line.cure or line.status not in ("warn", "fail") or line.found == "unknown", line
    return {line.name: line for line in table}


CPU: dict[str, Any] = {"torch": "2.6.0", "python": "3.11"}
GPU: dict[str, Any] = {**CPU, "cuda": "12.6", "gpus": "8.6"}
CUDNN = {"cudnn": Library(version="9.5.1", path="/usr/include")}


# ------------------------------------------------------------------------------- toolchain


def test_a_machine_that_has_everything_is_fine() -> None:
    assert worst(list(lines(host(), **CPU).values())) == "pass"


def test_a_compiler_too_new_for_that_nvcc_fails_with_the_one_to_install() -> None:
    line = lines(host(compilers=(gcc("14.2.0"),)), **GPU)["compiler"]
    assert line.status == "fail"
    # The one this distribution has, not the newest there is.
    assert line.wanted == "gcc 11.4.0 (one that nvcc 12.6 takes)"
    assert "sudo apt-get install gcc-11 g++-11" in line.cure


def test_root_needs_no_sudo_and_without_apt_nothing_is_called() -> None:
    as_root = lines(host(compilers=(gcc("14.2.0"),), root=True), **GPU)["compiler"]
    assert as_root.cure.startswith("apt-get install")
    elsewhere = lines(host(compilers=(gcc("14.2.0"),), apt=False), **GPU)["compiler"]
    assert elsewhere.cure.startswith("install gcc-11")


def test_a_compiler_without_a_number_is_installed_without_one() -> None:
    line = lines(host(compilers=()), **CPU, build={"compiler": "gcc"})["compiler"]
    assert "apt-get install gcc g++;" in line.cure


def test_no_compiler_at_all_fails_even_without_a_recipe() -> None:
    assert lines(host(compilers=()))["compiler"].status == "fail"


def test_missing_git_and_patch_fail() -> None:
    table = lines(host(tools={}), **CPU)
    assert (table["git"].status, table["patch"].status) == ("fail", "fail")
    assert (table["cmake"].status, table["ccache"].status) == ("info", "info")


def test_a_python_without_headers_comes_from_uv() -> None:
    bare = (Python(version="3.11.4", path="/usr/bin/python3", headers=False),)
    assert lines(host(pythons=bare), **CPU)["Python"].status == "warn"
    uv = {**TOOLS, "uv": Tool(version="0.9.0", path="/usr/bin/uv")}
    assert lines(host(pythons=bare, tools=uv), **CPU)["Python"].status == "pass"


def test_musl_is_odd_by_itself_and_no_matter_in_an_image() -> None:
    alpine = host(libc=Libc(kind="musl", version="1.2.4"))
    assert lines(alpine)["libc"].status == "warn"
    assert lines(alpine, **CPU, system="debian-12")["libc"].status == "info"


def test_a_build_in_an_image_needs_nothing_of_the_host_but_an_engine() -> None:
    podman = Engine(name="podman", version="5.0", path="/usr/bin/podman", running=True)
    bare = Host(platform="linux-x86_64", engines=(podman,), shm_bytes=16 * GIB)
    table = lines(bare, **GPU, system="ubuntu-22.04")
    assert worst(list(table.values())) == "pass"
    assert table["compiler"].wanted == "in the image"
    assert table["git"].wanted == "in the image"
    assert table["CUDA toolkit"].wanted == "in the image"


# ------------------------------------------------------------------------------------ CUDA


def test_a_missing_toolkit_fails_and_one_from_pypi_does_not() -> None:
    assert lines(host(), **GPU)["CUDA toolkit"].status == "fail"
    wheels = lines(host(), torch="2.9.1", python="3.11", cuda="13.0", gpus="8.6")
    assert wheels["CUDA toolkit"].status == "pass"


def test_a_missing_or_other_cudnn_fails() -> None:
    with_cuda = {"cuda": (cuda("12.6.85"),)}
    assert lines(host(**with_cuda), **GPU)["cudnn"].status == "fail"
    assert lines(host(**with_cuda, libraries=CUDNN), **GPU)["cudnn"].status == "pass"
    other = {**GPU, "cuda": {"version": "12.6", "cudnn": "9.1"}}
    line = lines(host(**with_cuda, libraries=CUDNN), **other)["cudnn"]
    assert (line.status, line.found, line.wanted) == ("fail", "9.5.1", "9.1")


@pytest.mark.parametrize(
    ("driver", "rating"),
    [("570.26", "pass"), ("560.28.03", "pass"), ("535.104.05", "warn"), ("470.57.02", "fail")],
)
def test_the_driver_is_held_against_the_cuda_runtime(driver: str, rating: str) -> None:
    machine = host(driver=driver, gpus=(gpu("RTX 3090", "8.6"),))
    assert lines(machine, **GPU)["driver"].status == rating


def test_a_driver_too_old_says_the_error_it_ends_in_and_the_cure() -> None:
    line = lines(host(driver="470.57.02", gpus=(gpu("RTX 3090", "8.6"),)), **GPU)["driver"]
    assert "Error 804: forward compatibility was attempted on non supported HW" in line.cure
    assert "update the driver" in line.cure
    assert line.wanted == "525.60.13 or newer for the CUDA 12.6 runtime"


def test_minor_version_compatibility_does_not_reach_ptx() -> None:
    line = lines(host(driver="535.104.05", gpus=(gpu("RTX 3090", "8.6"),)), **GPU)["driver"]
    assert "minor-version compatibility" in line.cure
    assert "PTX needs 560.28.03" in line.cure


@pytest.mark.parametrize(
    ("gpus", "archs", "rating"),
    [
        ((gpu("RTX 3090", "8.6"),), "8.6", "pass"),
        ((gpu("RTX 4090", "8.9"),), "8.6", "pass"),
        ((gpu("H100", "9.0"),), "8.6", "warn"),
        ((gpu("H100", "9.0"),), "8.6+PTX", "pass"),
        ((gpu("H100", "9.0"),), "7.5+PTX;8.6", "pass"),
        ((gpu("RTX 2080", "7.5"),), "8.6+PTX", "warn"),
        ((gpu("RTX 3090", "8.6"), gpu("H100", "9.0")), "8.6", "warn"),
        ((gpu("Tesla V100-SXM2-16GB"),), "8.6", "warn"),
        ((), "8.6", "info"),
    ],
)
def test_a_gpu_the_list_does_not_cover_is_warned_of(
    gpus: tuple[InstalledGpu, ...], archs: str, rating: str
) -> None:
    line = lines(host(gpus=gpus), **{**GPU, "gpus": archs})["GPU"]
    assert line.status == rating
    assert ("no kernel image is available" in line.cure) is (rating == "warn")


def test_the_gpu_that_is_not_covered_is_named() -> None:
    two = (gpu("RTX 3090", "8.6"), gpu("H100", "9.0"))
    assert "the H100 is not covered" in lines(host(gpus=two), **GPU)["GPU"].cure


# -------------------------------------------------------------------------- room, engines


def test_12_gib_free_where_60_are_needed_fails_and_says_how_much_is_missing() -> None:
    line = lines(host(disk_free_bytes=12 * GIB), Needs(disk_mb=60 * 1024), **CPU)["disk"]
    assert (line.status, line.found, line.wanted) == ("fail", "12.0 GiB free", "60.0 GiB")
    assert "free 48.0 GiB more" in line.cure


def test_memory_for_less_than_one_file_fails_and_for_fewer_files_than_cores_warns() -> None:
    needs = Needs(memory_mb=4096)
    assert lines(host(memory_bytes=2 * GIB), needs, **CPU)["memory"].status == "fail"
    tight = lines(host(memory_bytes=16 * GIB), needs, **CPU)["memory"]
    assert (tight.status, "--jobs 4" in tight.cure) == ("warn", True)
    assert lines(host(), needs, **CPU)["memory"].status == "pass"


def test_a_small_shm_is_warned_of_with_the_command() -> None:
    line = lines(host(shm_bytes=GIB // 16), **CPU)["/dev/shm"]
    assert line.status == "warn"
    assert "--shm-size=8G" in line.cure


def test_huge_pages_that_nobody_gets_can_be_had() -> None:
    line = lines(host(huge_pages="never"), **CPU)["huge pages"]
    assert line.status == "info"
    assert line.cure == "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    assert not lines(host(huge_pages="madvise"), **CPU)["huge pages"].cure
    assert "huge pages" not in lines(host(), **CPU)


def test_an_image_needs_an_engine_that_runs() -> None:
    images = Needs(images=True)
    assert lines(host(), images, **CPU)["container engine"].status == "fail"
    assert lines(host(), **CPU)["container engine"].status == "info"
    apptainer = Engine(name="apptainer", version="1.3", path="/usr/bin/apptainer", running=True)
    assert lines(host(engines=(apptainer,)), images, **CPU)["container engine"].status == "fail"


def test_a_docker_whose_daemon_does_not_run_is_to_be_started() -> None:
    docker = Engine(
        name="docker", version="27.0", path="/usr/bin/docker", running=False, detail="no socket"
    )
    line = lines(host(engines=(docker,)), Needs(images=True), **CPU)["container engine"]
    assert (line.status, line.found) == ("fail", "docker 27.0 (not running)")
    assert line.cure.startswith("start docker (no socket); or")


def test_what_cannot_be_seen_is_not_held_against_the_machine() -> None:
    blind = Host(platform="linux-x86_64", compilers=(gcc("11.4.0"),), tools=TOOLS)
    table = lines(blind, Needs(memory_mb=4096, disk_mb=60000), **CPU)
    assert (table["memory"].status, table["disk"].status) == ("pass", "pass")
    assert (table["memory"].found, table["libc"].status) == ("unknown", "warn")


def test_the_worst_line_decides() -> None:
    ratings: tuple[Any, ...] = ("info", "pass", "warn", "fail")
    table = [Check("x", "y", rating) for rating in ratings]
    assert worst(table) == "fail"
    assert worst(table[:3]) == "warn"
    assert worst(table[:2]) == "pass"
    assert worst([]) == "pass"
