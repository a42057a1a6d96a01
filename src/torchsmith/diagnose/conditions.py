"""Telling causes apart by looking at the machine."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.diagnose.models import Condition
from torchsmith.facts.cuda import driver_standing, find_toolkit
from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu
from torchsmith.host.models import Host

# Docker's own is 64 MB; DataLoader workers hand every batch over through it.
LITTLE_SHM = 1 << 30
# What one compiler of torch's larger files takes.
LITTLE_MEMORY_A_CORE = 2 << 30


def holds(
    condition: Condition, host: Host | None, caught: Mapping[str, str], facts: Facts
) -> bool | None:
    """Whether it is so; None where this machine does not tell."""
    if host is None:
        return None
    match condition:
        case "driver-older-than-cuda":
            return _driver_older(host, caught, facts)
        case "driver-new-enough":
            older = _driver_older(host, caught, facts)
            return None if older is None else not older
        case "driver-not-answering":
            # The kernel has a driver, and nvidia-smi cannot talk to it.
            return None if host.driver is None else not host.gpus
        case "gpu-without-forward-compatibility":
            kinds = {gpu.kind for item in host.gpus if (gpu := find_gpu(facts, item.name))}
            return bool(kinds & {"geforce", "workstation"}) if kinds else None
        case "little-shared-memory":
            return None if host.shm_bytes is None else host.shm_bytes < LITTLE_SHM
        case "little-memory":
            memory = host.memory_bytes
            return None if memory is None else memory < host.cores * LITTLE_MEMORY_A_CORE


def _driver_older(host: Host, caught: Mapping[str, str], facts: Facts) -> bool | None:
    """Whether the driver is older than the CUDA that is used asks for."""
    installed = [item.cuda for item in host.torches if item.cuda]
    wanted = [caught.get("cuda", ""), *installed, *(item.version for item in host.cuda)]
    for version in filter(None, wanted):
        try:
            toolkit = find_toolkit(facts, ".".join(version.split(".")[:2]))
        except ValueError:
            continue
        if toolkit is not None and host.driver is not None:
            return driver_standing(toolkit, host.driver) == "older"
    return None
