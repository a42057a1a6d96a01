"""A library that would load only on the machine it was built on is caught."""

from __future__ import annotations

import pytest

from torchsmith.checks import Check
from torchsmith.verify.binary import Library, looks_shared, read_bytes
from torchsmith.verify.linkage import Surroundings, baseline, judge

pytestmark = pytest.mark.unit


def judged(name: str, *libraries: Library, **around: object) -> Check:
    found = judge(libraries, Surroundings(**around))  # type: ignore[arg-type]
    return next(check for check in found if check.name == name)


def library(path: str = "torch/lib/libtorch_cpu.so", **fields: object) -> Library:
    return Library(path, machine="x86_64", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "status"),
    [
        ("$ORIGIN", "pass"),
        ("$ORIGIN/../../nvidia/cublas/lib", "pass"),
        ("/home/someone/pytorch/build/lib", "fail"),
        ("/opt/conda/envs/build/lib", "fail"),
        ("/usr/local/cuda-12.6/lib64", "warn"),
        ("/usr/lib/x86_64-linux-gnu", "warn"),
        ("/usr/local/cudafoo", "fail"),
    ],
)
def test_a_search_path_must_not_lead_to_the_build_machine(entry: str, status: str) -> None:
    assert judged("search paths", library(search=(entry,))).status == status


def test_a_search_path_inside_the_environment_is_its_own_business() -> None:
    one = library(search=("/opt/conda/envs/mine/lib",))
    assert judged("search paths", one, prefix="/opt/conda/envs/mine").status == "pass"


def test_a_program_with_a_foreign_path_is_only_warned_about() -> None:
    one = library("torch/bin/test_jit", search=("/acl/build",))
    assert judged("search paths", one).status == "warn"


def test_what_every_linux_has_may_be_needed() -> None:
    one = library(needed=("libc.so.6", "libstdc++.so.6", "libcuda.so.1"))
    assert judged("needed libraries", one).status == "pass"


def test_what_lies_in_the_package_may_be_needed_by_name_or_soname() -> None:
    hashed = library("torch.libs/libgomp-a49a47f9.so.1.0.0", soname="libgomp-a49a47f9.so.1.0.0")
    other = library("torch/lib/libc10.so.2", soname="libc10.so")
    one = library(needed=("libgomp-a49a47f9.so.1.0.0", "libc10.so"))
    assert judged("needed libraries", one, hashed, other).status == "pass"


def test_torch_s_libraries_are_not_put_into_the_wheel_of_an_extension() -> None:
    check = judged("needed libraries", library(needed=("libc10.so", "libtorch_cpu.so")))
    assert check.status == "fail"
    assert "verify it with its torch" in check.cure
    assert "auditwheel" not in check.cure


@pytest.mark.parametrize(
    ("needed", "required", "status"),
    [
        ("libcublas.so.12", "nvidia-cublas-cu12", "pass"),
        ("libcublas.so.13", "nvidia-cublas", "pass"),
        ("libcusparse.so.12", "nvidia-cusparselt-cu12", "fail"),
        ("libcusparseLt.so.0", "nvidia-cusparselt-cu12", "pass"),
        ("libnccl.so.2", "nvidia-cublas-cu12", "fail"),
    ],
)
def test_what_a_required_distribution_brings_may_be_needed(
    needed: str, required: str, status: str
) -> None:
    check = judged("needed libraries", library(needed=(needed,)), requires=frozenset({required}))
    assert check.status == status


def test_an_installed_torch_must_really_have_what_a_companion_needs() -> None:
    one = library("torchvision/_C.so", needed=("libtorch_cuda.so",))
    torch = frozenset({"torch"})
    assert judged("needed libraries", one, requires=torch).status == "pass"
    check = judged("needed libraries", one, requires=torch, installed=torch)
    assert check.status == "fail"
    assert "libtorch_cuda.so (for torchvision/_C.so)" in check.found


def test_a_library_of_this_machine_is_a_warning_unless_the_tag_promises_otherwise() -> None:
    one = library(needed=("libopenblas.so.0",))
    here = frozenset({"libopenblas.so.0"})
    assert judged("needed libraries", one, system=here).status == "warn"
    assert judged("needed libraries", one, system=here, glibc="2.28").status == "fail"
    assert judged("needed libraries", one).status == "fail"


@pytest.mark.parametrize(
    ("versions", "glibc", "statuses"),
    [
        ({"GLIBC": "2.28", "GLIBCXX": "3.4.24"}, "2.28", ("pass", "pass")),
        ({"GLIBC": "2.34", "GLIBCXX": "3.4.24"}, "2.28", ("fail", "pass")),
        ({"GLIBC": "2.9", "GLIBCXX": "3.4.30"}, "2.28", ("pass", "fail")),
        # A policy that is not listed has the nearest older one's libstdc++.
        ({"GLIBC": "2.30", "GLIBCXX": "3.4.25"}, "2.30", ("pass", "fail")),
        ({"GLIBC": "2.41", "GLIBCXX": "3.4.33"}, "", ("info", "info")),
    ],
)
def test_symbol_versions_keep_what_the_tag_promises(
    versions: dict[str, str], glibc: str, statuses: tuple[str, str]
) -> None:
    one = library(versions=versions)
    found = [judged(name, one, glibc=glibc).status for name in ("glibc needed", "libstdc++ needed")]
    assert tuple(found) == statuses


def test_an_executable_stack_is_refused() -> None:
    assert judged("executable stack", library(executable_stack=True)).status == "fail"
    assert judged("executable stack", library()).status == "pass"


def test_two_openmp_runtimes_are_warned_about() -> None:
    gnu = library("torch/lib/libgomp-1a2b.so.1")
    intel = library("torch/lib/libiomp5.so")
    assert judged("openmp runtimes", gnu).status == "info"
    assert judged("openmp runtimes", gnu, intel).status == "warn"
    assert judged("openmp runtimes", gnu, library(needed=("libiomp5.so",))).status == "warn"


def test_libraries_of_two_machines_do_not_belong_together() -> None:
    other = Library("torch/lib/libother.so", machine="aarch64")
    assert judged("machine", library(), other).status == "fail"


def test_no_library_at_all_is_said() -> None:
    assert [check.status for check in judge([], Surroundings())] == ["absent"]


def test_the_longest_known_start_of_a_name_decides_who_brings_it() -> None:
    assert baseline().bringer("libcusparseLt.so.0") == "nvidia-cusparselt"
    assert baseline().bringer("libfoo.so") == ""


def test_a_shared_library_is_known_by_its_name() -> None:
    assert [looks_shared(name) for name in ("a/libx.so", "libx-1.so.2.1", "so.py", "x.sob")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("content", [b"", b"INPUT(-lfoo)", b"\x7fEL"])
def test_what_is_not_elf_is_left_alone(content: bytes) -> None:
    assert read_bytes("libx.so", content) is None


@pytest.mark.parametrize(
    "content", [b"\x7fELF", b"\x7fELF" + b"\0" * 60, b"\x7fELF\2\1\1" + b"\xff" * 80]
)
def test_a_broken_library_is_reported_not_raised(content: bytes) -> None:
    found = read_bytes("libx.so", content)
    assert found is not None
    assert found.broken
    assert judged("readable", found).status == "fail"


def test_the_systems_libraries_are_no_leak_where_they_were_asked_for() -> None:
    one = library(needed=("libprotobuf.so.32", "libopenblas.so.0"))
    system = frozenset({"libprotobuf.so.32", "libopenblas.so.0"})
    assert judged("needed libraries", one, system=system).status == "warn"
    asked = judged("needed libraries", one, system=system, declared=True)
    assert asked.status == "pass"
    named = judged("system libraries", one, system=system, declared=True)
    assert named.found == "libopenblas.so.0 libprotobuf.so.32"
    # A manylinux tag promises that none is needed, and one nobody has is lost all the same.
    assert judged("needed libraries", one, system=system, declared=True, glibc="2.28").status == (
        "fail"
    )
    assert judged("needed libraries", one, declared=True).status == "fail"


def test_a_cuda_toolkit_lends_its_own_libraries_and_no_others() -> None:
    lent = frozenset({"libcudart.so.13", "libmine.so.1"})
    cuda = library(needed=("libcudart.so.13",))
    assert judged("needed libraries", cuda, toolkit=lent).status == "pass"
    assert judged("CUDA libraries", cuda, toolkit=lent).found == "libcudart.so.13 (the toolkit's)"
    mine = library(needed=("libmine.so.1",))
    assert judged("needed libraries", mine, toolkit=lent).status == "fail"


def test_it_says_which_cuda_libraries_are_dynamic_and_where_they_come_from() -> None:
    needed = (
        "libcudart.so.12",
        "libcublas.so.12",
        "libnccl.so.2",
        "libcudnn.so.9",
        "libcurand.so.10",
    )
    own = library("torch/lib/libtorch_cuda.so", needed=(*needed, "libc.so.6"))
    bundled = library("torch/lib/libnccl.so.2", soname="libnccl.so.2")
    check = judged(
        "CUDA libraries",
        own,
        bundled,
        present=frozenset({"libcublas.so.12"}),
        system=frozenset({"libcudart.so.12"}),
        requires=frozenset({"nvidia-cudnn-cu12"}),
    )
    assert check.status == "info"
    assert set(check.found.split(", ")) == {
        "libcublas.so.12 (beside it)",
        "libcudart.so.12 (the system's)",
        "libcudnn.so.9 (in packages it requires)",
        "libcurand.so.10 (not here)",
        "libnccl.so.2 (in the package)",
    }


def test_a_static_cuda_runtime_is_said() -> None:
    own = library("torch/lib/libtorch_cuda.so", needed=("libc.so.6",))
    assert "libcudart inside" in judged("CUDA libraries", own).found
    names = [check.name for check in judge([library(needed=("libc.so.6",))], Surroundings())]
    assert "CUDA libraries" not in names
