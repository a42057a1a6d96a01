"""A host is a value: it can be read from an empty machine, and travels as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from torchsmith.host import read_host
from torchsmith.host.models import (
    Compiler,
    Engine,
    Host,
    InstalledGpu,
    Libc,
    Library,
    Python,
    Tool,
    Toolkit,
)

pytestmark = pytest.mark.unit

FULL = Host(
    platform="linux-x86_64",
    system="ubuntu-22.04",
    libc=Libc(kind="glibc", version="2.35"),
    kernel="6.8.0-45-generic",
    board="",
    l4t="32.4.4",
    cpu_name="AMD EPYC 7763",
    pythons=(Python(version="3.11.7", path="/usr/bin/python3.11", headers=True),),
    compilers=(Compiler(kind="gcc", version="12.2.0", path="/usr/bin/gcc", cxx="/usr/bin/g++"),),
    tools={"cmake": Tool(version="3.25.1", path="/usr/bin/cmake")},
    cuda=(Toolkit(version="12.4.131", path="/opt/cuda", nvcc="/opt/cuda/bin/nvcc"),),
    libraries={"cudnn": Library(version="9.1.0", path="/usr/include")},
    gpus=(InstalledGpu(name="NVIDIA A100", arch="8.0", memory_mb=81920),),
    driver="550.54.15",
    engines=(Engine(name="podman", version="4.3.1", path="/usr/bin/podman", running=True),),
    cores=64,
    memory_bytes=1 << 38,
    memory_available_bytes=1 << 37,
    disk_free_bytes=1 << 40,
    shm_bytes=1 << 36,
    huge_pages="madvise",
    root=True,
    apt=True,
)


@pytest.mark.parametrize("host", [FULL, Host(platform="linux-aarch64")], ids=["full", "bare"])
def test_a_host_travels_as_json_and_comes_back_the_same(host: Host) -> None:
    assert Host.model_validate_json(host.model_dump_json()) == host


def test_an_empty_machine_can_be_read(tmp_path: Path) -> None:
    host = read_host(tmp_path, root=tmp_path / "nothing", environ={})
    assert (host.system, host.compilers, host.tools, host.cuda) == ("", (), {}, ())
    assert (host.libraries, host.gpus, host.engines, host.apt) == ({}, (), (), False)
    assert host.cores >= 1
    assert len(host.pythons) == 1
    assert Host.model_validate_json(host.model_dump_json()) == host


def test_a_host_is_read_from_the_tree_and_the_path_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=ubuntu\nVERSION_ID=18.04\n")
    (tmp_path / "bin").mkdir()
    for name, body in {
        "apt-get": "exit 0",
        "nvidia-smi": "echo 'NVIDIA H200, 9.0, 143771, 580.159.04'",
        "cmake": "echo 'cmake version 3.10.2'",
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    host = read_host(tmp_path, root=tmp_path, environ={"PATH": str(tmp_path / "bin")})
    assert host.system == "ubuntu-18.04"
    assert host.apt
    assert host.driver == "580.159.04"
    assert host.gpus[0].arch == "9.0"
    assert host.tools == {"cmake": Tool(version="3.10.2", path=f"{tmp_path}/bin/cmake")}


@pytest.mark.parametrize(
    "wrong",
    [
        {"platform": "linux-x86_64", "gpu": []},
        {"platform": "linux-x86_64", "cores": 0},
        {"platform": "linux-x86_64", "driver": "new"},
        {"platform": "linux-x86_64", "gpus": [{"name": "A100", "arch": "sm_80"}]},
        {"platform": "linux-x86_64", "memory_bytes": -1},
        {},
    ],
)
def test_a_host_written_wrongly_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Host.model_validate(wrong)


def test_a_host_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FULL.cores = 2  # type: ignore[misc]
