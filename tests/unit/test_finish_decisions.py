"""What finishing decides: search paths, tags, whose libraries, what metadata says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from torchsmith.errors import HostError, UsageError
from torchsmith.package.finish.audit import Policies
from torchsmith.package.finish.design import (
    Fields,
    file_name,
    installed_at,
    labelled,
    new_requirements,
    retagged,
    search_path,
    with_version,
)
from torchsmith.package.finish.outside import Rules, bringer, read_pins, settle
from torchsmith.recipe.outcome import Libraries
from torchsmith.verify.binary import Library

pytestmark = pytest.mark.unit

POLICIES = Policies("x86_64")


@pytest.mark.parametrize(
    ("search", "wanted", "now"),
    [
        (["/home/me/build/lib", "$ORIGIN"], [], ["$ORIGIN"]),
        (["$ORIGIN/../lib"], [], ["$ORIGIN"]),
        (["${ORIGIN}"], [], ["$ORIGIN"]),
        (["$ORIGIN/gone"], [], []),
        (["$ORIGIN/../../nvidia/nccl/lib"], [], ["$ORIGIN/../../nvidia/nccl/lib"]),
        (["$ORIGIN/../../../.."], [], ["$ORIGIN/../../../.."]),
        (["$ORIGIN/../../../../../tmp"], [], []),
        (["lib", ".", "$ORIGIN/$LIB"], [], []),
        (["/build"], ["torch/lib", "torch.libs"], ["$ORIGIN", "$ORIGIN/../../torch.libs"]),
        (["$ORIGIN"], ["torch/lib"], ["$ORIGIN"]),
        (["/usr/local/cuda/lib64"], [], []),
    ],
)
def test_a_search_path_starts_at_the_library(
    search: list[str], wanted: list[str], now: list[str]
) -> None:
    library = Library("torch/lib/libtorch.so", search=tuple(search))
    folders = {".", "torch", "torch/lib", "torch.libs"}
    assert list(search_path(library, library.path, folders, wanted, system=False)) == now


def test_the_place_of_cuda_stays_where_the_systems_libraries_are_used() -> None:
    library = Library("a/b.so", search=("/usr/local/cuda-12.6/lib64", "/home/me/lib"))
    found = search_path(library, "a/b.so", {"a"}, [], system=True)
    assert found == ("/usr/local/cuda-12.6/lib64",)


def test_files_of_a_data_folder_go_where_installers_put_them() -> None:
    assert installed_at("a-1.data/platlib/a/b.so") == "a/b.so"
    assert installed_at("a-1.data/scripts/run") is None
    assert installed_at("a/b.so") == "a/b.so"


@pytest.mark.parametrize(
    ("required", "platform", "reason"),
    [
        (["GLIBC_2.2.5"], "manylinux1_x86_64.manylinux_2_5_x86_64", "nothing it needs is newer"),
        (
            ["GLIBC_2.17", "GLIBC_2.2.5"],
            "manylinux2014_x86_64.manylinux_2_17_x86_64",
            "GLIBC_2.17, for a.so",
        ),
        (["GLIBC_2.28"], "manylinux_2_28_x86_64", "GLIBC_2.28, for a.so"),
        (["GLIBC_2.2.5", "GLIBCXX_3.4.30"], "manylinux_2_35_x86_64", "GLIBCXX_3.4.30, for a.so"),
        (["GLIBC_2.99"], "linux_x86_64", "GLIBC_2.99, for a.so"),
        # No policy speaks of OpenSSL's.
        (["OPENSSL_3.0.0"], "manylinux1_x86_64.manylinux_2_5_x86_64", "nothing it needs is newer"),
    ],
)
def test_the_tag_is_the_lowest_that_is_true(
    required: list[str], platform: str, reason: str
) -> None:
    tag = POLICIES.tag([Library("a.so", required=tuple(required))], ())
    assert (str(tag), tag.reason) == (platform, reason)


def test_a_library_that_only_newer_systems_have_counts_too() -> None:
    tag = POLICIES.tag([Library("a.so", needed=("libmvec.so.1",), required=("GLIBC_2.2.5",))], ())
    assert str(tag) == "manylinux_2_24_x86_64"
    assert "libmvec.so.1" in tag.reason


def test_what_must_be_on_the_machine_leaves_no_promise() -> None:
    tag = POLICIES.tag([Library("a.so")], ["libopenblas.so.0"])
    assert not tag.promises
    assert "libopenblas.so.0" in tag.reason


def test_a_machine_without_policies_is_refused() -> None:
    with pytest.raises(UsageError, match="sparc"):
        Policies("sparc")


def decide(
    needed: Sequence[str],
    libraries: Libraries,
    distribution: str = "demo",
    there: dict[str, Library] | None = None,
    pins: dict[str, str] | None = None,
) -> dict[str, tuple[str, str]]:
    known = there or {}
    made = settle(
        [Library("demo/a.so", needed=tuple(needed)), Library("demo/libown.so")],
        Rules(
            distribution,
            libraries,
            pins or {},
            POLICIES,
            lambda name, folders: Path(__file__) if name in known else None,
            lambda path: next(iter(known.values())),
        ),
    )
    return {item.name: (item.origin, item.becomes) for item in made.outside}


def test_what_every_linux_has_and_what_is_inside_is_no_matter() -> None:
    needed = ["libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2", "libown.so"]
    assert decide(needed, "vendor") == {}


def test_torchs_own_libraries_and_the_drivers_are_never_packed() -> None:
    found = decide(["libc10.so", "libtorch_cpu.so", "libcuda.so.1"], "vendor")
    assert {name: origin for name, (origin, _) in found.items()} == {
        "libc10.so": "torch",
        "libtorch_cpu.so": "torch",
        "libcuda.so.1": "driver",
    }


def test_torch_itself_must_have_them() -> None:
    with pytest.raises(HostError, match=r"libc10\.so"):
        decide(["libc10.so"], "vendor", "torch")


def test_what_is_nowhere_is_told_with_who_needs_it() -> None:
    with pytest.raises(HostError, match=r"libmagic\.so\.1 \(for demo/a\.so\)"):
        decide(["libmagic.so.1"], "vendor")


def test_mkl_cannot_be_moved() -> None:
    with pytest.raises(UsageError, match="MKL"):
        decide(["libmkl_core.so.2"], "vendor")


def test_the_system_keeps_what_is_left_to_it() -> None:
    assert decide(["libmagic.so.1", "libmkl_core.so.2", "libcudart.so.12"], "system") == {
        "libmagic.so.1": ("system", ""),
        "libmkl_core.so.2": ("system", ""),
        "libcudart.so.12": ("system", ""),
    }


def test_a_packed_library_gets_a_name_of_its_own() -> None:
    found = decide(["libx.so.1"], "vendor", there={"libx.so.1": Library("x", soname="libx.so.1")})
    origin, name = found["libx.so.1"]
    assert origin == "vendor"
    assert name.startswith("libx-")
    assert name.endswith(".so.1")
    assert len(name) == len("libx-12345678.so.1")


def test_one_that_is_opened_by_name_keeps_it() -> None:
    there = {"libcudnn.so.9": Library("x", soname="libcudnn.so.9")}
    assert decide(["libcudnn.so.9"], "vendor", there=there) == {
        "libcudnn.so.9": ("vendor", "libcudnn.so.9")
    }


LINUX = '; platform_system == "Linux"'


@pytest.mark.parametrize(
    ("library", "pins", "requirement", "folder"),
    [
        (
            "libcublas.so.12",
            ["nvidia-cublas-cu12==12.6.4.1"],
            "nvidia-cublas-cu12==12.6.4.1",
            "cublas",
        ),
        (
            "libcublasLt.so.12",
            ["nvidia-cublas-cu12==12.6.4.1"],
            "nvidia-cublas-cu12==12.6.4.1",
            "cublas",
        ),
        (
            "libcudart.so.11.0",
            ["nvidia-cuda-runtime-cu11==11.8.89"],
            "nvidia-cuda-runtime-cu11==11.8.89",
            "cuda_runtime",
        ),
        (
            "libcusparse.so.12",
            ["nvidia-cusparselt-cu12==0.6", "nvidia-cusparse-cu12==12.5"],
            "nvidia-cusparse-cu12==12.5",
            "cusparse",
        ),
        (
            "libcurand.so.10",
            ["nvidia-curand==10.4.0.35", "nvidia-cublas==13.1"],
            "nvidia-curand==10.4.0.35",
            "cu13",
        ),
        (
            "libcudnn.so.9",
            ["nvidia-cudnn-cu13==9.24", "nvidia-cublas==13.1"],
            "nvidia-cudnn-cu13==9.24",
            "cudnn",
        ),
        (
            "libcudart.so.12",
            ["cuda-toolkit==12.6.*"],
            "cuda-toolkit[cudart]==12.6.*",
            "cuda_runtime",
        ),
        ("libcufft.so.12", ["cuda-toolkit==13.0.*"], "cuda-toolkit[cufft]==13.0.*", "cu13"),
        ("libnccl.so.2", ["cuda-toolkit==12.6.*"], "nvidia-nccl-cu12==2.*", "nccl"),
    ],
)
def test_nvidias_wheels_bring_cudas_libraries(
    library: str, pins: list[str], requirement: str, folder: str
) -> None:
    found = bringer(library, read_pins(pins))
    assert found.requirement == requirement + LINUX
    assert found.folder == f"nvidia/{folder}/lib"


def test_a_version_nobody_named_is_asked_for() -> None:
    with pytest.raises(UsageError, match="nvidia-cublas") as told:
        bringer("libcublas.so.12", {})
    assert "--pins" in told.value.hint


def test_the_label_of_a_version() -> None:
    assert labelled("2.6.0+cpu", "cu126.sm86") == "2.6.0+cu126.sm86"
    assert labelled("2.6.0", "Lab-1") == "2.6.0+lab.1"
    assert labelled("2.6.0+cpu", "none") == "2.6.0"
    for label in ("", "a b", "../x", "+", "ü"):
        with pytest.raises(UsageError):
            labelled("2.6.0", label)


@pytest.mark.parametrize(
    ("requires", "uses", "found"),
    [
        (["numpy", "torch"], True, ["numpy", "torch==2.6.0+cpu"]),
        (["torch (==2.6.0)"], True, ["torch==2.6.0+cpu"]),
        (["torch==2.6.0+old"], True, ["torch==2.6.0+cpu"]),
        (["torch>=2; extra == 'x'"], True, ['torch==2.6.0+cpu; extra == "x"', "torch==2.6.0+cpu"]),
        (["numpy"], True, ["numpy", "torch==2.6.0+cpu"]),
        (["numpy"], False, ["numpy"]),
        (["what is this?"], False, ["what is this?"]),
    ],
)
def test_what_was_built_against_torch_is_held_to_it(
    requires: list[str], uses: bool, found: list[str]
) -> None:
    made = new_requirements(requires, torch="2.6.0+cpu", uses_torch=uses, more=())
    assert made == found


def test_another_torch_than_it_asks_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch==2\.5"):
        new_requirements(["torch==2.5.1"], torch="2.6.0", uses_torch=True, more=())
    with pytest.raises(UsageError, match="not a version"):
        new_requirements(["torch"], torch="new", uses_torch=True, more=())


def test_a_field_is_replaced_where_it_was_and_the_body_stays() -> None:
    text = b"A: 1\r\nRequires-Dist: x\nB: 2\n  more\nRequires-Dist: y\n\nbody: \xff\n\nend"
    fields = Fields(text)
    assert fields.all("requires-dist") == ["x", "y"]
    fields.set("Requires-Dist", ["z"])
    fields.set("New", ["1", "2"])
    assert fields.content() == (
        b"A: 1\nRequires-Dist: z\nB: 2\n  more\nNew: 1\nNew: 2\n\nbody: \xff\n\nend"
    )
    assert Fields(b"A: 1\n").content() == b"A: 1\n"


def test_a_wheels_name_and_tags_say_the_same() -> None:
    platform = "manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert file_name("a-1-cp311-cp311-linux_x86_64.whl", "1+b", platform) == (
        f"a-1+b-cp311-cp311-{platform}.whl"
    )
    assert file_name("a-1-7-py3-none-any.whl", "1", "any") == "a-1-7-py3-none-any.whl"
    assert retagged(["py2-none-linux_x86_64", "py3-none-linux_x86_64"], platform) == [
        "py2-none-manylinux2014_x86_64",
        "py2-none-manylinux_2_17_x86_64",
        "py3-none-manylinux2014_x86_64",
        "py3-none-manylinux_2_17_x86_64",
    ]


def test_modules_are_told_their_version() -> None:
    told = with_version(
        {
            "torch/version.py": b"__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n",
            "torch/__init__.py": b"from .version import __version__\n",
            "other.py": b'__version__: str = "2.6.0+cpu"\nx = "2.6.0+cpu"\n',
            "foreign.py": b"__version__ = '2.6.0'\n",
        },
        "2.6.0+cpu",
        "2.6.0+lab",
    )
    assert told == {
        "torch/version.py": b"__version__ = '2.6.0+lab'\ncuda: Optional[str] = None\n",
        "other.py": b'__version__: str = "2.6.0+lab"\nx = "2.6.0+cpu"\n',
    }
