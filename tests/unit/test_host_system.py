"""The system, its Pythons, compilers, tools and engines, as fake files and programs tell them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchsmith.host.containers import read_engines
from torchsmith.host.models import Compiler, Engine, Libc, Python, Tool
from torchsmith.host.probe import Programs
from torchsmith.host.read import read_compilers, read_tools
from torchsmith.host.system import (
    read_board,
    read_cpu_name,
    read_l4t,
    read_musl,
    read_pythons,
    read_system,
)

pytestmark = pytest.mark.unit

BAD = {
    "silent": "",
    "failing": "echo 1.2.3; exit 1",
    "garbage": r"printf '\377\376\000\001garbage'",
    "hanging": "exec /bin/sleep 1000",
    "crashing": "kill -SEGV $$",
}


def script(path: Path, body: str) -> Path:
    """Put a program where a search path can find it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def python(path: Path, version: str, prefix: Path, kind: str = "cpython", flags: str = "") -> Path:
    """Put an interpreter there that answers as a real one does."""
    return script(path, f"printf '%s\\n' torchsmith {kind} {version} {path} {prefix} '{flags}'")


def header(prefix: Path, name: str) -> None:
    (prefix / "include" / name).mkdir(parents=True)
    (prefix / "include" / name / "Python.h").touch()


def here(*folders: Path, timeout: float = 5.0) -> Programs:
    return Programs({"PATH": ":".join(map(str, folders))}, timeout)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# ------------------------------------------------------------------------------- system


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=ubuntu\nVERSION_ID="22.04"\nID_LIKE=debian\n', "ubuntu-22.04"),
        ("ID=debian\nVERSION_ID='12'", "debian-12"),
        ("ID=arch\nBUILD_ID=rolling\n", "arch"),
        ('ID="rhel"\nVERSION_ID="9.4"', "rhel-9.4"),
        ("", ""),
        ('ID="unfinished\nVERSION_ID', ""),
        ("\0\1\2", ""),
    ],
)
def test_a_distribution_is_named_by_its_id_and_release(
    tmp_path: Path, text: str, name: str
) -> None:
    write(tmp_path / "etc/os-release", text)
    assert read_system(tmp_path) == name


def test_a_distribution_may_keep_its_name_in_usr(tmp_path: Path) -> None:
    write(tmp_path / "usr/lib/os-release", "ID=fedora\nVERSION_ID=40\n")
    assert read_system(tmp_path) == "fedora-40"


def test_a_system_that_says_nothing_has_no_name(tmp_path: Path) -> None:
    assert read_system(tmp_path) == ""
    assert read_board(tmp_path) == ""
    assert read_l4t(tmp_path) is None
    assert read_cpu_name(here(), tmp_path) == ""


def test_a_jetson_is_known_by_its_device_tree(tmp_path: Path) -> None:
    write(tmp_path / "proc/device-tree/model", "NVIDIA Jetson TX2 Developer Kit\0")
    write(
        tmp_path / "etc/nv_tegra_release",
        "# R32 (release), REVISION: 4.4, GCID: 23942405, BOARD: t186ref, EABI: aarch64\n",
    )
    assert read_board(tmp_path) == "NVIDIA Jetson TX2 Developer Kit"
    assert read_l4t(tmp_path) == "32.4.4"


def test_a_board_whose_name_is_garbage_has_none(tmp_path: Path) -> None:
    write(tmp_path / "proc/device-tree/model", "a\0\1b")
    assert read_board(tmp_path) == ""


def test_an_x86_cpu_is_named_by_the_kernel(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 8480\n")
    assert read_cpu_name(here(), tmp_path) == "Intel(R) Xeon(R) 8480"


def test_an_arm_cpu_is_named_by_lscpu(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd0c\n")
    script(tmp_path / "bin/lscpu", "echo 'Vendor ID:  ARM'; echo 'Model name:   Neoverse-N1'")
    assert read_cpu_name(here(tmp_path / "bin"), tmp_path) == "Neoverse-N1"


def test_musl_is_known_by_its_loader(tmp_path: Path) -> None:
    script(
        tmp_path / "lib/ld-musl-x86_64.so.1",
        "echo 'musl libc (x86_64)' >&2; echo 'Version 1.2.4' >&2; exit 1",
    )
    assert read_musl(here(), tmp_path) == Libc(kind="musl", version="1.2.4")
    assert read_musl(here(), tmp_path / "elsewhere") is None


# ------------------------------------------------------------------------------ pythons


def test_pythons_are_found_once_with_their_headers(tmp_path: Path) -> None:
    usr = tmp_path / "usr"
    real = python(usr / "bin/python3.9", "3.9.2", usr)
    (usr / "bin/python3").symlink_to("python3.9")
    (usr / "bin/python").symlink_to("python3")
    header(usr, "python3.9")
    opt = tmp_path / "opt"
    bare = python(opt / "bin/python3.13t", "3.13.0", opt, flags="t")
    running = python(tmp_path / "run/python", "3.11.7", tmp_path / "run")
    assert read_pythons(here(usr / "bin", opt / "bin"), running) == (
        Python(version="3.11.7", path=str(running), headers=False),
        Python(version="3.9.2", path=str(real), headers=True),
        Python(version="3.13.0", path=str(bare), headers=False, free_threaded=True),
    )


def test_headers_follow_the_abi_flags(tmp_path: Path) -> None:
    header(tmp_path, "python3.6m")
    old = python(tmp_path / "bin/python3.6", "3.6.15", tmp_path, flags="m")
    assert [p.headers for p in read_pythons(here(), old)] == [True]


def test_a_shim_stands_for_every_version_behind_it(tmp_path: Path) -> None:
    for version in ("3.9.18", "3.12.1"):
        prefix = tmp_path / "pyenv/versions" / version
        python(prefix / "bin/python3", version, prefix)
    script(tmp_path / "pyenv/shims/python3", "echo not asked >&2; exit 127")
    running = python(tmp_path / "run/python", "3.11.7", tmp_path)
    found = read_pythons(here(tmp_path / "pyenv/shims"), running)
    assert [p.version for p in found] == ["3.11.7", "3.12.1", "3.9.18"]


def test_a_script_in_front_of_a_python_is_not_a_second_one(tmp_path: Path) -> None:
    real = python(tmp_path / "real/python3", "3.11.7", tmp_path)
    script(tmp_path / "bin/python3", f'exec {real} "$@"')
    assert len(read_pythons(here(tmp_path / "bin"), real)) == 1


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_broken_python_is_passed_over(tmp_path: Path, body: str) -> None:
    running = python(tmp_path / "run/python", "3.11.7", tmp_path)
    script(tmp_path / "bin/python3", body)
    found = read_pythons(here(tmp_path / "bin", timeout=0.5), running)
    assert [p.version for p in found] == ["3.11.7"]


def test_only_cpython_counts(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3", "3.10.14", tmp_path, kind="pypy")
    python(tmp_path / "bin/python", "not-a-version", tmp_path)
    running = python(tmp_path / "run/python", "3.11.7", tmp_path)
    assert len(read_pythons(here(tmp_path / "bin"), running)) == 1


def test_the_running_python_describes_itself() -> None:
    (found,) = read_pythons(Programs({"PATH": ""}))
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert Path(found.path).samefile(sys.executable)


# ---------------------------------------------------------------------------- compilers


def gcc(folder: Path, suffix: str, version: str) -> None:
    script(folder / f"gcc{suffix}", f"echo {version}")
    script(folder / f"g++{suffix}", f"echo {version}")


def test_every_compiler_is_found_once_the_default_first(tmp_path: Path) -> None:
    gcc(tmp_path, "-9", "9.4.0")
    gcc(tmp_path, "-12", "12.2.0")
    (tmp_path / "gcc").symlink_to("gcc-12")
    (tmp_path / "g++").symlink_to("g++-12")
    said = "echo 'Debian clang version 14.0.6'; echo 'Target: aarch64-unknown-linux-gnu'"
    script(tmp_path / "clang-14", said)
    script(tmp_path / "clang++-14", said)
    assert read_compilers(here(tmp_path)) == (
        Compiler(kind="gcc", version="12.2.0", path=f"{tmp_path}/gcc", cxx=f"{tmp_path}/g++"),
        Compiler(kind="gcc", version="9.4.0", path=f"{tmp_path}/gcc-9", cxx=f"{tmp_path}/g++-9"),
        Compiler(
            kind="clang",
            version="14.0.6",
            path=f"{tmp_path}/clang-14",
            cxx=f"{tmp_path}/clang++-14",
        ),
    )


def test_a_compiler_without_its_cxx_half_does_not_count(tmp_path: Path) -> None:
    script(tmp_path / "gcc", "echo 12.2.0")
    script(tmp_path / "gcc-ar-12", "echo 12.2.0")
    assert read_compilers(here(tmp_path)) == ()


def test_a_cache_that_calls_itself_a_compiler_is_not_one(tmp_path: Path) -> None:
    script(tmp_path / "bin/ccache", "echo 4.7.5")
    for name in ("gcc", "g++"):
        (tmp_path / "masks").mkdir(exist_ok=True)
        (tmp_path / "masks" / name).symlink_to(tmp_path / "bin/ccache")
    gcc(tmp_path / "bin", "", "12.2.0")
    found = read_compilers(here(tmp_path / "masks", tmp_path / "bin"))
    assert [compiler.path for compiler in found] == [f"{tmp_path}/bin/gcc"]


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_broken_compiler_or_tool_is_passed_over(tmp_path: Path, body: str) -> None:
    for name in ("gcc", "g++", "clang", "clang++", "cmake", "podman", "docker", "apptainer"):
        script(tmp_path / name, body)
    programs = here(tmp_path, timeout=0.5)
    assert read_compilers(programs) == ()
    assert read_tools(programs) == {}
    assert read_engines(programs) == ()


def test_tools_are_found_under_their_other_names(tmp_path: Path) -> None:
    script(tmp_path / "ninja-build", "echo 1.13.0.git.kitware.jobserver-pipe-1")
    script(tmp_path / "ld.lld", "echo 'LLD 18.1.3 (compatible with GNU linkers)'")
    assert read_tools(here(tmp_path)) == {
        "ninja": Tool(version="1.13.0", path=f"{tmp_path}/ninja-build"),
        "lld": Tool(version="18.1.3", path=f"{tmp_path}/ld.lld"),
    }


# ------------------------------------------------------------------------------ engines


def test_a_docker_client_without_its_daemon_is_not_running(tmp_path: Path) -> None:
    complaint = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    script(
        tmp_path / "docker",
        'if [ "$1" = --version ]; then echo "Docker version 20.10.24+dfsg1, build 297e128";\n'
        f'else echo; echo "{complaint}" >&2; exit 1; fi',
    )
    assert read_engines(here(tmp_path)) == (
        Engine(
            name="docker",
            version="20.10.24",
            path=f"{tmp_path}/docker",
            running=False,
            detail=complaint,
        ),
    )


def test_a_docker_daemon_that_does_not_answer_is_not_running(tmp_path: Path) -> None:
    script(
        tmp_path / "docker",
        'if [ "$1" = --version ]; then echo "Docker version 27.0.1"; else exec /bin/sleep 1000; fi',
    )
    (docker,) = read_engines(here(tmp_path, timeout=0.5))
    assert not docker.running
    assert "in time" in docker.detail


def test_engines_that_answer_are_running(tmp_path: Path) -> None:
    script(tmp_path / "docker", 'echo "Docker version 27.0.1, build x"')
    script(tmp_path / "podman", 'echo "podman version 4.3.1"')
    script(tmp_path / "buildah", 'echo "buildah version 1.28.2 (image-spec 1.1.0)"')
    script(tmp_path / "singularity", 'echo "singularity-ce version 4.1.0"')
    assert [(e.name, e.version, e.running) for e in read_engines(here(tmp_path))] == [
        ("podman", "4.3.1", True),
        ("docker", "27.0.1", True),
        ("buildah", "1.28.2", True),
        ("apptainer", "4.1.0", True),
    ]


def test_podman_under_dockers_name_says_so(tmp_path: Path) -> None:
    script(tmp_path / "docker", 'echo "podman version 4.3.1"')
    (docker,) = read_engines(here(tmp_path))
    assert (docker.running, docker.detail) == (True, "is podman")
