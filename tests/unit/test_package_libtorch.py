"""libtorch out of a wheel: its CMake files become true anywhere, and bad wheels are refused."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.package.libtorch import looked_for, relocatable
from torchsmith.package.pack import Member, write_wheel

pytestmark = pytest.mark.unit

TARGETS = """\
set_target_properties(torch_cpu PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED"
  INTERFACE_INCLUDE_DIRECTORIES "${_IMPORT_PREFIX}/include;/usr/include/eigen3"
  INTERFACE_LINK_LIBRARIES "c10;/usr/lib/libopenblas.so;\\$<LINK_ONLY:/opt/lib/libz.a>;protobuf::x"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "/home/me/toolkit/include"
)
set_target_properties(torch PROPERTIES
  IMPORTED_LINK_DEPENDENT_LIBRARIES_RELEASE "/usr/lib/libmpi.so;cpuinfo"
  IMPORTED_LOCATION_RELEASE "${_IMPORT_PREFIX}/lib/libtorch.so"
  INTERFACE_LINK_LIBRARIES "-Wl,--no-as-needed,\\"\\$<TARGET_FILE:torch>\\" -Wl,--as-needed"
)
"""


def test_no_path_of_the_building_machine_stays_in_the_targets() -> None:
    text, changes = relocatable("share/cmake/Caffe2/Caffe2Targets.cmake", TARGETS)
    assert not re.search(r'[";:]/', text)
    assert '"c10;protobuf::x"' in text
    assert '"${_IMPORT_PREFIX}/include"' in text
    # An empty list, not a line less: CMake refuses a call with no properties.
    assert 'INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ""' in text
    assert '_RELEASE "cpuinfo"' in text
    assert '\\"\\$<TARGET_FILE:torch>\\"' in text
    assert len(changes) == 1
    for path in ("/usr/lib/libopenblas.so", "/opt/lib/libz.a", "/usr/include/eigen3"):
        assert path in changes[0]


def test_what_is_right_already_stays_as_it_is() -> None:
    clean, _ = relocatable("Caffe2Targets.cmake", TARGETS)
    assert relocatable("Caffe2Targets.cmake", clean) == (clean, ())
    assert relocatable("FindCUDA.cmake", TARGETS) == (TARGETS, ())


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "ATenConfig.cmake",
            'set(ATEN_INCLUDE_DIR "/usr/include")\n',
            'set(ATEN_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../include")\n',
        ),
        ("Caffe2Config.cmake", "# Protobuf\nif(OFF)\n", "# Protobuf\nif(ON)\n"),
        (
            "TorchConfig.cmake",
            "  find_package(Caffe2 REQUIRED PATHS ${CMAKE_CURRENT_LIST_DIR}/../Caffe2)\n"
            'find_library(TORCH_LIBRARY torch PATHS "${TORCH_INSTALL_PREFIX}/lib")\n'
            "if(ON)\n  append_torchlib_if_found(kineto)\nendif()\n",
            "  find_package(Caffe2 REQUIRED PATHS ${CMAKE_CURRENT_LIST_DIR}/../Caffe2"
            " NO_DEFAULT_PATH)\n"
            'find_library(TORCH_LIBRARY torch PATHS "${TORCH_INSTALL_PREFIX}/lib"'
            " NO_DEFAULT_PATH)\n"
            'if(EXISTS "${TORCH_INSTALL_PREFIX}/lib/libkineto.a")\n'
            "  append_torchlib_if_found(kineto)\nendif()\n",
        ),
    ],
)
def test_a_file_finds_what_lies_beside_it(name: str, before: str, after: str) -> None:
    text, changes = relocatable(f"share/cmake/any/{name}", before)
    assert text == after
    assert changes
    assert relocatable(name, after) == (after, ())


def test_what_has_to_be_on_the_machine_is_known() -> None:
    text = (
        'if(ON)\n  include("${CMAKE_CURRENT_LIST_DIR}/public/glog.cmake")\nendif()\n'
        'if(OFF)\n  include("${CMAKE_CURRENT_LIST_DIR}/public/gflags.cmake")\nendif()\n'
        "if(1)\n  # why\n  set(CAFFE2_USE_CUDA 1)\n\n"
        '  include("${CMAKE_CURRENT_LIST_DIR}/public/cuda.cmake")\nendif()\n'
    )
    assert list(looked_for(text)) == ["glog", "a CUDA toolkit"]


def wheel(
    folder: Path, files: Mapping[str, bytes], name: str = "torch", machine: str = "x86_64"
) -> Path:
    """A wheel that pip would take."""
    tag = f"cp311-cp311-linux_{machine}"
    path = folder / f"{name}-2.6.0-{tag}.whl"
    info = f"{name}-2.6.0.dist-info"
    metadata = {
        f"{info}/METADATA": f"Name: {name}\nVersion: 2.6.0\n".encode(),
        f"{info}/WHEEL": f"Tag: {tag}\n".encode(),
        f"{info}/RECORD": b"",
    }
    members = [
        Member(member, len(content), False, lambda content=content: content)  # type: ignore[misc]
        for member, content in {**files, **metadata}.items()
    ]
    write_wheel(members, path)
    return path


def refused(run: Run, folder: Path, path: Path, expected: int = 2) -> str:
    """What the command says to a wheel; it leaves nothing behind."""
    code, out, said = run("libtorch", str(path), "--output", str(folder / "out"))
    assert code == expected
    assert out == ""
    assert "Traceback" not in said
    assert not (folder / "out").exists()
    return said


def test_what_is_no_torch_is_refused(run: Run, tmp_path: Path) -> None:
    assert "does not exist" in refused(run, tmp_path, tmp_path / "torch.whl")
    other = wheel(tmp_path, {"numpy/__init__.py": b""}, "numpy")
    assert "a wheel of numpy" in refused(run, tmp_path, other)
    empty = wheel(tmp_path, {"torch/version.py": b""})
    said = refused(run, tmp_path, empty)
    assert "no libraries and no headers and no CMake files" in said


def test_a_damaged_wheel_is_refused(run: Run, tmp_path: Path) -> None:
    path = wheel(tmp_path, {"torch/version.py": b"x = 1\n" * 1000})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a sound wheel: archive" in refused(run, tmp_path, path, 9)
    path.write_bytes(whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("torch/more.py", "")
    assert "not in RECORD" in refused(run, tmp_path, path, 9)
    path.write_text("no archive")
    assert "not a sound wheel: archive" in refused(run, tmp_path, path, 9)


@pytest.mark.parametrize("name", ["../escaped", "/absolute", "torch/../../escaped", "torch\\x"])
def test_a_name_that_leaves_the_archive_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    path = wheel(tmp_path, {name: b"x", "torch/version.py": b""})
    assert "file names" in refused(run, tmp_path, path, 9)


def test_a_plan_packs_what_the_command_does(run: Run) -> None:
    Path("recipe.toml").write_text(
        'torch = "2.6.0"\npython = "3.11"\ncuda = "none"\npackages = { libtorch = true }\n'
    )
    code, out, _ = run("plan", "--json")
    assert code == 0
    steps = {step["id"]: step for step in json.loads(out)["steps"]}
    (step,) = [step for name, step in steps.items() if name.startswith("package-libtorch")]
    given = step["task"]["arguments"]
    assert step["outputs"] == [given["archive"]]
    assert given["archive"].endswith("/libtorch-2.6.0+cpu-linux-x86_64.zip")
    assert given["wheel"].endswith("-linux_x86_64.whl")
