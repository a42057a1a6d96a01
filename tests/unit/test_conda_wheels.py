"""A wheel in conda's words: names, versions, search paths; and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from torchsmith.errors import TorchsmithError, UsageError, VerificationError
from torchsmith.package.conda.describe import (
    conda_depends,
    conda_name,
    cuda_of_label,
    public_version,
    system_requirements,
)
from torchsmith.package.conda.pack import pack
from torchsmith.package.conda.wheel import Layout, search_path
from torchsmith.package.pack import pack_folder
from torchsmith.plan.conda import CondaSpec
from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.verify.binary import Library

pytestmark = pytest.mark.unit

SITE = "lib/python3.11/site-packages"


def depends(*requires: str) -> tuple[str, ...]:
    return conda_depends(requires, python="3.11", machine="x86_64")


@pytest.mark.parametrize(
    ("required", "spec"),
    [
        ("numpy", "numpy"),
        ("numpy>=1.21,<3", "numpy <3,>=1.21"),
        ("pillow!=8.3.*,>=5.3.0", "pillow !=8.3.*,>=5.3.0"),
        ("sympy==1.13.1", "sympy ==1.13.1"),
        ("sympy==1.13.*", "sympy 1.13.*"),
        ("Typing_Extensions>=4.10.0", "typing_extensions >=4.10.0"),
        ("torch==2.6.0+cpu", "pytorch ==2.6.0 cpu_*"),
        ("torch==2.6.0+cu126", "pytorch ==2.6.0 *cuda12.6*"),
        ("torch==2.6.0", "pytorch ==2.6.0"),
        ("nvidia-cublas-cu12==12.4.5.8; platform_machine == 'x86_64'", "libcublas ==12.4.5.8"),
    ],
)
def test_a_requirement_is_written_as_conda_writes_it(required: str, spec: str) -> None:
    assert depends(required) == (spec,)


@pytest.mark.parametrize(
    "marker", ["extra == 'x'", "sys_platform == 'win32'", "python_version < '3.9'"]
)
def test_what_another_machine_requires_is_left_out(marker: str) -> None:
    assert depends(f"other; {marker}") == ()


def test_a_package_for_every_python_requires_what_one_of_them_needs() -> None:
    requires = ["tomli; python_version < '3.11'", "never; python_version < '3'"]
    assert conda_depends(requires, python="", machine="") == ("tomli",)


def test_versions_lose_their_label_and_names_are_condas() -> None:
    assert public_version("1.13.1+cpu") == "1.13.1"
    assert conda_name("torch") == "pytorch"
    assert conda_name("Torch_Scatter") == "torch-scatter"
    assert (cuda_of_label("cu126"), cuda_of_label("cu92"), cuda_of_label("cpu")) == (
        "12.6",
        "9.2",
        "",
    )


def test_the_newest_symbols_say_which_glibc_and_libstdcxx_are_needed() -> None:
    libraries = [
        Library("a.so", versions={"GLIBC": "2.17", "GLIBCXX": "3.4.9"}),
        Library("b.so", versions={"GLIBC": "2.4", "GLIBCXX": "3.4.29"}),
    ]
    assert system_requirements(libraries) == (
        ["__glibc >=2.17,<3.0.a0"],
        ["libstdcxx >=11", "libstdcxx-ng >=11"],
    )
    assert system_requirements([]) == ([], [])


@pytest.mark.parametrize(
    ("place", "library", "wanted"),
    [
        ("torch/_C.so", Library("x", search=("$ORIGIN/lib",)), MODULE_RPATH),
        ("torch/lib/libc10.so", Library("x", search=("/build/lib", "$ORIGIN")), LIBRARY_RPATH),
        (
            "torch/lib/libtorch.so",
            Library("x", search=("$ORIGIN/../../torch.libs",)),
            f"{LIBRARY_RPATH}:$ORIGIN/../../torch.libs",
        ),
        ("torch/bin/tool", Library("x", search=("$ORIGIN/../lib",)), None),
        ("some/_C.so", Library("x", search=("/opt/env/lib",)), "$ORIGIN:$ORIGIN/../../.."),
        (
            "vision/_C.so",
            Library("x", needed=("libtorch_cpu.so",)),
            "$ORIGIN:$ORIGIN/../torch/lib:$ORIGIN/../../..",
        ),
        # Out of the prefix.
        ("top.so", Library("x", search=("$ORIGIN/../../../../lib",)), "$ORIGIN:$ORIGIN/../.."),
    ],
)
def test_libraries_look_beside_themselves_and_in_the_prefix(
    place: str, library: Library, wanted: str | None
) -> None:
    found = search_path(library, f"{SITE}/{place}", SITE)
    assert found == (wanted or "$ORIGIN:$ORIGIN/../lib:$ORIGIN/../../../..")


def test_every_kind_of_data_has_its_place() -> None:
    layout = Layout("3.11")
    places = {
        "some/a.py": f"{SITE}/some/a.py",
        "some-1.data/scripts/run": "bin/run",
        "some-1.data/data/etc/x": "etc/x",
        "some-1.data/headers/x.h": "include/python3.11/some/x.h",
        "some-1.data/platlib/x.so": f"{SITE}/x.so",
    }
    assert {name: layout.place(name, "some") for name in places} == places
    with pytest.raises(UsageError):
        layout.place("some-1.data/nowhere/x", "some")


# ------------------------------------------------------------------------------ whole wheels


def make_wheel(
    folder: Path,
    name: str = "some",
    version: str = "1.0",
    tag: str = "cp311-cp311-linux_x86_64",
    **files: str,
) -> Path:
    tree = folder / "wheel"
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "RECORD").write_text("")
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    pack_folder(tree, wheel)
    return wheel


def test_a_wheel_that_says_its_cuda_gets_that_build(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, version="0.21.0+cu126", **{"some/__init__.py": ""})
    made = pack(CondaSpec(output=str(tmp_path / "out"), wheel=str(wheel)), write=False)
    assert made.described.stem == "some-0.21.0-py3.11_cuda12.6_0"
    assert "__cuda >=12.0" in made.described.depends
    assert not (tmp_path / "out").exists()


def test_a_spec_that_was_given_stands_in_place_of_one_that_was_found(tmp_path: Path) -> None:
    info = "Metadata-Version: 2.1\nName: some\nVersion: 1.0\nRequires-Dist: torch==2.6.0+cpu\n"
    wheel = make_wheel(tmp_path, **{"some-1.0.dist-info/METADATA": info})
    exact = "pytorch ==2.6.0 cpu_py311_7"
    spec = CondaSpec(output=str(tmp_path / "out"), wheel=str(wheel), depends=(exact,))
    found = [
        item for item in pack(spec, write=False).described.depends if item.startswith("pytorch")
    ]
    assert found == [exact]


def test_what_was_packed_again_has_the_same_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, **{"some/__init__.py": "x = 1\n", "some/__pycache__/x.pyc": "x"})
    made = [
        pack(
            CondaSpec(output=str(tmp_path / place), wheel=str(wheel), formats=("tar.bz2", "conda")),
            threads=threads,
        )
        for place, threads in (("a", 1), ("b", 3))
    ]
    for one, other in zip(*(item.files for item in made), strict=True):
        assert one.read_bytes() == other.read_bytes()
    # No temporary folder stays.
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["linux-64"]


def refused(
    wheel: Path, tmp_path: Path, build: str = "", kind: type[TorchsmithError] = UsageError
) -> TorchsmithError:
    with pytest.raises(kind) as told:
        pack(CondaSpec(output=str(tmp_path / "out"), wheel=str(wheel), build=build))
    assert not (tmp_path / "out").exists()
    assert told.value.hint
    return told.value


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "some-1.0-cp311-cp311-linux_x86_64.whl"
    assert "does not exist" in refused(wheel, tmp_path).message
    wheel.write_text("text")
    assert "archive" in refused(wheel, tmp_path, kind=VerificationError).message
    good = make_wheel(tmp_path)
    good.write_bytes(good.read_bytes()[:-30])
    assert "archive" in refused(good, tmp_path, kind=VerificationError).message


def test_a_wheel_that_was_changed_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, **{"some/a.py": "x = 1\n"})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("some/b.py", "more")
    assert "record" in refused(wheel, tmp_path, kind=VerificationError).message


def test_a_wheel_with_a_name_that_leaves_it_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("../../escaped", "more")
    refused(wheel, tmp_path, kind=VerificationError)


def test_a_wheel_for_many_pythons_has_to_be_told_which(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, tag="cp39-abi3-linux_x86_64")
    assert "--python" in refused(wheel, tmp_path).hint
    spec = CondaSpec(output=str(tmp_path / "out"), wheel=str(wheel), python="3.12")
    assert pack(spec, write=False).described.build == "py312_0"


@pytest.mark.parametrize("build", ["has-dash", "a b", "a/b"])
def test_a_build_string_that_cannot_be_one_is_refused(tmp_path: Path, build: str) -> None:
    assert "build string" in refused(make_wheel(tmp_path), tmp_path, build=build).message


@pytest.mark.parametrize("python", ["3.12", "python", "2.7", "3"])
def test_another_python_than_the_wheels_is_refused(tmp_path: Path, python: str) -> None:
    wheel = make_wheel(tmp_path)
    with pytest.raises(UsageError, match="Python"):
        pack(CondaSpec(output=str(tmp_path / "out"), wheel=str(wheel), python=python))


@pytest.mark.parametrize("platform", ["win_amd64", "musllinux_1_2_x86_64", "macosx_11_0_x86_64"])
def test_a_wheel_of_another_system_is_refused(tmp_path: Path, platform: str) -> None:
    wheel = make_wheel(tmp_path, tag=f"cp311-cp311-{platform}")
    assert "machine" in refused(wheel, tmp_path).message


def test_an_entry_point_without_a_function_is_refused(tmp_path: Path) -> None:
    points = "[console_scripts]\nrun = some\n"
    wheel = make_wheel(tmp_path, **{"some-1.0.dist-info/entry_points.txt": points})
    assert "names no function" in refused(wheel, tmp_path).message
