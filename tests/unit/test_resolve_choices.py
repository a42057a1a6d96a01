"""What can exist is decided to the end, with a reason for every choice."""

from __future__ import annotations

from typing import Any

import pytest

from torchsmith.facts.files import Facts
from torchsmith.host.models import Compiler, Host, InstalledGpu, Python, Toolkit
from torchsmith.plan.conda import conda_requirements
from torchsmith.plan.render.dockerfile import render_base
from torchsmith.recipe.matrix import Variant, expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image
from torchsmith.resolve.models import Choice, Refusal, Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

FACTS = Facts()


def gcc(version: str) -> Compiler:
    return Compiler(kind="gcc", version=version, path=f"/opt/{version}/gcc", cxx="g++")


def host(**parts: Any) -> Host:
    plain: dict[str, Any] = {
        "platform": "linux-x86_64",
        "pythons": (Python(version="3.11.4", path="/usr/bin/python3", headers=True),),
        "compilers": (gcc("11.4.0"),),
    }
    return Host(**{**plain, **parts})


HERE = host()
J22 = {"python": "3.11", "system": "ubuntu-22.04"}


def resolved(machine: Host = HERE, /, **wish: Any) -> Resolution:
    (variant,) = expand(Recipe.model_validate(wish))
    outcome = resolve(variant, FACTS, machine)
    assert not isinstance(outcome, Refusal), [item.message for item in outcome.conflicts]
    assert all(choice.subject and choice.value and choice.reason for choice in outcome.choices)
    assert all(
        caution.message and not caution.message.endswith(".") for caution in outcome.cautions
    )
    return outcome


def chosen(made: Resolution, subject: str) -> Choice:
    (choice,) = (item for item in made.choices if item.subject == subject)
    return choice


def arch_list(made: Resolution) -> str:
    assert made.cuda is not None
    return made.cuda.arch_list


def cautions(made: Resolution) -> str:
    return "\n".join(f"{item.message} -> {item.cure}" for item in made.cautions)


# ------------------------------------------------------------------------------------ GPUs


def test_native_is_every_gpu_of_the_machine() -> None:
    two = host(
        gpus=(InstalledGpu(name="RTX 5090", arch="12.0"), InstalledGpu(name="RTX 3090", arch="8.6"))
    )
    made = resolved(two, torch="2.7.1", cuda="12.8", gpus="native", **J22)
    assert arch_list(made) == "8.6;12.0"
    assert "built and verified here" in chosen(made, "GPU of this machine").reason


def test_a_gpu_that_is_not_here_can_be_built_for_and_says_so() -> None:
    made = resolved(torch="2.6.0", cuda="12.6", gpus="H100", **J22)
    assert arch_list(made) == "9.0"
    assert "verified only where such a GPU is" in chosen(made, "GPU of this machine").reason


def test_ptx_is_kept_where_it_was_put_and_questioned_where_it_helps_little() -> None:
    assert (
        arch_list(resolved(torch="2.6.0", cuda="12.6", gpus="7.5;8.6+PTX", **J22)) == "7.5;8.6+PTX"
    )
    odd = resolved(torch="2.6.0", cuda="12.6", gpus="8.0+PTX;8.6", **J22)
    assert arch_list(odd) == "8.0+PTX;8.6"
    assert "put it on 8.6" in cautions(odd)


def test_9_0a_runs_on_hopper_alone() -> None:
    made = resolved(torch="2.5.1", cuda="12.4", gpus="sm_90a", **J22)
    assert arch_list(made) == "9.0a"
    assert "exactly compute capability 9.0" in cautions(made)
    assert "add 9.0" in cautions(made)


@pytest.mark.parametrize("flags", [[], ["-Xfatbin", "-compress-all"]])
def test_a_list_too_long_to_link_is_warned_of_with_the_cure(flags: list[str]) -> None:
    long = "5.0;5.2;6.0;6.1;7.0;7.5;8.0;8.6;8.9;9.0"
    made = resolved(torch="2.6.0", cuda={"version": "12.6", "nvcc_flags": flags}, gpus=long, **J22)
    assert "R_X86_64_GOTPCREL" in cautions(made)
    assert ("-compress-all" in cautions(made)) is (not flags)
    assert "fewer GPUs" in cautions(made)


def test_static_cuda_libraries_leave_room_for_fewer() -> None:
    wish = {
        "torch": "2.6.0",
        "cuda": {"version": "12.6", "nvcc_flags": ["-Xfatbin", "-compress-all"]},
        "gpus": "5.0;5.2;6.0;6.1;7.0;7.5;8.0;8.6;9.0",
    }
    assert "R_X86_64_GOTPCREL" not in cautions(resolved(**wish, **J22))
    made = resolved(**wish, features={"cudnn": "static", "nccl": "static"}, **J22)
    assert "R_X86_64_GOTPCREL" in cautions(made)
    assert "not static" in cautions(made)


def test_orin_on_x86_is_warned_of() -> None:
    made = resolved(torch="2.3.1", cuda="12.1", gpus="8.7", **J22)
    assert "8.7 is a Jetson's GPU, but the platform is linux-x86_64" in cautions(made)


def test_thor_is_called_what_its_cuda_calls_it() -> None:
    wish = {"gpus": "Jetson AGX Thor", "platform": "linux-aarch64", "python": "3.12"}
    assert arch_list(resolved(torch="2.8.0", cuda="12.9", system="ubuntu-24.04", **wish)) == "10.1"
    assert arch_list(resolved(torch="2.9.1", cuda="13.0", system="ubuntu-24.04", **wish)) == "11.0"


def test_an_arm_server_gets_pytorch_s_own_list_for_arm() -> None:
    server = host(platform="linux-aarch64")
    assert arch_list(resolved(server, torch="2.5.1", cuda="12.4", **J22)) == "9.0"
    hopper = resolved(server, torch="2.12.1", cuda="13.0", gpus="GH200", **J22)
    assert arch_list(hopper) == "9.0"


# ----------------------------------------------------------------------------- CUDA, Python


def test_a_bare_major_is_the_newest_this_torch_is_published_for() -> None:
    made = resolved(torch="2.6.0", cuda="12", **J22)
    assert made.cuda is not None
    assert made.cuda.version == "12.6"
    assert chosen(made, "CUDA").value == "12.6"


def test_the_host_s_cuda_is_the_newest_that_fits() -> None:
    several = host(
        cuda=tuple(
            Toolkit(version=version, path=f"/usr/local/cuda-{version}", nvcc="nvcc")
            for version in ("13.0.88", "12.6.85", "11.8.89")
        )
    )
    made = resolved(several, torch="2.6.0", cuda="host", python="3.11")
    assert made.cuda is not None
    assert (made.cuda.version, made.cuda.toolkit) == ("12.6", "system")


def test_a_toolkit_newer_than_the_release_is_taken_with_our_patches_and_said() -> None:
    made = resolved(torch="2.6.0", cuda="13.0", gpus=["9.0"], **J22)
    assert "torch 2.6.0 with CUDA 13.0 is not upstream's" in cautions(made)
    assert "cuda = '12.6'" in cautions(made)
    assert "torch-2.6-cuda-13.patch" in [patch.name for patch in made.patches]


def test_upstream_s_own_toolkit_needs_no_such_patches() -> None:
    made = resolved(torch="2.6.0", cuda="12.6", gpus=["9.0"], **J22)
    assert "not upstream's" not in cautions(made)
    assert "torch-2.6-cuda-13.patch" not in [patch.name for patch in made.patches]


def test_a_bare_13_is_the_one_the_patches_were_made_for() -> None:
    made = resolved(torch="2.6.0", cuda="13", gpus=["9.0"], **J22)
    assert made.cuda is not None
    assert made.cuda.version == "13.0"


def test_the_host_s_toolkit_is_patched_for_only_where_none_of_upstream_s_is_there() -> None:
    new = Toolkit(version="13.0.88", path="/usr/local/cuda-13.0", nvcc="nvcc")
    old = Toolkit(version="12.6.85", path="/usr/local/cuda-12.6", nvcc="nvcc")
    for toolkits, version in (((new,), "13.0"), ((new, old), "12.6")):
        machine = host(cuda=toolkits)
        made = resolved(machine, torch="2.6.0", cuda="host", gpus=["9.0"], python="3.11")
        assert made.cuda is not None
        assert made.cuda.version == version


def test_the_build_of_a_toolkit_can_be_named_and_comes_back() -> None:
    made = resolved(torch="1.8.0", cuda="11.0.221", python="3.8", system="ubuntu-20.04")
    assert made.cuda is not None
    assert (made.cuda.version, made.cuda.build) == ("11.0", "11.0.221")


def test_cuda_13_comes_from_pypi_where_it_is_not_installed() -> None:
    made = resolved(torch="2.9.1", cuda="13.0", python="3.11")
    assert made.cuda is not None
    assert made.cuda.toolkit == "wheels"


def test_in_a_container_python_host_is_the_container_s() -> None:
    made = resolved(torch="2.6.0", python="host", system="debian-12")
    assert (made.python, made.python_from) == ("3.11", "system")
    other = resolved(torch="2.6.0", python="host", system="ubuntu-24.04")
    assert (other.python, other.python_from) == ("3.12", "system")


def test_an_image_without_a_named_system_takes_its_python_from_there_too() -> None:
    made = resolved(torch="2.6.0", python="host", cuda="12.6", image={"name": "x"})
    assert (made.system, made.python, made.python_from) == ("ubuntu-24.04", "3.12", "system")
    assert made.container


# ------------------------------------------------------------------------------- compilers


def test_a_bare_gcc_major_is_its_last_patch_release() -> None:
    made = resolved(
        torch="2.2.2", python="3.11", system="ubuntu-22.04", build={"compiler": "gcc-9"}
    )
    assert made.compiler.version == "9"


def test_cuda_11_5_does_not_take_ubuntu_s_gcc_11() -> None:
    made = resolved(torch="1.11.0", cuda="11.5", python="3.10", system="ubuntu-20.04")
    assert made.compiler.version == "9.4.0"
    base = {"base": "example.org/cuda:11.5"}
    newer = resolved(
        torch="1.11.0",
        cuda="11.5",
        python="3.10",
        system="ubuntu-22.04",
        image={"name": "x"} | base,
    )
    assert newer.compiler.cc == "gcc-10"


def test_the_newest_compiler_here_that_fits_is_taken() -> None:
    several = host(compilers=(gcc("15.1.0"), gcc("13.2.0"), gcc("9.4.0")))
    made = resolved(several, torch="2.6.0", cuda="12.6", python="3.11")
    assert made.compiler.version == "13.2.0"


def test_no_compiler_here_is_said_with_the_command_that_brings_one() -> None:
    made = resolved(host(compilers=(gcc("15.1.0"),)), torch="2.6.0", cuda="12.2", python="3.11")
    assert made.compiler.cc == "gcc-11"
    assert "apt-get install gcc-11 g++-11" in cautions(made)


def test_a_toolkit_that_is_not_here_is_said_with_a_distribution_that_has_one() -> None:
    made = resolved(host(cuda=()), torch="2.6.0", cuda="12.6", python="3.11")
    assert "this machine has no CUDA 12.6 (here: none)" in cautions(made)
    assert "system = 'ubuntu-" in cautions(made)
    inside = resolved(
        host(cuda=()), torch="2.6.0", cuda="12.6", python="3.10", system="ubuntu-22.04"
    )
    assert "has no CUDA" not in cautions(inside)


def test_a_compiler_is_called_as_distributions_call_it() -> None:
    made = resolved(torch="2.6.0", python="3.11", build={"compiler": "gcc13"})
    assert (made.compiler.cc, made.compiler.cxx) == ("gcc-13", "g++-13")


def test_a_compiler_asked_for_that_is_not_here_is_said() -> None:
    made = resolved(torch="2.6.0", python="3.11", build={"compiler": "clang-14"})
    assert "this machine has no clang-14 -> apt-get install clang-14" in cautions(made)


def test_gcc_without_a_number_is_the_host_s() -> None:
    made = resolved(torch="2.6.0", python="3.11", build={"compiler": "gcc"})
    assert made.compiler.version == "11.4.0"


# --------------------------------------------------------------------------------- boards


def test_the_jetpack_is_one_whose_cuda_and_cudnn_torch_takes() -> None:
    old = resolved(torch="1.5.1", board="jetson-tx2", cuda="host", python="host")
    assert old.jetpack == "4.3"
    assert old.cuda is not None
    assert (old.cuda.version, old.cuda.cudnn) == ("10.0", "7.6.3")
    new = resolved(torch="1.10.0", board="jetson-tx2", cuda="host", python="host")
    assert new.jetpack == "4.6"


@pytest.mark.parametrize(
    ("board", "torch", "jetpack", "cuda"),
    [
        ("jetson-tx2", "1.10.0", "4.6", "10.2"),
        ("jetson-agx-orin", "2.6.0", "6.2", "12.6"),
        ("jetson-agx-orin", "1.13.1", "5.1", "11.4"),
        ("dgx-spark", "2.9.0", "", "13.0"),
    ],
)
def test_who_names_a_board_and_no_cuda_means_the_boards_own(
    board: str, torch: str, jetpack: str, cuda: str
) -> None:
    made = resolved(torch=torch, board=board)
    assert made.cuda is not None
    assert (made.jetpack, made.cuda.version) == (jetpack, cuda)
    assert resolved(torch=torch, board=board, cuda="none", python=made.python).cuda is None


def test_the_system_chooses_the_jetpack() -> None:
    made = resolved(
        torch="2.1.2", board="jetson-agx-orin", cuda="11.4", system="ubuntu-20.04", python="host"
    )
    assert (made.jetpack, made.python) == ("5.1", "3.8")


def test_a_board_may_run_a_torch_older_than_its_gpu() -> None:
    made = resolved(torch="2.0.1", board="jetson-agx-orin", cuda="11.4", python="host")
    assert arch_list(made) == "8.7"


def test_what_a_board_lacks_is_off_and_said() -> None:
    made = resolved(torch="1.10.0", board="jetson-tx2", cuda="10.2", python="host")
    assert made.feature("nccl") == "off"
    assert "the Jetson TX2 has no nccl" in cautions(made)


def test_a_board_without_cuda_is_told_that_its_gpu_stays_idle() -> None:
    made = resolved(torch="2.6.0", board="jetson-agx-orin", cuda="none", python="host")
    assert "asks for no CUDA: this torch does not use the Jetson AGX Orin's GPU" in cautions(made)
    with_it = resolved(torch="2.6.0", board="jetson-agx-orin", cuda="host", python="host")
    assert with_it.cuda is not None
    assert "no CUDA" not in cautions(with_it)


def test_a_board_of_which_nothing_is_said_takes_its_own_cuda_and_warns_of_nothing() -> None:
    (variant,) = expand(Recipe.model_validate({"torch": "1.8.1", "board": "jetson-nano"}))
    made = resolve(variant, FACTS, HERE)
    assert isinstance(made, Resolution)
    assert made.cuda is not None
    assert "no CUDA" not in cautions(made)
    off = {"torch": "1.8.1", "board": "jetson-nano", "features": {"cuda": "off"}}
    (variant,) = expand(Recipe.model_validate(off))
    made = resolve(variant, FACTS, HERE)
    assert isinstance(made, Resolution)
    assert "this torch does not use the Jetson Nano's GPU" in cautions(made)


# -------------------------------------------------------------------- companions, features


def test_a_branch_of_a_companion_is_built_as_the_release_that_goes_with_torch() -> None:
    """The Makefile's `*_TAG` may be tags or branches."""
    wish = {"vision": "main", "text": "release/0.10", "audio": "0.9.1"}
    made = resolved(torch="1.9.1", python="3.8", system="ubuntu-20.04", companions=wish)
    built = {item.name: (item.version, item.tag, bool(item.commit)) for item in made.companions}
    assert built == {
        "vision": ("0.10.1", "main", False),
        "text": ("0.10.1", "release/0.10", False),
        "audio": ("0.9.1", "v0.9.1", True),
    }
    assert "main of torchvision is built as 0.10.1" in cautions(made)


def test_the_lts_release_has_companions_of_its_own() -> None:
    made = resolved(
        torch="1.8.2",
        python="3.8",
        system="ubuntu-20.04",
        companions={"vision": "match", "audio": "match", "text": "match"},
    )
    assert [item.version for item in made.companions] == ["0.9.2", "0.8.2", "0.9.2"]


def test_audio_stopped_following_torch_and_goes_on_working() -> None:
    made = resolved(torch="2.15.0", python="3.12", companions={"audio": "match"})
    assert [item.version for item in made.companions] == ["2.11.0"]


def test_text_0_18_goes_with_2_3_1_under_any_spelling() -> None:
    for spelling in ("match", "0.18", "0.18.0"):
        made = resolved(torch="2.3.1", python="3.11", companions={"text": spelling})
        assert [item.version for item in made.companions] == ["0.18.0"]


def test_distributed_in_a_minimal_build_brings_what_it_cannot_do_without() -> None:
    made = resolved(torch="2.6.0", python="3.11", profile="minimal", features={"distributed": "on"})
    assert made.feature("tensorpipe") == "on"
    assert dict(made.feature_env).get("USE_TENSORPIPE") != "0"
    assert resolved(torch="2.6.0", python="3.11", profile="minimal").feature("tensorpipe") == "off"


def test_a_minimal_torch_has_what_torch_compile_imports() -> None:
    made = resolved(torch="2.6.0", python="3.11", profile="minimal")
    assert made.feature("functorch") == "on"
    assert dict(made.feature_env).get("BUILD_FUNCTORCH") != "0"


def test_gold_and_mpi_do_not_go_together_and_the_default_gives_way() -> None:
    made = resolved(torch="2.6.0", python="3.11", features={"gold": "on"})
    assert made.feature("mpi") == "off"
    assert dict(made.feature_env)["USE_MPI"] == "0"


def test_turning_off_what_a_release_never_had_is_no_conflict() -> None:
    resolved(torch="1.9.1", python="3.8", features={"flash_attention": "off", "cuda": "off"})


# ---------------------------------------------------------------------------------- source


def test_a_ref_is_taken_as_it_is_and_a_release_by_its_commit() -> None:
    ref = resolved(torch={"release": "2.6.0", "ref": "main"}, python="3.11").source
    assert (ref.ref, ref.commit) == ("main", "")
    tag = resolved(torch="2.6.0", python="3.11").source
    assert (tag.ref, tag.commit[:8]) == ("v2.6.0", "1eba9b3a")
    own = resolved(torch={"release": "2.6.0", "ref": "x", "commit": "1" * 40}, python="3.11").source
    assert own.commit == "1" * 40


def test_resolving_twice_gives_the_same() -> None:
    recipe = Recipe.model_validate({"torch": "2.6.0", "cuda": "12.6", "gpus": ["8.6"], **J22})
    variant = Variant("same", recipe)
    assert resolve(variant, FACTS, HERE) == resolve(variant, FACTS, HERE)


DEBIAN_12 = host(system="debian-12", compilers=(gcc("11.3.0"), gcc("12.2.0")))


def test_a_base_image_is_named_in_full() -> None:
    nvidias = resolved(torch="2.6.0", cuda="12.6", **J22)
    assert nvidias.base_image == "docker.io/nvidia/cuda:12.6.3-cudnn-devel-ubuntu22.04"
    plain = resolved(torch="2.6.0", python="3.11", system="debian-12")
    assert plain.base_image == "docker.io/library/debian:12"


def test_a_base_image_of_one_s_own_stays_as_written() -> None:
    made = resolved(torch="2.6.0", cuda="12.6", image={"base": "lab/cuda:12"}, **J22)
    assert made.base_image == "lab/cuda:12"
    # What it holds is not ours to add to.
    assert made.cuda is not None
    assert not made.cuda.apt


def test_where_nvidia_deleted_its_image_its_packages_are_put_on_the_distribution_s() -> None:
    made = resolved(torch="1.1.0", python="3.5", cuda="9.0", system="ubuntu-16.04")
    assert made.base_image == "docker.io/library/ubuntu:16.04"
    assert made.cuda is not None
    assert made.cuda.toolkit == "apt"
    assert {"cuda-minimal-build-9-0", "libcudnn7", "libcudnn7-dev"} <= set(made.apt)
    assert [item.key for item in made.cuda.repositories] == ["3bf863cc.pub", "7fa2af80.pub"]
    assert "2023-07" in chosen(made, "CUDA toolkit").reason
    assert "gone from Docker Hub since 2023-07" in cautions(made)


def test_an_image_nvidia_may_delete_is_used_and_the_way_out_is_said() -> None:
    wish: dict[str, Any] = {"torch": "1.8.0", "python": "3.8", "system": "ubuntu-20.04"}
    made = resolved(cuda="11.0", **wish)
    assert made.base_image.startswith("docker.io/nvidia/cuda:11.0.3-")
    assert "cuda.toolkit = 'apt'" in cautions(made)
    assembled = resolved(cuda={"version": "11.0", "toolkit": "apt"}, **wish)
    assert assembled.base_image == "docker.io/library/ubuntu:20.04"
    assert "cuda-libraries-dev-11-0" in assembled.apt


def test_a_distribution_to_build_on_is_one_that_the_cuda_can_be_brought_to() -> None:
    made = resolved(torch="1.5.1", python="3.5", cuda="9.2", image={"name": "old"})
    assert made.system == "ubuntu-16.04"
    assert "cuda-minimal-build-9-2" in made.apt


def test_an_image_the_recipe_names_and_nvidia_deleted_is_said() -> None:
    base = "nvidia/cuda:10.2-cudnn7-devel-ubuntu18.04"
    made = resolved(
        torch="1.8.0", python="3.6", cuda="10.2", system="ubuntu-18.04", image={"base": base}
    )
    assert made.base_image == base
    assert f"{base} is gone from Docker Hub" in cautions(made)


@pytest.mark.parametrize(
    ("start", "system", "packages", "absent"),
    [
        (
            "nvidia/cuda:8.0-cudnn6-devel-ubuntu16.04",
            "docker.io/library/ubuntu:16.04",
            {"cuda-core-8-0", "libcudnn6", "libcudnn6-dev"},
            set(),
        ),
        (
            "docker.io/nvidia/cuda:10.2-runtime-ubuntu18.04",
            "docker.io/library/ubuntu:18.04",
            {"cuda-libraries-10-2"},
            {"cuda-minimal-build-10-2", "libcudnn7"},
        ),
    ],
)
def test_a_base_image_of_one_s_own_on_a_deleted_one_is_made_of_its_packages(
    start: str, system: str, packages: set[str], absent: set[str]
) -> None:
    wish: dict[str, object] = {
        "torch": {"release": "1.8.0", "use": "wheel"},
        "python": "3.6",
        "cuda": "10.2",
        "image": {"name": "mine", "foundation": {"name": "mine/base", "from": start}},
    }
    made = resolved(platform="linux-x86_64", **wish)
    assert made.foundation is not None
    assert made.foundation.start == system
    assert packages <= set(made.foundation.cuda.apt)
    assert not absent & set(made.foundation.cuda.apt)
    assert "gone" not in cautions(made)
    text = render_base(Image.model_validate(wish["image"]), made)
    assert f"FROM {system}\n" in text
    assert f"FROM {start}" not in text


@pytest.mark.parametrize(
    "image",
    [
        {"foundation": {"name": "mine/base", "from": "nvidia/cuda:8.0-cudnn6-devel-ubuntu16.04"}},
        {"base": "docker.io/nvidia/cuda:12.4.1-devel-ubuntu20.04"},
        {"base": "debian:12"},
    ],
)
def test_an_image_of_another_distribution_than_the_recipe_s_is_refused(
    image: dict[str, object],
) -> None:
    wish: dict[str, object] = {
        "torch": {"release": "2.6.0", "use": "wheel"},
        "python": "3.10",
        "cuda": "12.4",
        "system": "ubuntu-22.04",
        "image": {"name": "mine", **image},
    }
    (variant,) = expand(Recipe.model_validate(wish))
    outcome = resolve(variant, FACTS, HERE)
    assert isinstance(outcome, Refusal)
    (conflict,) = outcome.conflicts
    assert "not ubuntu-22.04" in conflict.message
    assert "name an image of ubuntu-22.04 in image." in conflict.cure
    # One whose name tells nothing is taken at its word.
    for name in ("registry.example.org/ours:1", "nvidia/cuda:12.4.1-devel-ubuntu22.04"):
        (variant,) = expand(Recipe.model_validate({**wish, "image": {"base": name}}))
        assert isinstance(resolve(variant, FACTS, HERE), Resolution)


def test_a_deleted_image_whose_packages_nobody_has_is_said() -> None:
    start = "nvidia/cuda:8.0-devel-ubuntu14.04"
    made = resolved(
        torch={"release": "1.8.0", "use": "wheel"},
        python="3.6",
        cuda="10.2",
        platform="linux-x86_64",
        image={"name": "mine", "foundation": {"name": "mine/base", "from": start}},
    )
    assert made.foundation is None
    assert f"{start} is gone from Docker Hub" in cautions(made)
    assert "image.foundation.from" in cautions(made)


@pytest.mark.parametrize(
    ("system", "cuda", "torch", "compiler"),
    [("debian-12", "11.8", "2.3.1", "g++-11"), ("debian-13", "12.4", "2.6.0", "g++-13")],
)
@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
@pytest.mark.parametrize("toolkit", [None, "debian"])
def test_debian_s_own_cuda_comes_with_its_compiler(
    system: str, cuda: str, torch: str, compiler: str, platform: str, toolkit: str | None
) -> None:
    made = resolved(
        torch=torch,
        python="3.11",
        platform=platform,
        system=system,
        gpus=["8.7"],
        cuda={"version": cuda, "toolkit": toolkit},
    )
    assert made.cuda is not None
    assert made.cuda.toolkit == "debian"
    assert made.base_image == f"docker.io/library/debian:{system[-2:]}"
    # XNNPACK of torch 2.6 does not compile with gcc 13 on AArch64.
    fails = (torch, platform) == ("2.6.0", "linux-aarch64")
    assert made.compiler.cxx == ("g++-12" if fails else compiler)
    assert "nvidia-cuda-toolkit" in made.apt
    assert made.feature("cudnn") == "off"


def test_on_a_debian_machine_its_own_cuda_is_what_to_install() -> None:
    wish: dict[str, Any] = {"torch": "2.3.1", "python": "3.11", "gpus": ["8.6"]}
    for toolkit in (None, "debian"):
        made = resolved(DEBIAN_12, cuda={"version": "11.8", "toolkit": toolkit}, **wish)
        assert made.cuda is not None
        assert made.cuda.toolkit == "debian"
        assert "nvidia-cuda-toolkit" in made.apt
        assert made.compiler.version == "11.3.0"
        assert "apt-get install nvidia-cuda-toolkit" in cautions(made)
    installed = DEBIAN_12.model_copy(
        update={"cuda": (Toolkit(version="11.8.89", path="/usr", nvcc="/usr/bin/nvcc"),)}
    )
    here = resolved(installed, cuda={"version": "11.8", "toolkit": "debian"}, **wish)
    assert "apt-get install" not in cautions(here)


def test_asking_for_a_release_of_nccl_takes_it_instead_of_torch_s_own() -> None:
    made = resolved(torch="2.6.0", cuda={"version": "12.6", "nccl": "2.21"}, **J22)
    assert made.feature("nccl") == "system"
    assert {"libnccl2", "libnccl-dev"} <= set(made.apt)
    bundled = resolved(
        torch="2.6.0", cuda={"version": "12.6", "nccl": "2.21"}, features={"nccl": "on"}, **J22
    )
    assert "cuda.nccl = '2.21' is not used" in cautions(bundled)


def test_nccl_of_the_wheels_needs_no_package() -> None:
    made = resolved(
        torch="2.11.0",
        python="3.11",
        system="debian-12",
        cuda={"version": "13.0", "toolkit": "wheels"},
        features={"nccl": "system"},
    )
    assert not [name for name in made.apt if "nccl" in name]


def test_what_no_variable_decides_is_not_looked_for_in_cmakes_cache() -> None:
    made = resolved(torch="2.6.0", python="3.11", cuda="12.6", gpus=["8.6"], profile="minimal")
    assert dict(made.features)["cupti"] == "off"
    assert "USE_CUPTI_SO" not in dict(made.expected_cache)


def test_a_version_that_the_recipe_asks_of_a_package_is_asked_for() -> None:
    asked = ["numpy==1.26.4", "setuptools==69.5.1", "six==1.15", "wheel", "numpy-stl"]
    requires = resolved(torch="2.6.0", python="3.11", build={"pip": asked}).requires
    # What torch itself needs stays asked for.
    for text in (*asked, "numpy<3", "setuptools<80"):
        assert text in requires
    assert [text for text in requires if text.startswith("six")] == ["six==1.15"]
    assert conda_requirements(requires)["numpy"] == "numpy <3,==1.26.4"


def test_free_threaded_3_13_gets_the_last_numpy_with_wheels_for_it() -> None:
    assert "numpy<2.5" in resolved(torch="2.11.0", python="3.13t", cuda="none").requires
    assert "numpy<2.5" not in resolved(torch="2.11.0", python="3.13", cuda="none").requires


def test_python_3_5_gets_what_can_be_installed_for_it() -> None:
    old = {"torch": "1.1.0", "python": "3.5", "system": "ubuntu-16.04", "cuda": "none"}
    assert {"cffi<1.15", "numpy<1.18"} <= set(resolved(**old).requires)
    own = resolved(**old, build={"pip": ["cffi==1.14.0"]}).requires
    assert [text for text in own if text.startswith("cffi")] == ["cffi==1.14.0"]
    newer = resolved(**{**old, "python": "3.6"}).requires
    assert {"cffi", "numpy<2"} <= set(newer)
