"""Reading this machine: every subject at once, since most of the time is spent waiting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchsmith.host.compilers import read_compilers, read_tools
from torchsmith.host.containers import read_engines
from torchsmith.host.cuda import installed, read_gpus
from torchsmith.host.limits import (
    read_cores,
    read_disk_free,
    read_huge_pages,
    read_memory,
    read_shm,
)
from torchsmith.host.models import Host
from torchsmith.host.probe import Programs
from torchsmith.host.system import (
    read_board,
    read_cpu_name,
    read_l4t,
    read_libc,
    read_platform,
    read_pythons,
    read_system,
)


def read_host(
    folder: Path,
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    brief: bool = False,
) -> Host:
    """Return what this machine has, with the free disk where `folder` is or will be.

    `root` and `environ` stand for the file tree and the environment to read it from. `brief`
    leaves out what no choice depends on: tools, container engines, the CPU's name.
    """
    programs = Programs(os.environ if environ is None else environ)
    platform = read_platform()
    with ThreadPoolExecutor(max_workers=8) as pool:
        pythons = pool.submit(read_pythons, programs)
        compilers = pool.submit(read_compilers, programs)
        tools = None if brief else pool.submit(read_tools, programs)
        cuda = pool.submit(installed, programs, platform.partition("-")[2], root)
        gpus = pool.submit(read_gpus, programs, root)
        engines = None if brief else pool.submit(read_engines, programs)
        cpu_name = None if brief else pool.submit(read_cpu_name, programs, root)
        libc = pool.submit(read_libc, programs, root)
    memory, available = read_memory(root)
    toolkits, libraries = cuda.result()
    found, driver = gpus.result()
    return Host(
        platform=platform,
        system=read_system(root),
        libc=libc.result(),
        kernel=os.uname().release,
        board=read_board(root),
        l4t=read_l4t(root),
        cpu_name=cpu_name.result() if cpu_name else "",
        pythons=pythons.result(),
        compilers=compilers.result(),
        tools=tools.result() if tools else {},
        cuda=toolkits,
        libraries=libraries,
        gpus=found,
        driver=driver,
        engines=engines.result() if engines else (),
        cores=read_cores(root),
        memory_bytes=memory,
        memory_available_bytes=available,
        disk_free_bytes=read_disk_free(folder),
        shm_bytes=read_shm(root),
        huge_pages=read_huge_pages(root),
        root=os.geteuid() == 0,
        apt=programs.find("apt-get") is not None,
    )
