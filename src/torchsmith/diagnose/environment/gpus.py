"""The driver and the GPUs against the CUDA that torch was built with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchsmith.diagnose.environment.seen import Seen
from torchsmith.facts.cuda import driver_standing, find_toolkit, runs_on
from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.models import Toolkit
from torchsmith.facts.ranges import release
from torchsmith.findings import Finding
from torchsmith.resolve.archs import arch_of_installed

_INSTALL = "https://pytorch.org/get-started/locally"


def judge_gpus(seen: Seen, facts: Facts) -> Iterator[Finding]:
    """Every line about GPUs."""
    cuda = seen.facts.cuda
    if cuda is None:
        yield from _without_cuda(seen)
        return
    toolkit = find_toolkit(facts, cuda) if re.fullmatch(r"\d+(\.\d+)*", cuda) else None
    yield from _driver(seen, cuda, toolkit)
    yield from _forward_compatibility(seen, facts)
    yield from _code(seen, facts)
    yield from _usable(seen)


def _without_cuda(seen: Seen) -> Iterator[Finding]:
    if seen.facts.hip is not None or not seen.facts.version:
        return
    if seen.host.gpus:
        yield Finding(
            "CUDA",
            f"torch {seen.facts.version} is built without it",
            "warn",
            f"The {seen.host.gpus[0].name} of this machine is not used.",
            f"Install a build for CUDA ({_INSTALL}), or build one: cuda = 'host' in a recipe.",
        )
    else:
        yield Finding("CUDA", "torch is built without it, and there is no GPU", "info")


def _driver(seen: Seen, cuda: str, toolkit: Toolkit | None) -> Iterator[Finding]:
    driver = seen.host.driver
    if driver is None or toolkit is None:
        said = f"{driver or 'none'}; torch is built with CUDA {cuda}"
        yield Finding("driver", said, "info")
        return
    found = f"{driver}; CUDA {cuda} wants {toolkit.driver}"
    standing = driver_standing(toolkit, driver)
    if standing == "enough":
        yield Finding("driver", f"{found} or newer", "ok")
    elif standing == "minor":
        yield Finding(
            "driver",
            f"{found} or newer",
            "warn",
            "It runs by minor-version compatibility: machine code does, and PTX, which GPUs newer "
            "than this torch need, does not.",
            f"Update the driver to {toolkit.driver} or newer.",
        )
    else:
        yield Finding(
            "driver",
            f"{found}, {toolkit.driver_compat or toolkit.driver} at least",
            "fail",
            'No GPU can be used: torch says that the driver is too old, or "Error 804: forward '
            'compatibility was attempted on non supported HW".',
            f"Update the driver and restart, or install a torch for an older CUDA ({_INSTALL}).",
        )


def _forward_compatibility(seen: Seen, facts: Facts) -> Iterator[Finding]:
    """A libcuda that is not the driver's: that of cuda-compat, which most GPUs refuse."""
    path, version = seen.libcuda
    driver = seen.host.driver
    if not version or driver is None or release(version) == release(driver):
        return
    found = f"libcuda is that of driver {version} ({path}), the kernel's is {driver}"
    kinds = {gpu.kind for item in seen.host.gpus if (gpu := find_gpu(facts, item.name))}
    cure = (
        "Take that folder out of LD_LIBRARY_PATH or /etc/ld.so.conf.d (in NVIDIA's images: remove "
        "the package cuda-compat); the driver's own libcuda then serves."
    )
    if release(version) < release(driver):
        why = "A driver's library that is older than the kernel's ends in Error 804 or 803."
        yield Finding("forward compatibility", found, "fail", why, cure)
    elif kinds & {"geforce", "workstation"}:
        why = "Only data centre GPUs take one that is newer; others stop with Error 804."
        yield Finding("forward compatibility", found, "fail", why, cure)
    else:
        why = "Data centre GPUs take one that is newer than the kernel's, from some drivers on."
        yield Finding("forward compatibility", found, "warn", why, cure)


def _code(seen: Seen, facts: Facts) -> Iterator[Finding]:
    """Whether torch has code for each of the GPUs."""
    listed = " ".join(seen.archs) or "unknown"
    if not seen.host.gpus:
        yield Finding("GPU", f"none here; torch has code for {listed}", "info")
        return
    for gpu in seen.host.gpus:
        arch = arch_of_installed(facts, gpu)
        found = f"{gpu.name} ({arch or '?'}); torch has code for {listed}"
        if not arch or not seen.archs:
            yield Finding("GPU", found, "info")
        elif any(runs_on(arch, _dotted(code)) for code in seen.archs if code.startswith("sm_")):
            yield Finding("GPU", found, "ok")
        elif any(
            runs_on(arch, _dotted(code), ptx=True)
            for code in seen.archs
            if code.startswith("compute_")
        ):
            yield Finding(
                "GPU",
                found,
                "warn",
                "Only PTX fits: the driver compiles every kernel at its first use, for minutes, "
                "and keeps the result in ~/.nv/ComputeCache.",
                f"Install a newer torch, or build one with gpus = '{arch}' in a recipe.",
            )
        else:
            yield Finding(
                "GPU",
                found,
                "fail",
                'It stops with "no kernel image is available for execution on the device".',
                f"Install a torch that has it, or build one with gpus = '{arch}' in a recipe.",
            )


def _dotted(code: str) -> str:
    """9.0 for sm_90, 12.0a for sm_120a."""
    digits = code.partition("_")[2]
    number = digits.rstrip("af")
    return f"{number[:-1]}.{number[-1]}{digits[len(number) :]}"


def _usable(seen: Seen) -> Iterator[Finding]:
    """What torch itself said when it was asked for a GPU."""
    if not seen.host.gpus or seen.loaded.gpus is None:
        return
    trouble = seen.loaded.gpu_trouble
    hidden = seen.environ.get("CUDA_VISIBLE_DEVICES")
    if seen.loaded.gpus and not trouble:
        yield Finding("GPU from torch", f"{seen.loaded.gpus}, and one computes", "ok")
    elif hidden is not None and not seen.loaded.gpus and hidden.strip() in ("", "-1"):
        yield Finding(
            "GPU from torch",
            f"none: CUDA_VISIBLE_DEVICES is {hidden.strip()!r}",
            "warn",
            "It hides every GPU.",
            "unset CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Finding(
            "GPU from torch",
            trouble or "none",
            "fail",
            "The machine has a GPU, and torch cannot compute on it.",
            "Mend what the lines above name; else `torchsmith diagnose` on this message, and "
            "nvidia-smi on the machine itself.",
        )
