"""What cannot exist is refused: every reason at once, each with both facts and a way out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from torchsmith.facts.files import Facts
from torchsmith.host.models import Compiler, Host, InstalledGpu, Libc, Python, Toolkit
from torchsmith.recipe.matrix import Variant, expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Outcome, Refusal, Resolution
from torchsmith.resolve.refusal import changed
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

FACTS = Facts()
GCC = Compiler(kind="gcc", version="11.4.0", path="/usr/bin/gcc", cxx="/usr/bin/g++")
PYTHON = Python(version="3.11.4", path="/usr/bin/python3", headers=True)


def host(**parts: Any) -> Host:
    plain: dict[str, Any] = {
        "platform": "linux-x86_64",
        "system": "ubuntu-22.04",
        "pythons": (PYTHON,),
        "compilers": (GCC,),
    }
    return Host(**{**plain, **parts})


HERE = host()


def outcomes(wish: dict[str, Any], machine: Host = HERE) -> list[Outcome]:
    recipe = Recipe.model_validate(wish)
    return [resolve(variant, FACTS, machine) for variant in expand(recipe)]


def refused(machine: Host = HERE, /, **wish: Any) -> Refusal:
    (outcome,) = outcomes(wish, machine)
    assert isinstance(outcome, Refusal), f"resolved: {wish}"
    return outcome


def resolved(machine: Host = HERE, /, **wish: Any) -> Resolution:
    (outcome,) = outcomes(wish, machine)
    assert isinstance(outcome, Resolution), [item.message for item in outcome.conflicts]
    return outcome


def kinds(refusal: Refusal) -> list[str]:
    return [conflict.kind for conflict in refusal.conflicts]


J22 = {"python": "3.11", "system": "ubuntu-22.04"}
TX2 = {"torch": "1.10.0", "board": "jetson-tx2", "python": "3.6"}

# What is asked for, the conflicts in their order, and what the nearest combination must say.
CASES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "8.6 with CUDA 11.0": (
        {"torch": "1.10.0", "cuda": "11.0", "gpus": "8.6", "python": "3.9"},
        ["arch-cuda"],
        "torch 1.10.0, Python 3.9, CUDA 11.1, compute capability 8.6",
    ),
    "Kepler with CUDA 12": (
        {"torch": "2.3.1", "cuda": "12.1", "gpus": "K80", **J22},
        ["arch-cuda"],
        "torch 2.3.1, Python 3.11, CUDA 11.8, compute capability 3.7",
    ),
    "Kepler with a torch that left CUDA 11": (
        {"torch": "2.9.1", "cuda": "13.0", "gpus": "3.7", "python": "3.12"},
        ["arch-cuda"],
        "torch 2.7.1, Python 3.12, CUDA 11.8, compute capability 3.7",
    ),
    "Blackwell with torch 2.5": (
        {"torch": "2.5.1", "cuda": "12.4", "gpus": "RTX 5090", **J22},
        ["arch-cuda", "arch-torch"],
        "torch 2.7.1, Python 3.11, CUDA 12.8, compute capability 12.0",
    ),
    "B200 with torch 2.5 and a CUDA that knows it": (
        {"torch": "2.5.1", "cuda": "12.8", "gpus": "B200", **J22},
        ["cuda-torch", "arch-torch"],
        "torch 2.7.1, Python 3.11, CUDA 12.8, compute capability 10.0",
    ),
    "RTX 5090 with CUDA 12.6": (
        {"torch": "2.6.0", "cuda": "12.6", "gpus": "RTX 5090", **J22},
        ["arch-cuda", "arch-torch"],
        "torch 2.7.1, Python 3.11, CUDA 12.8",
    ),
    "Python 3.12 with torch 1.13": (
        {"torch": "1.13.1", **J22, "python": "3.12"},
        ["python-torch"],
        "torch 1.13.1, Python 3.11, no CUDA",
    ),
    "Python 3.5 with torch 2": (
        {"torch": "2.1.0", **J22, "python": "3.5"},
        ["python-torch"],
        "torch 2.1.0, Python 3.8",
    ),
    "Python 3.8 with torch 1.0": (
        {"torch": "1.0.0", "python": "3.8", "system": "ubuntu-18.04"},
        ["python-torch"],
        # In Ubuntu's universe; uv has no Python before 3.8.
        "torch 1.0.0, Python 3.7",
    ),
    "Python 3.9 with torch 2.15": (
        {"torch": "2.15.0", **J22, "python": "3.9"},
        ["python-torch"],
        "torch 2.15.0, Python 3.11",
    ),
    "Python 3.9 with torch 1.7.0": (
        {"torch": "1.7.0", "python": "3.9", "system": "ubuntu-20.04"},
        ["python-torch"],
        "torch 1.7.1, Python 3.9",
    ),
    "gcc 13 with CUDA 12.2": (
        {"torch": "2.1.0", "cuda": "12.2", "python": "3.11", "build": {"compiler": "gcc-13"}},
        ["compiler-cuda"],
        "torch 2.1.0, Python 3.11, CUDA 12.2, gcc 11",
    ),
    "clang 19 with CUDA 12.4": (
        {"torch": "2.6.0", "cuda": "12.4", **J22, "build": {"compiler": "clang-19"}},
        ["compiler-cuda"],
        "CUDA 12.4, clang 17",
    ),
    "vision 0.10.1 with torch 1.10": (
        {"torch": "1.10.0", "python": "3.9", "companions": {"vision": "0.10.1"}},
        ["companion-torch"],
        "torch 1.10.0, Python 3.9, no CUDA, vision 0.11.1",
    ),
    "vision that is not released": (
        {"torch": "2.15.0", "python": "3.12", "companions": {"vision": "0.30.0"}},
        ["companion-unknown"],
        "vision 0.29.2",
    ),
    "torchtext with torch 2.6": (
        {"torch": "2.6.0", "python": "3.11", "companions": {"text": "match"}},
        ["companion-missing"],
        "torch 2.6.0, Python 3.11, no CUDA",
    ),
    "audio by torch's own number": (
        {"torch": "2.12.0", "python": "3.12", "companions": {"audio": "2.12.0"}},
        ["companion-unknown"],
        "audio 2.11.0",
    ),
    "9.0a with CUDA 11.8": (
        {"torch": "2.0.1", "cuda": "11.8", "gpus": "sm_90a", **J22},
        ["arch-cuda", "arch-torch"],
        "torch 2.0.1, Python 3.11, CUDA 11.8, compute capability 9.0,",
    ),
    "Volta with CUDA 13": (
        {"torch": "2.9.1", "cuda": "13.0", "gpus": "V100", **J22},
        ["arch-cuda"],
        "torch 2.9.1, Python 3.11, CUDA 12.8, compute capability 7.0",
    ),
    "Pascal with CUDA 13": (
        {"torch": "2.9.1", "cuda": "13.0", "gpus": "GTX 1080 Ti", **J22},
        ["arch-cuda"],
        "CUDA 12.8, compute capability 6.1",
    ),
    "CUDA 10.2 with torch 2": (
        {"torch": "2.3.1", "cuda": "10.2", "python": "3.11"},
        ["cuda-torch"],
        "torch 2.3.1, Python 3.11, CUDA 11.8",
    ),
    "CUDA 11.8 with torch 2.9": (
        {"torch": "2.9.1", "cuda": "11.8", **J22},
        ["cuda-torch"],
        "torch 2.9.1, Python 3.11, CUDA 12.6",
    ),
    "CUDA 12.4 with torch 2.3": (
        {"torch": "2.3.1", "cuda": "12.4", **J22},
        ["cuda-torch"],
        "torch 2.3.1, Python 3.11, CUDA 12.1",
    ),
    "CUDA 13.0 with a published torch 2.6, which no patch of ours is in": (
        {"torch": {"release": "2.6.0", "use": "wheel"}, "cuda": "13.0", "python": "3.11"},
        ["cuda-torch", "wheel-cuda"],
        "torch 2.6.0, Python 3.11, CUDA 12.6",
    ),
    "CUDA 13.1 with torch 2.6, for which nobody tried the patches": (
        {"torch": "2.6.0", "cuda": "13.1", "python": "3.11"},
        ["cuda-torch"],
        "torch 2.6.0, Python 3.11, CUDA 12.6",
    ),
    "H100 with torch 1.13 and CUDA 11.7": (
        {"torch": "1.13.1", "cuda": "11.7", "gpus": "H100", "python": "3.10"},
        ["arch-cuda", "arch-torch"],
        "torch 2.0.1, Python 3.10, CUDA 11.8, compute capability 9.0",
    ),
    "RTX 4090 with CUDA 11.1": (
        {"torch": "1.8.1", "cuda": "11.1", "gpus": "RTX 4090", "python": "3.8"},
        ["arch-cuda", "arch-torch"],
        "torch 1.8.1, Python 3.8, CUDA 11.1, compute capability 8.6",
    ),
    "GB10 with CUDA 12.8": (
        {"torch": "2.7.1", "cuda": "12.8", "gpus": "GB10", "python": "3.12"},
        ["arch-cuda", "arch-torch"],
        "torch 2.7.1, Python 3.12, CUDA 12.8, compute capability 12.0",
    ),
    "Thor by its CUDA 13 name with CUDA 12": (
        {"torch": "2.8.0", "cuda": "12.9", "gpus": "11.0", "platform": "linux-aarch64", **J22},
        ["arch-cuda", "arch-torch"],
        "torch 2.8.0, Python 3.11, CUDA 12.9, compute capability 10.1",
    ),
    "Thor by its CUDA 12 name with CUDA 13": (
        {"torch": "2.9.1", "cuda": "13.0", "gpus": "10.1", "platform": "linux-aarch64", **J22},
        ["arch-cuda", "arch-torch"],
        "torch 2.9.1, Python 3.11, CUDA 13.0, compute capability 11.0",
    ),
    "Thor by name with a torch that knows it from CUDA 13 on": (
        {"torch": "2.9.1", "cuda": "12.9", "gpus": "Jetson AGX Thor", "platform": "linux-aarch64"}
        | J22,
        ["arch-torch"],
        "torch 2.9.1, Python 3.11, CUDA 13.0, compute capability 11.0",
    ),
    "a compute capability nobody has": (
        {"torch": "2.6.0", "cuda": "12.6", "gpus": "8.5", **J22},
        ["arch-unknown"],
        "",
    ),
    "CUDA that never was": (
        {"torch": "2.6.0", "cuda": "12.7", **J22},
        ["cuda-unknown"],
        "torch 2.6.0, Python 3.11, CUDA 12.6",
    ),
    "CUDA 11.9": ({"torch": "2.6.0", "cuda": "11.9", **J22}, ["cuda-unknown"], "CUDA 11.8"),
    "CUDA of the future": (
        {"torch": "2.6.0", "cuda": "14.1", **J22},
        ["cuda-unknown"],
        "CUDA 12.6",
    ),
    "torch 1.9.7": ({"torch": "1.9.7", "python": "3.9"}, ["torch-unknown"], "torch 1.9.1"),
    "torch 3.0": ({"torch": "3.0", "python": "3.12"}, ["torch-unknown"], "torch 2.15.0"),
    "torch 0.4": (
        {"torch": "0.4", "python": "3.6", "system": "ubuntu-18.04"},
        ["torch-unknown"],
        "torch 1.0.0",
    ),
    "an unknown torch and an unknown CUDA": (
        {"torch": "1.9.7", "cuda": "11.9", "python": "3.9"},
        ["torch-unknown", "cuda-unknown"],
        "torch 1.9.1, Python 3.9, CUDA 11.",
    ),
    "cuDNN 9 with torch 2.0": (
        {"torch": "2.0.1", "cuda": {"version": "11.8", "cudnn": "9.1"}, **J22},
        ["cudnn-torch"],
        "CUDA 11.8, cuDNN 8.9",
    ),
    "cuDNN 8.0.5 with CUDA 12": (
        {"torch": "2.0.1", "cuda": {"version": "12.1", "cudnn": "8.0.5"}, **J22},
        ["cudnn-torch", "cudnn-cuda"],
        "CUDA 12.1, cuDNN 8.9",
    ),
    "cuDNN 8.0, whichever, with CUDA 12": (
        {"torch": "2.0.1", "cuda": {"version": "12.1", "cudnn": "8.0"}, **J22},
        ["cudnn-torch", "cudnn-cuda"],
        "CUDA 12.1, cuDNN 8.9",
    ),
    "cuDNN that never was": (
        {"torch": "2.0.1", "cuda": {"version": "12.1", "cudnn": "8.10"}, **J22},
        ["cudnn-unknown"],
        "CUDA 12.1, cuDNN 8.9",
    ),
    "cuDNN asked for and turned off": (
        {
            "torch": "2.6.0",
            "cuda": {"version": "12.6", "cudnn": "9.5"},
            "features": {"cudnn": "off"},
            **J22,
        },
        ["cudnn-twice"],
        "CUDA 12.6",
    ),
    "cuDNN without CUDA": (
        {"torch": "2.6.0", "cuda": {"version": "none", "cudnn": "9.5"}, **J22},
        ["cuda-parts"],
        "no CUDA",
    ),
    "NCCL on a TX2": (
        {**TX2, "cuda": "10.2", "features": {"nccl": "on"}},
        ["feature-board"],
        "nccl off",
    ),
    "NCCL without CUDA": (
        {"torch": "2.6.0", "features": {"nccl": "on"}, **J22},
        ["feature-needs"],
        "nccl off",
    ),
    "NCCL of 2.14 without distributed": (
        {
            "torch": "2.14.1",
            "cuda": "13.0",
            "features": {"nccl": "on", "distributed": "off"},
            **J22,
        },
        ["feature-needs"],
        "nccl off",
    ),
    "distributed without TensorPipe": (
        {"torch": "2.6.0", "features": {"tensorpipe": "off"}, **J22},
        ["feature-required"],
        "without features.tensorpipe",
    ),
    "FBGEMM on Arm": (
        {"torch": "2.6.0", "features": {"fbgemm": "on"}, "platform": "linux-aarch64", **J22},
        ["feature-platform"],
        "fbgemm off",
    ),
    "flash attention in 1.9": (
        {"torch": "1.9.1", "features": {"flash_attention": "on"}, "cuda": "11.1", "python": "3.8"},
        ["feature-torch"],
        "without features.flash_attention",
    ),
    "a mode a feature does not have": (
        {"torch": "2.6.0", "features": {"mkldnn": "static"}, **J22},
        ["feature-mode"],
        "mkldnn on",
    ),
    "ROCm beside CUDA": (
        {"torch": "2.6.0", "features": {"rocm": "on"}, "cuda": "12.6", **J22},
        ["feature-elsewhere"],
        "without features.rocm",
    ),
    "features.cuda against cuda": (
        {"torch": "2.6.0", "features": {"cuda": "off"}, "cuda": "12.6", **J22},
        ["cuda-twice"],
        "CUDA 12.6",
    ),
    "features.cuda without cuda": (
        {"torch": "2.6.0", "features": {"cuda": "on"}, **J22},
        ["cuda-twice"],
        "no CUDA",
    ),
    "features.cuda in a mode it does not have": (
        {"torch": "2.6.0", "features": {"cuda": "static"}, "cuda": "12.6", **J22},
        ["feature-mode"],
        "CUDA 12.6",
    ),
    "GPUs without CUDA": (
        {"torch": "2.6.0", "gpus": "RTX 3090", "cuda": "none", **J22},
        ["gpu-without-cuda"],
        "CUDA 12.6",
    ),
    "native where no GPU is": (
        {"torch": "2.6.0", "cuda": "12.6", "gpus": "native", **J22},
        ["native-none"],
        "",
    ),
    "the host's CUDA where there is none": (
        {"torch": "2.6.0", "cuda": "host", "gpus": "8.6", "features": {"nccl": "on"}},
        ["cuda-host"],
        "torch 2.6.0, Python 3.11, CUDA 12.6, compute capability 8.6",
    ),
    "a board on the wrong platform": (
        {**TX2, "cuda": "10.2", "platform": "linux-x86_64"},
        ["board-platform"],
        "CUDA 10.2",
    ),
    "a JetPack of another board": (
        {**TX2, "cuda": "10.2", "jetpack": "5.1"},
        ["jetpack"],
        "CUDA 10.2",
    ),
    "a JetPack without a board": (
        {"torch": "1.10.0", "cuda": "10.2", "jetpack": "4.6", "python": "3.8"},
        ["jetpack"],
        "without jetpack",
    ),
    "CUDA that no JetPack brings": (
        {**TX2, "cuda": "11.4"},
        ["board-cuda"],
        "torch 1.10.0, Python 3.6, CUDA 10.2",
    ),
    "CUDA that this JetPack does not bring": (
        {**TX2, "torch": "1.9.1", "cuda": "10.0", "jetpack": "4.6"},
        ["jetpack-cuda"],
        "",
    ),
    "cuDNN of every JetPack with that CUDA too new for torch": (
        {**TX2, "torch": "1.5.1", "cuda": "10.2"},
        ["jetpack-cudnn"],
        "CUDA 10.0",
    ),
    "a board and a system it does not run": (
        {**TX2, "cuda": "10.2", "system": "ubuntu-22.04"},
        ["board-system"],
        "ubuntu-18.04",
    ),
    "a board and another GPU": (
        {**TX2, "cuda": "10.2", "gpus": "8.6"},
        ["arch-cuda"],
        "compute capability 6.2",
    ),
    "Debian's source of a version no suite has": (
        {"torch": "2.5.0", "source": {"kind": "debian"}, **J22},
        ["source-debian"],
        "torch 2.5.0",
    ),
    "Debian's source from another suite": (
        {"torch": "2.6.0", "source": {"kind": "debian", "suite": "bookworm"}, **J22},
        ["source-debian"],
        "torch 2.6.0",
    ),
    "nvcc 12.4 from PyPI": (
        {"torch": "2.6.0", "cuda": {"version": "12.4", "toolkit": "wheels"}, "python": "3.11"},
        ["toolkit-wheels"],
        "torch 2.6.0, Python 3.11, CUDA 12.4",
    ),
    "NVIDIA's image for Debian": (
        {"torch": "2.6.0", "cuda": {"version": "12.4", "toolkit": "image"}, "python": "3.11"}
        | {"system": "debian-12"},
        ["toolkit-image"],
        "ubuntu-22.04",
    ),
    "NVIDIA's image for no distribution": (
        {"torch": "2.6.0", "cuda": {"version": "12.4", "toolkit": "image"}, "python": "3.11"},
        ["toolkit-image"],
        "CUDA 12.4",
    ),
    "a distribution CUDA never came to": (
        {"torch": "1.10.0", "cuda": "11.1", "python": "3.9", "system": "ubuntu-24.04"},
        ["toolkit-none"],
        "torch 1.10.0, Python 3.9, CUDA 11.1, ubuntu-20.04",
    ),
    "a distribution whose gcc is too old": (
        {"torch": "2.12.1", "python": "3.11", "system": "ubuntu-20.04"},
        ["compiler-system"],
        "torch 2.12.1, Python 3.11, no CUDA, ubuntu-22.04",
    ),
    "a distribution whose gccs are too new": (
        {"torch": "1.8.0", "python": "3.9", "system": "debian-13"},
        ["compiler-system"],
        # Debian 12's oldest gcc is 11, which does not compile this XNNPACK.
        "torch 1.8.0, Python 3.9, no CUDA, debian-11",
    ),
    "a gcc the distribution does not package": (
        {"torch": "2.6.0", "python": "3.11", "system": "ubuntu-20.04"}
        | {"build": {"compiler": "gcc-13"}},
        ["compiler-packaged"],
        "gcc 10, ubuntu-20.04",
    ),
    "the distribution's own gcc, too new for CUDA": (
        {"torch": "2.6.0", "cuda": "11.8", **J22, "build": {"compiler": "gcc-12"}},
        ["compiler-cuda", "compiler-place"],
        "CUDA 11.8, gcc 11",
    ),
    "Python 2": ({"torch": "1.4.0", "python": "2.7"}, ["python-torch"], "Python 3.8"),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_refused_for_these_reasons_and_this_would_work(case: str) -> None:
    wish, expected, nearest = CASES[case]
    refusal = refused(**wish)
    assert kinds(refusal) == expected
    assert nearest in refusal.nearest


def well_said(text: str) -> None:
    assert text.strip() == text
    assert text
    assert ".." not in text.replace("…", "")
    assert not re.search(r"\b(\d+) to \1\.x|  | ,|\(\)|None|\{|\}", text), text
    assert not text.endswith("."), text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_refusal_reads_well_and_names_both_facts_and_a_cure(case: str) -> None:
    refusal = refused(**CASES[case][0])
    for conflict in refusal.conflicts:
        for text in (conflict.message, conflict.first.statement, conflict.second.statement):
            well_said(text)
        well_said(conflict.cure)
        assert conflict.first.statement != conflict.second.statement
        for evidence in (conflict.first, conflict.second):
            assert all(address.startswith("http") for address in evidence.source.split())
    assert len(set(refusal.conflicts)) == len(refusal.conflicts)


# Two wishes of the recipe's own, or this machine: there is nothing to look up.
OWN = {
    *("native-none", "cuda-parts", "cudnn-twice", "nccl-twice", "cuda-twice", "gpu-without-cuda"),
    "platform",
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fact_of_ours_can_be_checked_somewhere(case: str) -> None:
    for conflict in refused(**CASES[case][0]).conflicts:
        if conflict.kind not in OWN:
            assert conflict.first.source or conflict.second.source, conflict


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_nearest_recipe_resolves_when_it_is_written_down(case: str) -> None:
    wish, _, _ = CASES[case]
    refusal = refused(**wish)
    if not refusal.nearest:
        assert case.startswith(("native", "a compute capability nobody"))
        return
    assert refusal.changes
    recipe = changed(Recipe.model_validate(wish), refusal.changes)
    assert isinstance(resolve(Variant("nearest", recipe), FACTS, HERE), Resolution)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_cure_of_a_conflict_removes_it_and_brings_no_other(case: str) -> None:
    wish, _, _ = CASES[case]
    refusal = refused(**wish)
    for conflict in refusal.conflicts:
        if not conflict.changes:
            assert conflict.kind == "native-none"
            continue
        recipe = changed(Recipe.model_validate(wish), conflict.changes)
        outcome = resolve(Variant("cured", recipe), FACTS, HERE)
        left = {(item.kind) for item in outcome.conflicts} if isinstance(outcome, Refusal) else ()
        assert set(left) < set(kinds(refusal)) or not left, (conflict, left)


def test_an_rtx_4090_is_told_that_8_6_code_runs_on_it() -> None:
    refusal = refused(**CASES["RTX 4090 with CUDA 11.1"][0])
    assert "compute capability 8.6 (its code runs on 8.9 too" in refusal.conflicts[0].cure


def test_code_of_one_architecture_alone_is_never_offered_for_another() -> None:
    for case in ("GB10 with CUDA 12.8", "Thor by its CUDA 12 name with CUDA 13"):
        for conflict in refused(**CASES[case][0]).conflicts:
            assert not re.search(r"\d[af]\b", conflict.cure)


def test_a_jetson_is_not_offered_a_desktop_s_code() -> None:
    refusal = refused(torch="2.0.1", cuda="11.8", gpus="8.7", **J22)
    assert kinds(refusal) == ["arch-torch"]
    assert "its code runs on" not in refusal.conflicts[0].cure
    assert "torch 2.1.2" in refusal.nearest


def test_the_gpu_is_called_by_the_name_it_was_asked_for() -> None:
    refusal = refused(**CASES["Kepler with CUDA 12"][0])
    assert "K80" in refusal.conflicts[0].first.statement


def test_a_python_nobody_named_says_where_it_comes_from() -> None:
    refusal = refused(torch="2.6.0", python="host", system="ubuntu-18.04")
    (conflict,) = (item for item in refusal.conflicts if item.kind == "python-torch")
    assert "ubuntu-18.04's own" in conflict.first.statement


def test_torchtext_says_that_it_ended_and_where() -> None:
    (conflict,) = refused(**CASES["torchtext with torch 2.6"][0]).conflicts
    assert "ended at 0.18.0" in conflict.second.statement
    assert conflict.cure == "torch 2.3.1; or leave text out (--with text=none)"


def test_all_conflicts_come_at_once_each_once_and_in_the_same_order() -> None:
    wish: dict[str, Any] = {
        "torch": "1.13.1",
        "python": "3.12",
        "cuda": {"version": "12.4", "cudnn": "9.1"},
        "gpus": ["RTX 5090", "5090"],
        "companions": {"vision": "0.21.0", "text": "0.18.0"},
        "features": {"mkldnn": "static", "tensorpipe": "off"},
        "build": {"compiler": "gcc-14"},
        "system": "ubuntu-24.04",
    }
    first, again = refused(**wish), refused(**wish)
    assert first == again
    assert kinds(first) == [
        "python-torch",
        "cuda-torch",
        "arch-cuda",
        "arch-torch",
        "cudnn-torch",
        "cudnn-arch",
        "companion-torch",
        "companion-torch",
        "compiler-cuda",
        "compiler-torch",
        "toolkit-none",
        "feature-mode",
        "feature-required",
    ]
    assert first.nearest.startswith("torch 2.7.1, Python 3.12, CUDA 12.8, compute capability 12.0")


def test_of_a_matrix_only_what_cannot_exist_is_refused() -> None:
    made = outcomes(
        {
            "torch": "2.3.1",
            "system": "ubuntu-22.04",
            "matrix": {"python": ["3.7", "3.11"], "cuda": ["11.8", "12.1"], "gpus": ["3.7", "8.6"]},
        }
    )
    good = [item.variant for item in made if isinstance(item, Resolution)]
    assert good == [
        "torch_py3.11_cu11.8_3.7",
        "torch_py3.11_cu11.8_8.6",
        "torch_py3.11_cu12.1_8.6",
    ]
    assert len(made) == 8


def test_a_gpu_whose_driver_does_not_tell_is_known_by_its_name() -> None:
    old = host(gpus=(InstalledGpu(name="Tesla V100-SXM2-16GB"),), driver="470.57.02")
    made = resolved(old, torch="2.6.0", cuda="12.6", gpus="native", **J22)
    assert made.cuda is not None
    assert made.cuda.arch_list == "7.0"


def test_a_gpu_that_neither_tells_nor_is_known_is_a_conflict_of_its_own() -> None:
    strange = host(gpus=(InstalledGpu(name="Prototype 9"),), driver="470.57.02")
    refusal = refused(strange, torch="2.6.0", cuda="12.6", gpus="native", **J22)
    assert kinds(refusal) == ["native-none"]
    assert "Prototype 9" in refusal.conflicts[0].message


def test_a_toolkit_newer_than_any_we_know_is_not_taken_for_one() -> None:
    ahead = host(cuda=(Toolkit(version="13.9.1", path="/usr/local/cuda", nvcc="nvcc"),))
    refusal = refused(ahead, torch="2.15.0", cuda="host", python="3.12")
    assert kinds(refusal) == ["cuda-host"]
    assert "13.9 is none we know" in refusal.conflicts[0].first.statement


def test_musl_is_refused_unless_the_build_is_in_an_image() -> None:
    alpine = host(libc=Libc(kind="musl", version="1.2.4"))
    refusal = refused(alpine, torch="2.6.0", python="3.11")
    assert kinds(refusal) == ["libc"]
    assert isinstance(
        resolved(alpine, torch="2.6.0", python="3.11", system="debian-12"), Resolution
    )


def test_a_mac_is_sent_to_an_image() -> None:
    mac = host(platform="darwin-arm64")
    refusal = refused(mac, torch="2.6.0", python="3.11")
    assert kinds(refusal) == ["platform"]
    assert [(item.key, item.value) for item in refusal.changes] == [
        ("platform", "linux-aarch64"),
        ("system", "debian-12"),
    ]


@pytest.mark.parametrize("gcc", ["gcc", "gcc-13"])
def test_a_compiler_by_its_bare_name_is_judged_by_what_the_system_means(gcc: str) -> None:
    refusal = refused(
        torch="2.6.0", cuda="12.5", python="3.12", system="ubuntu-26.04", build={"compiler": gcc}
    )
    assert ("compiler-cuda" in kinds(refusal)) == (gcc == "gcc")


@pytest.mark.parametrize("board", [item.name for item in FACTS.boards.board])
@pytest.mark.parametrize("torch", ["1.1.0", "1.10.0", "2.6.0", "2.15.0"])
def test_a_board_gets_torch_or_the_nearest_torch_it_can_have(board: str, torch: str) -> None:
    wish = {"torch": torch, "board": board, "python": "host", "cuda": "host"}
    (outcome,) = outcomes(wish)
    if isinstance(outcome, Refusal):
        recipe = changed(Recipe.model_validate(wish), outcome.changes)
        assert isinstance(resolve(Variant("nearest", recipe), FACTS, HERE), Resolution)


def test_debian_s_own_cuda_is_one_release_and_the_nearest_is_offered() -> None:
    refusal = refused(
        torch="2.6.0",
        python="3.13",
        system="debian-13",
        gpus=["8.6"],
        cuda={"version": "12.6", "toolkit": "debian"},
    )
    assert kinds(refusal) == ["place-torch", "toolkit-debian"]
    _, conflict = refusal.conflicts
    assert "11.8 in debian-12, 12.4 in debian-13" in conflict.second.statement
    assert "CUDA 12.4" in conflict.cure


def test_a_machine_that_is_no_debian_has_no_cuda_of_debian_s() -> None:
    refusal = refused(
        torch="2.6.0", python="3.11", gpus=["8.6"], cuda={"version": "12.4", "toolkit": "debian"}
    )
    assert kinds(refusal) == ["toolkit-debian"]
    assert "Debian packages CUDA 11.8 in debian-12, 12.4 in debian-13" in str(
        refusal.conflicts[0].second
    )
    assert refusal.conflicts[0].cure == "leave cuda.toolkit out"


def test_a_deleted_image_cannot_be_asked_for() -> None:
    refusal = refused(
        torch="1.1.0",
        python="3.5",
        system="ubuntu-16.04",
        cuda={"version": "9.0", "toolkit": "image"},
    )
    assert "toolkit-image" in kinds(refusal)
    (conflict,) = refusal.conflicts
    assert "deleted them in 2023-07" in conflict.second.statement
    assert "leave cuda.toolkit out" in conflict.cure


@pytest.mark.parametrize(
    ("system", "platform", "cuda"),
    [("ubuntu-18.04", "linux-x86_64", "9.2"), ("ubuntu-18.04", "linux-aarch64", "10.2")],
)
def test_where_nothing_brings_a_cuda_any_more_the_nearest_that_does_is_said(
    system: str, platform: str, cuda: str
) -> None:
    refusal = refused(torch="1.5.1", python="3.6", system=system, platform=platform, cuda=cuda)
    assert "toolkit-none" in kinds(refusal)
    assert "NVIDIA deleted them in 2023-07" in refusal.conflicts[0].second.statement
    assert refusal.nearest


def test_the_repository_of_nvidia_needs_a_distribution_it_is_for() -> None:
    refusal = refused(
        torch="2.6.0",
        python="3.11",
        system="debian-12",
        cuda={"version": "12.6", "toolkit": "apt"},
    )
    assert kinds(refusal) == ["toolkit-apt"]
    assert "ubuntu-22.04" in refusal.conflicts[0].second.statement


@pytest.mark.parametrize(
    ("system", "cuda", "torch", "nccl", "cure"),
    [
        ("debian-12", "11.8", "2.3.1", None, "features.nccl = 'on'"),
        ("debian-13", "12.4", "2.6.0", "2.4", "cuda.nccl = '2.22.3'"),
    ],
)
def test_debian_has_one_nccl_or_none(
    system: str, cuda: str, torch: str, nccl: str | None, cure: str
) -> None:
    refusal = refused(
        torch=torch,
        python="3.11",
        system=system,
        gpus=["8.6"],
        cuda={"version": cuda, "toolkit": "debian", "nccl": nccl},
        features={"nccl": "system"},
    )
    assert kinds(refusal) == ["nccl-debian"]
    assert cure in refusal.conflicts[0].cure


@pytest.mark.parametrize(
    "wish",
    [
        {"torch": "1.12.1", "python": "3.8", "system": "ubuntu-18.04"}
        | {"build": {"compiler": "gcc-9"}},
        {"torch": "1.12.1", "python": "3.8", "cuda": "11.6", "system": "ubuntu-22.04"},
    ],
)
def test_what_a_distribution_lacks_a_base_image_may_have(wish: dict[str, Any]) -> None:
    told = " ".join(conflict.second.statement for conflict in refused(**wish).conflicts)
    assert "`image.base`" in told


@pytest.mark.parametrize(
    ("wish", "kind"),
    [
        # nvcc 12.8 compiles nothing for 12.1, nor does torch 2.7 know it.
        ({"board": "dgx-spark", "torch": "2.7.1", "cuda": "12.8"}, "arch-cuda"),
        ({"board": "dgx-spark", "torch": "2.7.1", "cuda": "12.9"}, "arch-torch"),
        ({"board": "jetson-agx-thor", "torch": "2.6.0", "cuda": "13.0"}, "arch-torch"),
        ({"board": "jetson-agx-orin", "torch": "1.9.1", "python": "3.8"}, "arch-torch"),
        # NVIDIA built this one for Orin.
        ({"board": "jetson-agx-orin", "torch": "1.13.1", "python": "3.8"}, ""),
        ({"board": "dgx-spark", "torch": "2.9.0", "cuda": "13.0"}, ""),
    ],
)
def test_a_boards_own_gpu_is_checked_as_a_named_one_is(wish: dict[str, Any], kind: str) -> None:
    (outcome,) = outcomes({"python": "3.12"} | wish)
    found = kinds(outcome) if isinstance(outcome, Refusal) else []
    assert (kind in found) if kind else not found


def test_a_cudnn_older_than_what_torch_compiles_with_is_refused() -> None:
    wish = {"torch": "1.13.0", "python": "3.9", "gpus": ["RTX 3090"]}
    assert "cudnn-torch" in kinds(refused(**wish, cuda={"version": "11.1", "cudnn": "8.0.5"}))


@pytest.mark.parametrize(
    ("driver", "gpu", "said"),
    [("595.71.05", "GTX 1050", True), ("580.95", "GTX 1050", False), ("595.71.05", "8.6", False)],
)
def test_a_driver_that_leaves_the_gpu_out_is_said(driver: str, gpu: str, said: bool) -> None:
    made = resolved(host(driver=driver), torch="2.8.0", cuda="12.6", gpus=[gpu], **J22)
    told = [item for item in made.cautions if "no longer runs Pascal" in item.message]
    assert bool(told) is said


@pytest.mark.parametrize(
    ("torch", "python", "said"),
    [("2.5.1", "3.13", True), ("2.6.0", "3.13", False), ("2.9.1", "3.14", True)],
)
def test_a_python_that_torch_compile_does_not_take_is_said(
    torch: str, python: str, said: bool
) -> None:
    made = resolved(torch=torch, python=python, system="ubuntu-22.04")
    assert any("torch.compile" in item.message for item in made.cautions) is said
