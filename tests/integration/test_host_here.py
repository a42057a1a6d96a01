"""What is read of this machine is what its own tools say of themselves."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torchsmith.host import Host, read_host

pytestmark = pytest.mark.integration


def said(*argv: str) -> str:
    """What a program prints, on either output, however it ends."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return (done.stdout + done.stderr).strip()


def works(name: str) -> bool:
    """Whether a program is here and answers when asked for its version."""
    path = shutil.which(name)
    if path is None:
        return False
    return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return read_host(tmp_path_factory.mktemp("work"))


def test_this_machine_travels_as_json(host: Host) -> None:
    assert Host.model_validate_json(host.model_dump_json()) == host


def test_the_system_is_this_one(host: Host) -> None:
    assert host.platform.startswith("linux-")
    assert host.kernel == said("uname", "-r")
    assert host.root == (said("id", "-u") == "0")
    assert host.apt == (shutil.which("apt-get") is not None)
    assert host.system.split("-")[0] == platform.freedesktop_os_release()["ID"]
    kind, version = platform.libc_ver()
    if kind == "glibc":
        assert host.libc is not None
        assert (host.libc.kind, host.libc.version) == (kind, version)


def test_gcc_is_the_one_that_answers(host: Host) -> None:
    path = shutil.which("gcc")
    assert path is not None, "the test command installs g++"
    version = said("gcc", "-dumpfullversion", "-dumpversion")
    first = next(compiler for compiler in host.compilers if compiler.kind == "gcc")
    if Path(path).resolve().name != "ccache":
        assert first.path == path
    assert first.version == version
    assert version in said(first.cxx, "--version")


@pytest.mark.parametrize("name", ["cmake", "ninja", "make", "git", "patch", "ccache", "mold"])
def test_a_tool_is_the_one_that_answers(host: Host, name: str) -> None:
    assert (name in host.tools) == works(name)
    if name in host.tools:
        assert host.tools[name].path == shutil.which(name)
        assert host.tools[name].version in said(name, "--version").splitlines()[0]


def test_every_python_starts_and_has_the_headers_it_is_said_to_have(host: Host) -> None:
    assert host.pythons
    assert len({python.path for python in host.pythons}) == len(host.pythons)
    for python in host.pythons:
        assert said(python.path, "-V") == f"Python {python.version}"
        include = said(python.path, "-c", "import sysconfig; print(sysconfig.get_path('include'))")
        assert python.headers == (Path(include) / "Python.h").is_file()


def test_python3_of_this_shell_is_among_them(host: Host) -> None:
    real = said("python3", "-c", "import os, sys; print(os.path.realpath(sys.executable))")
    assert real in {python.path for python in host.pythons}


def test_nvcc_belongs_to_a_toolkit_with_headers(host: Host) -> None:
    if not works("nvcc"):
        assert not host.cuda or all(Path(each.nvcc).is_file() for each in host.cuda)
        return
    version = re.search(r"V(\d+\.\d+\.\d+)", said("nvcc", "--version"))
    assert version is not None
    toolkit = next(toolkit for toolkit in host.cuda if toolkit.version == version[1])
    assert Path(toolkit.path, "include/cuda.h").is_file()
    assert f"V{toolkit.version}" in said(toolkit.nvcc, "--version")
    assert len({each.path for each in host.cuda}) == len(host.cuda)


def test_a_driver_is_told_where_one_answers(host: Host) -> None:
    if shutil.which("nvidia-smi") is None:
        assert host.gpus == ()
        assert host.driver is None
        return
    listed = [line for line in said("nvidia-smi", "-L").splitlines() if line.startswith("GPU ")]
    assert [gpu.name for gpu in host.gpus] == [
        line.split(": ", 1)[1].rpartition(" (UUID")[0] for line in listed
    ]


def test_no_more_than_the_machine_is_promised(host: Host) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert host.memory_bytes is not None
    assert host.memory_available_bytes is not None
    assert 0 < host.memory_available_bytes <= host.memory_bytes
    assert host.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * page
    assert 1 <= host.cores <= int(said("nproc"))
    assert host.disk_free_bytes is not None
    assert host.disk_free_bytes > 0


def test_shared_memory_is_what_df_says(host: Host) -> None:
    if not Path("/dev/shm").is_dir():
        assert host.shm_bytes is None
        return
    assert host.shm_bytes == int(said("df", "-B1", "--output=size", "/dev/shm").split()[-1])


def test_huge_pages_are_given_as_the_kernel_says(host: Host) -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    words = setting.read_text().split() if setting.is_file() else ["[]"]
    assert f"[{host.huge_pages}]" in words


def test_docker_runs_only_where_its_daemon_answers(host: Host) -> None:
    docker = next((engine for engine in host.engines if engine.name == "docker"), None)
    assert (docker is not None) == works("docker")
    if docker is None:
        return
    answers = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=60)
    server = b"Server Version" in answers.stdout or docker.detail == "is podman"
    assert docker.running == server
    assert docker.running or docker.detail


@pytest.mark.parametrize("name", ["podman", "buildah", "apptainer"])
def test_an_engine_is_the_one_that_answers(host: Host, name: str) -> None:
    engine = next((engine for engine in host.engines if engine.name == name), None)
    assert (engine is not None) == works(name)
    if engine is None:
        return
    assert engine.path == shutil.which(name)
    assert engine.version in said(name, "--version")
