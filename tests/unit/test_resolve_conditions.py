"""What depends on where torch is built: each of these was once answered wrongly."""

from __future__ import annotations

import re
from typing import Any

import pytest

from torchsmith.errors import RecipeError
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import releases
from torchsmith.host.models import Compiler, Host, InstalledGpu, Python, Toolkit
from torchsmith.plan.build import make_plan
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.stages import base_stage, environment_commands
from torchsmith.plan.torch import build_env, environment
from torchsmith.recipe.compose import compose
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import Variant, expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Outcome, Refusal, Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

FACTS = Facts()
X86 = Host(platform="linux-x86_64", system="debian-12")
ARM = Host(platform="linux-aarch64", system="debian-12")


def outcome(machine: Host = X86, /, **wish: Any) -> Outcome:
    (variant,) = expand(Recipe.model_validate(wish))
    return resolve(variant, FACTS, machine)


def resolved(machine: Host = X86, /, **wish: Any) -> Resolution:
    made = outcome(machine, **wish)
    assert isinstance(made, Resolution), [item.message for item in made.conflicts]
    return made


def refused(machine: Host = X86, /, **wish: Any) -> Refusal:
    made = outcome(machine, **wish)
    assert isinstance(made, Refusal), (made.compiler, made.cautions)
    return made


def problems(text: str) -> str:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "recipe", None)
    return "\n".join(f"{item.message} {item.meant}" for item in error.value.problems)


def kinds(made: Refusal) -> list[str]:
    return [item.kind for item in made.conflicts]


def cautions(made: Resolution) -> str:
    return "\n".join(f"{item.message} -> {item.cure}" for item in made.cautions)


def patches(made: Resolution) -> set[str]:
    return {item.name for item in made.patches}


# ------------------------------------------------------------------ compilers and systems


@pytest.mark.parametrize("torch", ["1.8.1", "1.9.1"])
def test_xnnpack_of_1_8_and_1_9_is_not_compiled_with_gcc_11_on_x86(torch: str) -> None:
    ubuntu = {"torch": torch, "python": "3.9", "system": "ubuntu-22.04"}
    assert resolved(**ubuntu).compiler.version == "10"
    asked = refused(**ubuntu, build={"compiler": "gcc-11"})
    assert set(kinds(asked)) == {"compiler-place"}
    assert asked.standing == "fails"
    parts = {"xnnpack": "60848", "mkldnn": "62933"}
    for part, source in parts.items():
        (one,) = [item for item in asked.conflicts if f"features.{part} = 'off'" in item.cure]
        assert source in one.second.source
    without = resolved(**ubuntu, build={"compiler": "gcc-11"}, features=dict.fromkeys(parts, "off"))
    assert without.compiler.version == "11.4.0"
    assert resolved(**ubuntu, platform="linux-aarch64").compiler.version == "11.4.0"


@pytest.mark.parametrize("torch", ["1.10.2", "1.11.0"])
def test_breakpad_is_patched_where_glibc_is_2_34_or_newer(torch: str) -> None:
    new = resolved(torch=torch, python="3.9", system="ubuntu-22.04")
    old = resolved(torch=torch, python="3.9", system="ubuntu-20.04")
    name = "torch-1.10-breakpad-glibc-2.34.patch"
    assert name in patches(new)
    assert name not in patches(old)


@pytest.mark.parametrize("system", ["debian-12", "ubuntu-24.04"])
def test_gloo_is_patched_for_the_headers_of_linux_6(system: str) -> None:
    name = "torch-1.7-gloo-linux-6.patch"
    wish = {"torch": "1.13.1", "python": "3.11", "system": system}
    assert name in patches(resolved(**wish))
    assert name not in patches(resolved(**wish, features={"gloo": "off"}))
    assert name not in patches(resolved(**{**wish, "system": "ubuntu-22.04"}))
    assert name not in patches(resolved(**{**wish, "torch": "2.0.1"}))


@pytest.mark.parametrize(
    ("machine", "wish", "patched"),
    [
        (X86, {"features": {"fbgemm": "off"}}, True),
        (X86, {"profile": "minimal"}, True),
        (X86, {"source": {"kind": "debian", "suite": "trixie"}}, True),
        (ARM, {}, True),
        (X86, {"system": "ubuntu-22.04", "python": "3.10"}, False),
        (X86, {"torch": "2.7.1", "features": {"fbgemm": "off"}}, False),
        (X86, {"torch": {"release": "2.6.0", "use": "wheel"}, "profile": "minimal"}, False),
    ],
)
def test_torch_gets_a_radix_sort_of_its_own_where_fbgemm_lends_none(
    machine: Host, wish: dict[str, Any], patched: bool
) -> None:
    made = resolved(machine, **{"torch": "2.6.0", "python": "3.11", "system": "debian-12", **wish})
    assert ("torch-2.6-radix-sort.patch" in patches(made)) == patched


def test_a_gloo_nobody_has_a_patch_for_is_refused_there_and_cured_elsewhere() -> None:
    made = refused(ARM, torch="1.6.0", python="3.8", system="debian-12")
    assert "place-torch" in kinds(made)
    assert made.nearest.startswith("torch 1.6.0")


@pytest.mark.parametrize("torch", ["2.7.1", "2.10.0"])
def test_gcc_14_is_left_out_on_aarch64_where_it_breaks(torch: str) -> None:
    trixie = {"torch": torch, "python": "3.13", "system": "debian-13"}
    assert resolved(ARM, **trixie).compiler.version == "13"
    assert resolved(X86, **trixie).compiler.version == "14.2.0"
    made = refused(ARM, **trixie, build={"compiler": "gcc-14"})
    assert set(kinds(made)) == {"compiler-place"}
    assert "172630" in " ".join(item.second.source for item in made.conflicts)


def test_2_6_on_aarch64_with_gcc_13_fails_only_with_its_xnnpack() -> None:
    noble = {"torch": "2.6.0", "python": "3.12", "system": "ubuntu-24.04"}
    assert resolved(ARM, **noble).compiler.version == "12"
    assert resolved(X86, **noble).compiler.version == "13.3.0"
    assert resolved(ARM, **noble, features={"xnnpack": "off"}).compiler.version == "13.3.0"
    assert kinds(refused(ARM, **noble, build={"compiler": "gcc-13"})) == ["compiler-place"]


def test_debian_s_own_2_6_takes_debian_s_gcc_14_with_a_word_of_caution() -> None:
    made = resolved(
        ARM, torch="2.6.0", python="3.13", system="debian-13", source={"kind": "debian"}
    )
    assert made.compiler.version == "14.2.0"
    assert "internal error" in cautions(made)


def test_nvcc_12_4_and_gcc_13_2_do_not_go_together_on_aarch64() -> None:
    gcc = Compiler(kind="gcc", version="13.2.0", path="/usr/bin/gcc", cxx="/usr/bin/g++")
    python = Python(version="3.12.3", path="/usr/bin/python3", headers=True)
    cuda = Toolkit(version="12.4.131", path="/usr/local/cuda", nvcc="/usr/local/cuda/bin/nvcc")
    parts: dict[str, Any] = {"compilers": (gcc,), "pythons": (python,), "cuda": (cuda,)}
    wish: dict[str, Any] = {"torch": "2.5.1", "cuda": "12.4", "python": "3.12"}
    asked = {**wish, "build": {"compiler": "gcc"}}
    assert kinds(refused(ARM.model_copy(update=parts), **asked)) == ["compiler-place"]
    assert resolved(X86.model_copy(update=parts), **asked).compiler.version == "13.2.0"
    assert "no compiler for it" in cautions(resolved(ARM.model_copy(update=parts), **wish))


def test_gcc_7_on_a_jetson_may_compute_wrongly() -> None:
    made = resolved(ARM, torch="1.8.1", board="jetson-nano", cuda="10.2", python="3.6")
    (caution,) = (item for item in made.cautions if "results on the CPU" in item.message)
    assert "47098" in caution.source


# --------------------------------------------------------------------------- CUDA and cuDNN


@pytest.mark.parametrize(("torch", "cuda"), [("2.9.1", "13.1"), ("2.9.0", "13.2")])
def test_2_9_is_older_than_the_cccl_of_cuda_13_1(torch: str, cuda: str) -> None:
    made = refused(torch=torch, cuda=cuda, python="3.12", system="ubuntu-24.04")
    assert (kinds(made), made.standing) == (["cuda-torch"], "fails")
    assert "164570" in made.conflicts[0].second.source


def test_2_6_with_cuda_12_8_is_built_by_others() -> None:
    made = resolved(torch="2.6.0", cuda="12.8", python="3.12", system="ubuntu-22.04")
    (caution,) = (item for item in made.cautions if item.standing == "unpublished")
    assert "others build it" in caution.message
    assert caution.source


def test_a_cuda_nobody_has_tried_is_a_caution_and_one_that_is_refused_says_so() -> None:
    tried = resolved(torch="2.12.0", cuda="13.4", python="3.12")
    assert [item.standing for item in tried.cautions if item.standing] == ["unknown"]
    assert refused(torch="2.4.0", cuda="12.9", python="3.12").standing == "unknown"
    assert refused(torch="2.4.0", cuda="10.2", python="3.12").standing == "impossible"


@pytest.mark.parametrize(
    ("torch", "cuda", "python"), [("2.7.1", "12.8", "3.10"), ("2.1.0", "11.8", "3.8")]
)
def test_a_toolkit_can_be_installed_on_top_of_a_jetpack(torch: str, cuda: str, python: str) -> None:
    made = resolved(ARM, torch=torch, cuda=cuda, python=python, board="jetson-agx-orin")
    assert "on top of it" in cautions(made)


@pytest.mark.parametrize("gpu", ["6.1", "V100"])
def test_a_cudnn_that_left_a_gpu_behind_is_refused_with_the_one_upstream_pins(gpu: str) -> None:
    cuda = {"version": "12.6", "cudnn": "9.13"}
    made = refused(torch="2.8.0", cuda=cuda, gpus=gpu, python="3.12", system="ubuntu-22.04")
    assert kinds(made) == ["cudnn-arch"]
    assert "9.10.2.21" in made.conflicts[0].second.statement
    assert resolved(torch="2.8.0", cuda=cuda, gpus="7.5", python="3.12", system="ubuntu-22.04")


def test_cudnn_7_6_has_no_build_for_cuda_9_1() -> None:
    cuda = {"version": "9.1", "cudnn": "7.6.0"}
    made = refused(torch="1.1.0", cuda=cuda, python="3.5", system="ubuntu-16.04")
    assert "cudnn-cuda" in kinds(made)


# ---------------------------------------------------------------------------------- Pythons


@pytest.mark.parametrize(
    ("torch", "python"),
    [("2.7.1", "3.13t"), ("2.12.0", "3.13t"), ("2.9.0", "3.14t"), ("2.15.0", "3.14t")],
)
def test_a_free_threaded_python_is_one_of_its_own(torch: str, python: str) -> None:
    made = resolved(torch=torch, python=python)
    short = python.removesuffix("t").replace(".", "")
    assert f"-cp{short}-cp{short}t-linux_x86_64.whl" in made.wheel
    assert (made.python, made.python_from) == (python, "uv")


@pytest.mark.parametrize(
    ("torch", "python"), [("2.5.1", "3.13t"), ("2.12.1", "3.13t"), ("2.8.0", "3.14t")]
)
def test_a_free_threaded_python_nothing_was_published_for_is_refused(
    torch: str, python: str
) -> None:
    made = refused(torch=torch, python=python)
    assert (kinds(made), made.standing) == (["python-torch"], "unknown")
    # A patch release of the same minor at most.
    assert made.nearest.startswith(f"torch {torch[:-2]}.")


@pytest.mark.parametrize("torch", ["2.14.0", "2.15.0"])
def test_python_3_15_is_experimental(torch: str) -> None:
    assert "experimental" in cautions(resolved(torch=torch, python="3.15"))


def test_a_machine_s_own_free_threaded_python_is_not_taken_for_the_other() -> None:
    python = Python(version="3.13.1", path="/opt/python3.13t", headers=True, free_threaded=True)
    here = X86.model_copy(update={"pythons": (python,)})
    assert resolved(here, torch="2.9.1", python="3.13t").python_from == "system"
    assert resolved(here, torch="2.9.1", python="3.13").python_from == "uv"
    assert resolved(here, torch="2.9.1", python="host").python == "3.13t"


def test_a_reason_never_says_a_release_is_older_than_a_python_it_is_not_older_than() -> None:
    made = refused(torch="2.1.2", python="3.12")
    assert "older" not in made.conflicts[0].message
    assert "nothing newer than Python 3.11" in made.conflicts[0].message


@pytest.mark.parametrize("python", ["3.5", "3.6", "3.7"])
def test_a_python_uv_does_not_have_is_the_distribution_s_own_or_built(python: str) -> None:
    made = refused(torch="1.4.0", python=python)
    assert "python-nowhere" in kinds(made)
    (conflict,) = (item for item in made.conflicts if item.kind == "python-nowhere")
    assert "name a distribution to build in (system)" in conflict.cure
    homes = {"3.5": "ubuntu-16.04", "3.6": "ubuntu-18.04", "3.7": "debian-10"}
    assert resolved(torch="1.4.0", python=python, system=homes[python]).python_from == "system"
    (other, *_) = (home for item, home in homes.items() if item != python)
    built = resolved(torch="1.4.0", python=python, system=other)
    assert built.python_from == "source"
    assert built.cpython is not None
    assert f"/Python-{python}." in built.cpython.url
    lines = "\n".join(base_stage(built, compilers=True))
    assert f"echo '{built.cpython.sha256}  /tmp/python.tar' | sha256sum --check" in lines
    assert f"python{python} -m venv" in "\n".join(environment(built).commands)
    # 3.7 aligns memory as today's compilers take it to be.
    assert ("#define ALIGNMENT 16" in lines) == (python != "3.7")


def test_no_place_is_named_for_a_python_that_does_not_have_it() -> None:
    # No conda channel has CPython 3.5 for AArch64.
    made = refused(torch="1.1.0", python="3.5", board="jetson-nano")
    (conflict,) = (item for item in made.conflicts if item.kind == "python-nowhere")
    own = "a base image of your own that has CPython 3.5: image.base"
    assert conflict.cure == f"Python 3.6; or {own}"


def test_a_python_s_source_can_be_one_s_own_where_there_is_a_container() -> None:
    own = {"url": "https://example.org/python.tar.xz", "sha256": "ab" * 32}
    wish = {"torch": "2.6.0", "python": "3.11", "build": {"python_source": own}}
    made = resolved(system="debian-12", **wish)
    assert made.cpython is not None
    assert (made.cpython.url, made.cpython.sha256) == (own["url"], own["sha256"])
    assert kinds(refused(**wish)) == ["cpython-here"]


# ------------------------------------------------------------------------- published wheels


def test_a_wheel_of_another_cuda_than_pypi_s_comes_from_that_cuda_s_index() -> None:
    made = resolved(torch={"release": "2.13.0", "use": "wheel"}, cuda="12.6", python="3.12")
    assert made.wheel_index == "https://download.pytorch.org/whl/cu126"
    assert made.version == "2.13.0+cu126"
    own = resolved(torch={"release": "2.13.0", "use": "wheel"}, cuda="13.0", python="3.12")
    assert (own.wheel_index, own.version) == ("", "2.13.0")


def test_pypi_s_wheel_has_a_cuda_that_nobody_asked_for_and_that_is_said() -> None:
    wish: dict[str, Any] = {"torch": {"release": "2.6.0", "use": "wheel"}, "python": "3.11"}
    made = resolved(**wish, cuda="none")
    (caution,) = [item.message for item in made.cautions if "PyPI" in item.message]
    assert caution.startswith("PyPI's torch 2.6.0 for linux-x86_64 has CUDA 12.4")
    # Nor does the label of an image say that it has none.
    recipe = Recipe.model_validate({**wish, "cuda": "none", "image": {"name": "lab"}})
    plan = make_plan(recipe, [made], FACTS, "0")
    text = dockerfile_context(plan, recipe, "0")["Dockerfile"].decode()
    assert "dev.torchsmith.torch=2.6.0" in text
    assert "dev.torchsmith.cuda" not in text
    assert "PyPI" not in cautions(resolved(**wish, cuda="none", platform="linux-aarch64"))
    assert "PyPI" not in cautions(resolved(**wish, cuda="12.6"))


def test_the_environment_and_the_image_install_the_wheel_of_that_cuda() -> None:
    wish = {"torch": {"release": "2.13.0", "use": "wheel"}, "cuda": "12.6", "python": "3.12"}
    made = resolved(**wish)
    wanted = "--index-url https://download.pytorch.org/whl/cu126 torch==2.13.0+cu126"
    assert any(wanted in line for line in environment(made).commands)
    assert any(wanted in line for line in environment_commands(made, ""))
    threaded = environment(resolved(**{**wish, "python": "3.14t"})).commands
    assert any("--python 3.14t" in line for line in threaded)


def test_pypi_s_own_wheel_for_arm_had_no_cuda_before_2_11() -> None:
    wish: dict[str, Any] = {"cuda": "13.0", "python": "3.12"}
    old = resolved(ARM, torch={"release": "2.10.0", "use": "wheel"}, **wish)
    new = resolved(ARM, torch={"release": "2.11.0", "use": "wheel"}, **wish)
    assert (old.wheel_index[-5:], new.wheel_index) == ("cu130", "")


def test_a_wheel_that_is_not_published_is_refused() -> None:
    made = refused(torch={"release": "2.6.0", "use": "wheel"}, cuda="12.2", python="3.11")
    assert kinds(made) == ["wheel-cuda"]
    assert "11.8, 12.4, 12.6" in made.conflicts[0].second.statement
    last = refused(torch={"release": "2.15.0", "use": "wheel"}, cuda="12.6", python="3.12")
    assert kinds(last) == ["wheel-cuda"]


def test_a_wheel_without_code_for_the_gpu_is_refused() -> None:
    wish: dict[str, Any] = {"gpus": "GTX 1080", "python": "3.12"}
    made = refused(torch={"release": "2.13.0", "use": "wheel"}, cuda="13.0", **wish)
    assert kinds(made) == ["wheel-gpu"]
    assert resolved(torch={"release": "2.13.0", "use": "wheel"}, cuda="12.6", **wish)


def test_a_wheel_is_held_against_this_machine_s_own_gpus() -> None:
    volta = X86.model_copy(update={"gpus": (InstalledGpu(name="Tesla V100", arch="7.0"),)})
    wish: dict[str, Any] = {"torch": {"release": "2.9.1", "use": "wheel"}, "python": "3.12"}
    made = refused(volta, cuda="13.0", gpus="native", **wish)
    assert "wheel-gpu" in kinds(made)
    assert resolved(volta, cuda="12.8", gpus="native", **wish)


def test_a_wheel_whose_cudnn_left_the_gpu_behind_is_known_to_fail_there() -> None:
    wish: dict[str, Any] = {"cuda": "11.8", "python": "3.10", "gpus": "Tesla K80"}
    made = resolved(torch={"release": "2.7.1", "use": "wheel"}, **wish)
    (caution,) = (item for item in made.cautions if "cuDNN 9.1" in item.message)
    assert caution.standing == "fails"
    older = resolved(torch={"release": "2.3.1", "use": "wheel"}, **wish)
    assert "cuDNN" not in cautions(older)


def test_a_wheel_nobody_has_looked_into_says_so_where_gpus_are_named() -> None:
    wish: dict[str, Any] = {"torch": {"release": "2.13.0", "use": "wheel"}, "python": "3.12"}
    assert "nobody has looked" in cautions(resolved(cuda="12.9", gpus="V100", **wish))
    assert "nobody has looked" not in cautions(resolved(cuda="12.9", **wish))


# --------------------------------------------------------------------- a GPU without a CUDA


def test_cuda_is_chosen_for_a_gpu_and_says_why() -> None:
    made = resolved(torch="2.13.0", gpus="RTX 3090", python="3.12")
    assert made.cuda is not None
    assert made.cuda.version == "13.2"
    (why,) = (item for item in made.choices if item.subject == "CUDA")
    assert "no CUDA" in why.reason
    pascal = resolved(torch="2.13.0", gpus="GTX 1080", python="3.12")
    assert pascal.cuda is not None
    assert pascal.cuda.version == "12.6"


def test_native_takes_the_installed_toolkit_or_one_the_driver_runs() -> None:
    gpu = InstalledGpu(name="NVIDIA H200", arch="9.0")
    cuda = Toolkit(version="13.0.88", path="/usr/local/cuda", nvcc="/usr/local/cuda/bin/nvcc")
    wish: dict[str, Any] = {"torch": "2.11.0", "gpus": "native", "python": "3.12"}
    update: dict[str, Any] = {"gpus": (gpu,), "driver": "580.65.06", "cuda": (cuda,)}
    made = resolved(X86.model_copy(update=update), **wish)
    assert made.cuda is not None
    assert (made.cuda.version, made.cuda.arch_list) == ("13.0", "9.0")
    old = X86.model_copy(update={**update, "driver": "535.54.03"})
    older = resolved(old, **wish)
    assert older.cuda is not None
    assert older.cuda.version.startswith("12.")
    assert "GPUs are asked for" in refused(X86, **wish, cuda="none").conflicts[-1].message


# -------------------------------------------------------------------- words before the build


def test_another_platform_than_this_machine_s_is_said() -> None:
    assert "this machine is linux-x86_64" in cautions(
        resolved(torch="2.6.0", python="3.11", platform="linux-aarch64")
    )


def test_a_driver_too_old_to_run_it_is_said() -> None:
    here = X86.model_copy(update={"driver": "470.57.02"})
    assert "too old to run CUDA 13.0" in cautions(
        resolved(here, torch="2.11.0", cuda="13.0", python="3.12")
    )


def test_a_grace_hopper_is_not_built_for_on_x86() -> None:
    wish: dict[str, Any] = {"torch": "2.11.0", "cuda": "13.0", "gpus": "GH200", "python": "3.12"}
    assert "linux-aarch64" in cautions(resolved(X86, **wish))
    assert "GH200" not in cautions(resolved(ARM, **wish))


@pytest.mark.parametrize("feature", ["rocm", "xpu", "mps"])
def test_another_vendor_s_backend_is_refused_with_what_there_is(feature: str) -> None:
    made = refused(torch="2.8.0", python="3.12", features={feature: "on"})
    assert kinds(made) == ["feature-elsewhere"]
    assert re.search("TheRock|whl/xpu|macOS", made.conflicts[0].second.statement)


@pytest.mark.parametrize("platform", ["win-amd64", "darwin-arm64", "linux-riscv64"])
def test_another_system_is_refused_with_what_there_is(platform: str) -> None:
    made = refused(Host(platform=platform), torch="2.8.0", python="3.12")
    assert re.search("PyTorch publishes|Debian has", made.conflicts[0].cure)


def test_an_unknown_distribution_is_answered_with_the_known_ones() -> None:
    assert "debian-13" in problems('torch = "2.6.0"\nsystem = "gentoo"')


@pytest.mark.parametrize(
    ("name", "glibc", "wheels", "home"),
    [
        ("centos-7", "2.17", "torch 2.7 and newer need 2.28", "does not"),
        ("amzn-2", "2.26", "torch 2.7 and newer need 2.28", "ubuntu-16.04"),
        ("rocky-8.9", "2.28", "every published wheel runs there", "debian-10"),
        ("opensuse-leap-15.5", "2.31", "every published wheel", "ubuntu-20.04"),
        ("rhel-9.4", "2.34", "every published wheel", "ubuntu-20.04"),
    ],
)
def test_a_distribution_nothing_is_built_in_is_told_what_runs_there(
    name: str, glibc: str, wheels: str, home: str
) -> None:
    said = problems(f'torch = "2.6.0"\nsystem = "{name}"')
    assert all(part in said for part in (f"glibc {glibc}", wheels, home))


@pytest.mark.parametrize(
    ("name", "vendor"), [("MI300X", "AMD"), ("M3", "Apple"), ("Arc A770", "Intel")]
)
def test_another_vendor_s_card_is_never_taken_for_nvidia_s(name: str, vendor: str) -> None:
    said = problems(f'torch = "2.6.0"\ncuda = "12.6"\ngpus = ["{name}"]')
    assert vendor in said
    assert "did you mean" not in said.lower()


@pytest.mark.parametrize(
    ("text", "release", "ref"),
    [
        ("v1.9.1", "1.9.1", None),
        ("2.6", "2.6", None),
        ("v2.9.0-rc5", "2.9.0", "v2.9.0-rc5"),
        ("release/2.9", "2.9", "release/2.9"),
        ("nightly", releases(FACTS)[-1].version, "nightly"),
        ("main", releases(FACTS)[-1].version, "main"),
    ],
)
def test_the_command_line_takes_tags_and_branches(text: str, release: str, ref: str | None) -> None:
    torch = parse_recipe(compose({"torch": text}), "the command line", None).recipe.torch
    assert (torch.release, torch.ref) == (release, ref)


@pytest.mark.parametrize(
    ("torch", "codec"), [("2.12.0", "0.12.0"), ("2.12.1", "0.13.0"), ("2.13.0", "0.14.0")]
)
def test_torchcodec_is_the_one_that_came_out_with_its_torch(torch: str, codec: str) -> None:
    made = resolved(torch=torch, python="3.12", companions={"codec": "match"})
    assert [(item.package, item.version) for item in made.companions] == [("torchcodec", codec)]
    assert "libavcodec-dev" in made.apt


def test_the_blas_that_is_asked_for_is_the_one_the_plan_names() -> None:
    """Debian's source is built with OpenBLAS unless a feature names another, or the recipe."""
    wish = {"torch": "2.6.0", "cuda": "none", "source": {"kind": "debian"}}
    asked = resolved(**wish, features={"mkl": "static"})
    assert dict(build_env(asked))["BLAS"] == "MKL"
    assert dict(build_env(resolved(**wish, profile="minimal")))["BLAS"] == "OpenBLAS"
    named = resolved(**wish, build={"env": {"BLAS": "FlexiBLAS"}})
    assert named.feature("mkl") == "off"
    assert "USE_STATIC_MKL" not in dict(build_env(named))
    own = resolved(**wish, features={"mkl": "static"}, build={"env": {"BLAS": "FlexiBLAS"}})
    assert dict(build_env(own))["BLAS"] == "FlexiBLAS"


def test_on_aarch64_hot_functions_lie_together_unless_the_recipe_says_no() -> None:
    name = "USE_PRIORITIZED_TEXT_FOR_LD"
    arm = {"torch": "2.6.0", "cuda": "none", "platform": "linux-aarch64", "system": "debian-12"}
    assert dict(build_env(resolved(**arm)))[name] == "1"
    assert dict(build_env(resolved(**arm, build={"env": {name: "0"}})))[name] == "0"
    assert name not in dict(build_env(resolved(**{**arm, "torch": "2.3.1"})))
    assert name not in dict(build_env(resolved(torch="2.6.0", cuda="none")))


def test_a_gcc_that_nvcc_takes_and_then_fails_on_is_not_called_refused() -> None:
    recipe = Recipe.model_validate(
        {
            "torch": "1.12.1",
            "python": "3.9",
            "cuda": "11.5",
            "gpus": "8.0",
            "platform": "linux-x86_64",
            "build": {"compiler": "gcc-11"},
        }
    )
    made = resolve(Variant("gcc 11", recipe), FACTS, Host(platform="linux-x86_64"))
    assert isinstance(made, Refusal)
    found = [item for item in made.conflicts if item.kind == "compiler-cuda"]
    assert [item.standing for item in found] == ["fails"]
    assert "headers of gcc 11" in found[0].message


def test_a_board_of_which_no_cuda_is_said_has_its_own() -> None:
    def cuda_of(**more: object) -> str:
        recipe = Recipe.model_validate({"python": "3.6", "board": "jetson-nano", **more})
        made = resolve(Variant("board", recipe), FACTS, Host(platform="linux-x86_64"))
        assert isinstance(made, Resolution)
        return made.cuda.version if made.cuda else ""

    assert cuda_of(torch="1.10.0") == "10.2"
    assert cuda_of(torch="1.10.0", cuda="none") == ""
    spark = Recipe.model_validate({"torch": "2.9.1", "python": "3.12", "board": "dgx-spark"})
    made = resolve(Variant("board", spark), FACTS, Host(platform="linux-x86_64"))
    assert isinstance(made, Resolution)
    assert made.cuda is not None
    assert made.cuda.version == "13.0"


def test_an_images_distribution_has_the_compiler_that_is_asked_for() -> None:
    recipe = Recipe.model_validate(
        {
            "torch": "2.4.1",
            "python": "3.11",
            "cuda": "12.4",
            "gpus": "8.0",
            "platform": "linux-x86_64",
            "build": {"compiler": "gcc-13"},
            "image": {},
        }
    )
    made = resolve(Variant("image", recipe), FACTS, Host(platform="linux-x86_64"))
    assert isinstance(made, Resolution)
    assert made.system == "debian-13"


# --------------------------------------------------------------------- published wheels


def test_a_wheel_is_refused_where_glibc_is_older_than_it_needs() -> None:
    wish: dict[str, Any] = {"python": "3.11", "cuda": "11.8", "system": "ubuntu-18.04"}
    old = resolved(torch={"release": "2.6.0", "use": "wheel"}, **wish)
    assert old.wheel_index.endswith("/cu118")
    made = refused(torch={"release": "2.7.0", "use": "wheel"}, **wish)
    assert kinds(made) == ["wheel-libc"]
    assert "glibc 2.27" in made.conflicts[0].first.statement
    assert "ubuntu-20.04" in made.conflicts[0].cure
    # The same release, compiled there, needs no newer glibc.
    assert resolved(torch="2.6.0", python="3.11", system="ubuntu-20.04")


def test_of_2_6_only_the_wheel_for_cuda_12_6_needs_a_newer_glibc() -> None:
    here = X86.model_copy(update={"system": "ubuntu-18.04"})
    wheel = {"release": "2.6.0", "use": "wheel"}
    assert resolved(here, torch=wheel, python="3.11", cuda="12.4")
    made = refused(here, torch=wheel, python="3.11", cuda="12.6")
    assert kinds(made) == ["wheel-libc"]
    arm = {"system": "ubuntu-18.04", "platform": "linux-aarch64"}
    assert kinds(refused(ARM, torch=wheel, python="3.11", **arm)) == ["wheel-libc"]


@pytest.mark.parametrize(
    ("torch", "python", "platform", "kind"),
    [
        ("2.5.1", "3.13", "linux-aarch64", "wheel-python"),
        ("1.13.1", "3.11", "linux-aarch64", "wheel-python"),
        ("1.10.2", "3.10", "linux-x86_64", "wheel-python"),
        ("1.6.0", "3.8", "linux-aarch64", "wheel-platform"),
        ("1.4.1", "3.8", "linux-x86_64", "wheel-platform"),
    ],
)
def test_a_wheel_that_another_platform_has_is_refused(
    torch: str, python: str, platform: str, kind: str
) -> None:
    wish = {"python": python, "platform": platform, "system": "debian-12"}
    made = refused(torch={"release": torch, "use": "wheel"}, **wish)
    assert kinds(made) == [kind]
    assert made.nearest


@pytest.mark.parametrize(
    ("torch", "wish", "index", "version"),
    [
        ("2.6.0", {"python": "3.13t"}, "whl/cpu", "2.6.0"),
        ("2.6.0", {"python": "3.13"}, "", "2.6.0"),
        ("2.6.0", {"python": "3.13", "cuda": "12.4"}, "", "2.6.0"),
        ("2.6.0", {"python": "3.13t", "cuda": "12.4"}, "whl/cu124", "2.6.0+cu124"),
        ("1.8.2", {"python": "3.8", "cuda": "11.1"}, "whl/lts/1.8/cu111", "1.8.2+cu111"),
        ("1.8.2", {"python": "3.8"}, "whl/lts/1.8/cpu", "1.8.2"),
        (
            "2.4.1",
            {"python": "3.11", "cuda": "12.4", "platform": "linux-aarch64"},
            "whl/cu124",
            "2.4.1",
        ),
    ],
)
def test_a_wheel_comes_from_the_index_that_has_it(
    torch: str, wish: dict[str, Any], index: str, version: str
) -> None:
    made = resolved(torch={"release": torch, "use": "wheel"}, system="ubuntu-22.04", **wish)
    assert made.wheel_index.removeprefix("https://download.pytorch.org/") == index
    assert made.version == version


def test_the_gpu_of_a_board_is_looked_for_in_the_wheel() -> None:
    wheel = {"release": "2.9.1", "use": "wheel"}
    made = refused(torch=wheel, board="jetson-agx-orin", python="3.10", cuda="12.6")
    assert kinds(made) == ["wheel-gpu"]
    assert resolved(torch=wheel, board="jetson-agx-thor", python="3.12", cuda="13.0")


def test_an_old_cub_is_not_taken_for_a_newer_torch() -> None:
    made = refused(torch="2.5.1", cuda="11.4", python="3.10", gpus=["8.7"])
    assert (kinds(made), made.standing) == (["cuda-torch"], "fails")
    assert "nobody is known" in cautions(resolved(torch="2.3.1", cuda="11.4", gpus=["8.0"]))
    assert "nobody is known" not in cautions(resolved(torch="2.2.2", cuda="11.4", gpus=["8.0"]))


def test_a_distribution_without_the_compiler_is_not_chosen_for_its_python() -> None:
    wish = {"python": "3.7", "build": {"compiler": "gcc-9"}, "cuda": "11.2", "image": {}}
    made = resolved(torch="1.10.1", **wish)
    assert (made.system, made.python_from) == ("ubuntu-20.04", "source")
    assert made.compiler.cc == "gcc-9"


# ------------------------------------------------------------- names of platforms and systems


@pytest.mark.parametrize("name", ["aarch64", "arm64", "linux/arm64", "linux-arm64", "sbsa"])
def test_a_platform_has_many_names(name: str) -> None:
    assert resolved(torch="2.9.1", platform=name).platform == "linux-aarch64"
    assert resolved(torch="2.9.1", platform="linux/amd64").platform == "linux-x86_64"


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("win-amd64", "WSL"),
        ("macos-arm64", "MPS"),
        ("osx-64", "MPS"),
        ("musllinux_1_2_x86_64", "py3-torch"),
        ("linux-riscv64", "python3-torch"),
        ("linux-ppc64le", "python3-torch"),
        ("s390x", "whl/cpu"),
    ],
)
def test_of_another_platform_it_is_said_what_exists(name: str, exists: str) -> None:
    assert exists in problems(f'torch = "2.9.1"\nplatform = "{name}"\n')


@pytest.mark.parametrize(
    ("name", "meant"),
    [("jammy", "ubuntu-22.04"), ("debian-bookworm", "debian-12"), ("ubuntu24.04", "ubuntu-24.04")],
)
def test_a_distribution_is_recognised_by_its_codename(name: str, meant: str) -> None:
    assert meant in problems(f'torch = "2.9.1"\nsystem = "{name}"\n')


# ----------------------------------------------------------------------------- cuDNN and GPUs


@pytest.mark.parametrize(
    ("cudnn", "gpu", "runs"),
    [
        ("9.5", "RTX 5090", False),
        ("8.9", "RTX 5090", False),
        ("9.8", "RTX 5090", True),
        ("9.10", "V100", True),
        ("9.12", "V100", False),
        # Some 9 runs on each of them.
        ("9", "RTX 5090", True),
        ("9", "GTX 1080", True),
    ],
)
def test_a_cudnn_is_refused_for_gpus_it_does_not_run_on(cudnn: str, gpu: str, runs: bool) -> None:
    wish = {"cuda": {"version": "12.8", "cudnn": cudnn}, "gpus": [gpu], "python": "3.12"}
    made = outcome(torch="2.7.1", **wish)
    if runs:
        assert isinstance(made, Resolution)
    else:
        assert isinstance(made, Refusal)
        assert kinds(made) == ["cudnn-arch"]
        assert "cuDNN 9" in made.nearest
