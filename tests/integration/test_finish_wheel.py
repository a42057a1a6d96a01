"""Wheels are finished with the real tools, and loaded where what they were built with is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import json as msgspec_json
from tests.integration.conftest import Planned
from tests.plans import run_twin

from torchsmith.errors import HostError, OutputError, UsageError
from torchsmith.host.system import read_platform
from torchsmith.package.finish.audit import Tag, audit
from torchsmith.package.finish.design import Options
from torchsmith.package.finish.finish import finish_wheel, finish_wheels
from torchsmith.package.pack import pack_folder
from torchsmith.plan.packages import Finishing
from torchsmith.verify.wheelfile import Wheel, read_wheel

pytestmark = pytest.mark.integration

MACHINE = read_platform().partition("-")[2]
LINUX = f"linux_{MACHINE}"
CTYPES = """
import ctypes, pathlib
answer = ctypes.CDLL(str(pathlib.Path(__file__).parent / "_ext.so")).answer
"""


def compile_library(path: Path, code: str, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["gcc", "-g", "-shared", "-fPIC", "-o", str(path), "-x", "c", "-", "-x", "none"]
    words += ["-Wl,--no-as-needed", *flags]
    subprocess.run(words, input=code, text=True, check=True)
    return path


def pack(tree: Path, folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    """A wheel of a folder."""
    tag = f"py3-none-{LINUX}"
    info = tree / f"{name}-{version}.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    (info / "METADATA").write_text(f"{head}\nWhat it is: a test.\n")
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n")
    (info / "RECORD").write_text("")
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-{tag}.whl"
    pack_folder(tree, wheel)
    return wheel


@dataclass(frozen=True)
class Built:
    """A wheel, and the folder of libraries it was built with."""

    wheel: Path
    system: Path


@pytest.fixture
def demo(tmp_path: Path) -> Built:
    """A package whose library needs one outside, which needs another; by absolute path."""
    system = tmp_path / "system"
    compile_library(
        system / "libword.so.2", "int word(void) { return 40; }", "-Wl,-soname,libword.so.2"
    )
    compile_library(
        system / "libgreet.so.1",
        "int word(void); int greet(void) { return word() + 2; }",
        "-Wl,-soname,libgreet.so.1",
        f"-Wl,-rpath,{system}",
        str(system / "libword.so.2"),
    )
    tree = tmp_path / "tree"
    compile_library(
        tree / "demo" / "lib" / "libinner.so",
        "int inner(void) { return 1; }",
        "-Wl,-soname,libinner.so",
    )
    compile_library(
        tree / "demo" / "_ext.so",
        "int greet(void); int inner(void); int answer(void) { return greet() * inner(); }",
        f"-Wl,-rpath,{system}:{tree}/demo/lib",
        str(system / "libgreet.so.1"),
        str(tree / "demo" / "lib" / "libinner.so"),
    )
    (tree / "demo" / "__init__.py").write_text(CTYPES)
    return Built(pack(tree, tmp_path / "dist", "demo", "1.0"), system)


def sound(wheel: Path) -> Wheel:
    found = read_wheel(wheel)
    assert [check for check in found.checks if check.status == "fail"] == []
    return found


def installed(folder: Path, *wheels: Path) -> Path:
    """A fresh environment with these wheels and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install"]
    words = ["--quiet", "--no-index", "--disable-pip-version-check", *map(str, wheels)]
    subprocess.run([*pip, *words], check=True)
    return folder / "bin/python"


def says(python: Path, program: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(python), "-c", program], env=env, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_vendored_wheel_loads_where_what_it_was_built_with_is_gone(
    demo: Built, tmp_path: Path
) -> None:
    made = finish_wheel(demo.wheel, tmp_path / "out", Options("vendor"))
    assert made.platform.startswith("manylinux")
    assert {item.name: item.origin for item in made.outside} == {
        "libgreet.so.1": "vendor",
        "libword.so.2": "vendor",
    }
    shutil.rmtree(demo.system)
    shutil.rmtree(tmp_path / "tree")
    wheel = sound(Path(made.result))
    for library in wheel.libraries:
        assert all(entry.startswith("$ORIGIN") for entry in library.search), library
        assert library.strippable == 0
    by_name = {library.path: library for library in wheel.libraries}
    assert by_name["demo/_ext.so"].search == ("$ORIGIN/../demo.libs", "$ORIGIN/lib")
    assert len([path for path in by_name if path.startswith("demo.libs/lib")]) == 2
    python = installed(tmp_path / "env", Path(made.result))
    assert says(python, "import demo; print(demo.answer())") == "42"


def test_one_wheel_is_the_same_bytes_each_time_and_finished_once(
    demo: Built, tmp_path: Path
) -> None:
    first, second = (
        finish_wheel(demo.wheel, tmp_path / name, Options("vendor")) for name in ("a", "b")
    )
    assert Path(first.result).read_bytes() == Path(second.result).read_bytes()
    again = finish_wheel(Path(first.result), tmp_path / "c", Options("vendor"))
    assert again.changes == ()
    assert Path(again.result).read_bytes() == Path(first.result).read_bytes()


def test_the_systems_libraries_are_left_to_it_and_nothing_is_promised(
    demo: Built, tmp_path: Path
) -> None:
    made = finish_wheel(demo.wheel, tmp_path / "out", Options("system", strip=False))
    assert made.platform == LINUX
    assert "libgreet.so.1" in made.because
    libraries = {item.path: item for item in sound(Path(made.result)).libraries}
    assert libraries["demo/_ext.so"].search == ("$ORIGIN/lib",)
    assert "libgreet.so.1" in libraries["demo/_ext.so"].needed
    assert libraries["demo/_ext.so"].debug_bytes > 0
    assert not any(path.startswith("demo.libs") for path in libraries)


def test_what_is_gone_is_named_and_nothing_is_written(demo: Built, tmp_path: Path) -> None:
    (demo.system / "libword.so.2").unlink()
    with pytest.raises(HostError, match=r"libword\.so\.2 \(for .*libgreet\.so\.1\)"):
        finish_wheel(demo.wheel, tmp_path / "out", Options("vendor"))
    assert not (tmp_path / "out").exists()


def test_a_tool_that_is_missing_or_fails_leaves_nothing(
    demo: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="strip"):
        finish_wheel(demo.wheel, tmp_path / "out", Options("vendor"))
    program = tmp_path / "strip"
    program.write_text("#!/bin/sh\necho 'no room in the vault' >&2; exit 3\n")
    program.chmod(0o755)
    with pytest.raises(OutputError, match="no room in the vault"):
        finish_wheel(demo.wheel, tmp_path / "out", Options("vendor"))
    # One that ends well and spoils the file is found out.
    program.write_text('#!/bin/sh\nfor file; do :; done\nprintf "" > "$file"\n')
    with pytest.raises(OutputError):
        finish_wheel(demo.wheel, tmp_path / "out", Options("vendor"))
    assert list((tmp_path / "out").iterdir()) == []


def test_auditwheel_has_the_last_word(demo: Built, tmp_path: Path) -> None:
    tag = f"manylinux_2_34_{MACHINE}"
    boast = tmp_path / demo.wheel.name.replace(LINUX, tag)
    shutil.copy(demo.wheel, boast)
    with pytest.raises(OutputError, match="libraries outside"):
        audit(boast, Tag((tag,), ""), ())
    with pytest.raises(OutputError, match="cannot read"):
        audit(tmp_path / f"gone-1-py3-none-{tag}.whl", Tag((tag,), ""), ())


def test_cudas_libraries_come_with_nvidias_wheels(tmp_path: Path) -> None:
    code = "int gemm(void) { return 42; }"
    there = tmp_path / "nvidia" / "nvidia" / "cublas" / "lib" / "libcublas.so.12"
    compile_library(there, code, "-Wl,-soname,libcublas.so.12")
    nvidia = pack(tmp_path / "nvidia", tmp_path / "dist", "nvidia_cublas_cu12", "12.6.4.1")
    tree = tmp_path / "tree"
    compile_library(
        tree / "torch" / "lib" / "_ext.so",
        "int gemm(void); int answer(void) { return gemm(); }",
        f"-Wl,-rpath,{there.parent}",
        str(there),
    )
    (tree / "torch" / "lib" / "__init__.py").write_text(CTYPES)
    wheel = pack(tree, tmp_path / "dist", "speedy", "1.0", ("nvidia-cublas-cu12", "six"))
    with pytest.raises(UsageError, match="nvidia-cublas"):
        finish_wheel(wheel, tmp_path / "out", Options("wheels"))
    pins = {"nvidia-cublas-cu12": "12.6.4.1"}
    made = finish_wheel(wheel, tmp_path / "out", Options("wheels", pins=pins))
    assert made.platform.startswith("manylinux")
    found = sound(Path(made.result))
    wanted = 'nvidia-cublas-cu12==12.6.4.1; platform_system == "Linux"'
    assert found.requires == ("six", wanted)
    (library,) = found.libraries
    assert library.search == ("$ORIGIN/../../nvidia/cublas/lib",)
    shutil.rmtree(tmp_path / "nvidia")
    six = tmp_path / "six"
    six.mkdir()
    python = installed(
        tmp_path / "env", Path(made.result), nvidia, pack(six, tmp_path / "dist", "six", "1.0")
    )
    assert says(python, "import torch.lib as lib; print(lib.answer())") == "42"


def test_what_is_opened_by_name_is_packed_under_it(tmp_path: Path) -> None:
    system = tmp_path / "system"
    compile_library(
        system / "libcudnn_ops.so.9",
        "int ops(void) { return 42; }",
        "-Wl,-soname,libcudnn_ops.so.9",
    )
    opens = """
    #include <dlfcn.h>
    int cudnn(void) {
        void *part = dlopen("libcudnn_ops.so.9", RTLD_NOW);
        return part ? ((int (*)(void)) dlsym(part, "ops"))() : -1;
    }"""
    compile_library(system / "libcudnn.so.9", opens, "-Wl,-soname,libcudnn.so.9", "-ldl")
    tree = tmp_path / "tree"
    compile_library(
        tree / "demo" / "_ext.so",
        "int cudnn(void); int answer(void) { return cudnn(); }",
        f"-Wl,-rpath,{system}",
        str(system / "libcudnn.so.9"),
    )
    (tree / "demo" / "__init__.py").write_text(CTYPES)
    wheel = pack(tree, tmp_path / "dist", "demo", "1.0")
    made = finish_wheel(wheel, tmp_path / "out", Options("vendor"))
    shutil.rmtree(system)
    names = set(zipfile.ZipFile(made.result).namelist())
    assert {"demo.libs/libcudnn.so.9", "demo.libs/libcudnn_ops.so.9"} <= names
    python = installed(tmp_path / "env", Path(made.result))
    assert says(python, "import demo; print(demo.answer())") == "42"


def test_torch_gets_its_label_and_what_was_built_against_it_asks_for_that(tmp_path: Path) -> None:
    tree = tmp_path / "torch-tree"
    c10 = compile_library(
        tree / "torch" / "lib" / "libc10.so", "int c10(void) { return 1; }", "-Wl,-soname,libc10.so"
    )
    compile_library(
        tree / "torch" / "_C.so", "int c10(void); int c(void) { return c10(); }", c10.as_posix()
    )
    (tree / "torch" / "__init__.py").write_text("from .version import __version__\n")
    (tree / "torch" / "version.py").write_text("__version__ = '2.6.0+cpu'\ndebug = False\n")
    torch = pack(tree, tmp_path / "dist", "torch", "2.6.0+cpu")
    other = tmp_path / "vision-tree"
    compile_library(
        other / "torchvision" / "_ext.so",
        "int c10(void); int answer(void) { return c10(); }",
        str(c10),
    )
    (other / "torchvision" / "__init__.py").write_text("")
    vision = pack(other, tmp_path / "dist", "torchvision", "0.21.0", ("numpy", "torch==2.6.0+cpu"))
    made = finish_wheels([vision, torch], tmp_path / "out", Options("vendor", label="lab.1"))
    first, second = (Path(item.result) for item in made)
    assert first.name.startswith("torch-2.6.0+lab.1-py3-none-manylinux")
    assert second.name.startswith("torchvision-0.21.0+lab.1-py3-none-manylinux")
    sound(first)
    found = sound(second)
    assert found.requires == ("numpy", "torch==2.6.0+lab.1")
    assert [item.path for item in found.libraries] == ["torchvision/_ext.so"]
    assert made[1].outside[0].origin == "torch"
    python = installed(tmp_path / "env", first)
    program = "import torch, importlib.metadata as m; print(torch.__version__, m.version('torch'))"
    assert says(python, program) == "2.6.0+lab.1 2.6.0+lab.1"


def test_a_step_of_a_plan_finishes_its_wheel_and_leaves_one(demo: Built, tmp_path: Path) -> None:
    work = tmp_path / "work"
    dist = work / "dist" / "lab"
    (dist / "finished").mkdir(parents=True)
    shutil.copy(demo.wheel, dist)
    (dist / "finished" / "demo-1.0-py3-none-old.whl").write_bytes(b"of an earlier attempt")
    (dist / "finished" / ".finish-killed" / "tree").mkdir(parents=True)
    given = Finishing("dist/lab/demo-*.whl", "dist/lab/finished/demo-*.whl", torch="2.6.0")
    words = [sys.executable, "-m", "torchsmith.package.finish.finish"]

    def carry_out() -> subprocess.CompletedProcess[str]:
        text = msgspec_json.encode(given).decode()
        return subprocess.run(
            words, input=text, cwd=work, capture_output=True, text=True, check=False
        )

    done = carry_out()
    assert done.returncode == 0, done.stderr
    (made,) = (dist / "finished").iterdir()
    assert "manylinux" in made.name
    # It is not linked with torch's libraries: it need not ask for one.
    assert sound(made).requires == ()
    (dist / demo.wheel.name).unlink()
    done = carry_out()
    assert done.returncode == 2
    assert "matches none" in done.stderr
    assert made.exists()


def test_those_without_torchsmith_have_auditwheel_do_it(
    demo: Built, planned: Callable[[str | Path], Planned], tmp_path: Path
) -> None:
    recipe = (
        'name = "lab"\ntorch = "2.6.0"\npython = "3.11"\ncuda = "none"\n'
        'packages = { libraries = "vendor" }\n'
        '[[companions.extension]]\nname = "demo"\nsdist = "demo==1.0"\n'
        f'sha256 = "{"0" * 64}"\n'
    )
    plan = planned(recipe)[0]
    step = plan.step("package-wheel-demo-lab")
    assert {step.id, "package-wheel-torch-lab"} <= {*plan.step("verify-demo-lab").needs}
    work = tmp_path / "work"
    (work / "dist" / "lab").mkdir(parents=True)
    shutil.copy(demo.wheel, work / "dist" / "lab")
    assert run_twin(plan, step, work).returncode == 0
    (made,) = work.glob(step.outputs[0])
    shutil.rmtree(demo.system)
    python = installed(tmp_path / "env", made)
    assert says(python, "import demo; print(demo.answer())") == "42"
