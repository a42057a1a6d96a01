"""From what was seen of an environment to what is wrong with it; pure.

The machine is judged here: driver and GPUs against the CUDA that torch was built with, processor,
threads and shared memory against what torch makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchsmith.checks import Check, Status
from torchsmith.diagnose.environment.libraries import judge_libraries
from torchsmith.diagnose.environment.packages import judge_packages
from torchsmith.diagnose.environment.seen import Seen
from torchsmith.facts.cuda import driver_standing, find_toolkit, runs_on
from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.models import Toolkit
from torchsmith.facts.ranges import release
from torchsmith.resolve.archs import arch_of_installed

_INSTALL = "https://pytorch.org/get-started/locally"
GIB = 1 << 30
# 128 pictures of 224 x 224 in float32, a common batch, two of them ahead for each worker
# (DataLoader's prefetch_factor). Eight GiB are then enough for 55 workers.
BATCH = 128 * 3 * 224 * 224 * 4
AHEAD = 2
# In the order torch prefers them, and the flags it asks the processor for.
# https://github.com/pytorch/pytorch/blob/v2.6.0/aten/src/ATen/native/DispatchStub.cpp
_CAPABILITIES = (
    ("AVX512", frozenset({"avx512vl", "avx512bw", "avx512dq", "fma"})),
    ("AVX2", frozenset({"avx2", "fma"})),
)


def examine(seen: Seen, facts: Facts) -> list[Check]:
    """Every finding: what is installed, the GPUs, the libraries, the machine."""
    return [
        *judge_packages(seen, facts),
        *_judge_gpus(seen, facts),
        *judge_libraries(seen),
        *_capability(seen),
        *_threads(seen),
        *_shared_memory(seen),
    ]


def _judge_gpus(seen: Seen, facts: Facts) -> Iterator[Check]:
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


def _without_cuda(seen: Seen) -> Iterator[Check]:
    if seen.facts.hip is not None or not seen.facts.version:
        return
    if seen.host.gpus:
        yield Check(
            "GPU",
            "CUDA",
            "warn",
            f"torch {seen.facts.version} is built without it",
            why=f"The {seen.host.gpus[0].name} of this machine is not used.",
            cure=f"Install a build for CUDA ({_INSTALL}), or build one: cuda = 'host' in a recipe.",
        )
    else:
        yield Check("GPU", "CUDA", "info", "torch is built without it, and there is no GPU")


def _driver(seen: Seen, cuda: str, toolkit: Toolkit | None) -> Iterator[Check]:
    driver = seen.host.driver
    if driver is None or toolkit is None:
        message = f"{driver or 'none'}; torch is built with CUDA {cuda}"
        yield Check("GPU", "driver", "info", message)
        return
    found = f"{driver}; CUDA {cuda} wants {toolkit.driver}"
    standing = driver_standing(toolkit, driver)
    if standing == "enough":
        yield Check("GPU", "driver", "pass", f"{found} or newer")
    elif standing == "minor":
        yield Check(
            "GPU",
            "driver",
            "warn",
            f"{found} or newer",
            why="It runs by minor-version compatibility: machine code does, and PTX, which newer "
            "GPUs need, does not.",
            cure=f"Update the driver to {toolkit.driver} or newer.",
        )
    else:
        yield Check(
            "GPU",
            "driver",
            "fail",
            f"{found}, {toolkit.driver_compat or toolkit.driver} at least",
            why='No GPU can be used: torch says that the driver is too old, or "Error 804: forward '
            'compatibility was attempted on non supported HW".',
            cure=f"Update the driver and restart, or take a torch for an older CUDA ({_INSTALL}).",
        )


def _forward_compatibility(seen: Seen, facts: Facts) -> Iterator[Check]:
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
    status: Status = "fail"
    if release(version) < release(driver):
        why = "A driver's library that is older than the kernel's ends in Error 804 or 803."
    elif kinds & {"geforce", "workstation"}:
        why = "Only data centre GPUs take one that is newer; others stop with Error 804."
    else:
        status = "warn"
        why = "Data centre GPUs take one that is newer than the kernel's, from some drivers on."
    yield Check("GPU", "forward compatibility", status, found, why=why, cure=cure)


def _code(seen: Seen, facts: Facts) -> Iterator[Check]:
    """Whether torch has code for each of the GPUs."""
    listed = " ".join(seen.archs) or "unknown"
    if not seen.host.gpus:
        yield Check("GPU", "GPU", "info", f"none here; torch has code for {listed}")
        return
    for gpu in seen.host.gpus:
        arch = arch_of_installed(facts, gpu)
        found = f"{gpu.name} ({arch or '?'}); torch has code for {listed}"
        if not arch or not seen.archs:
            yield Check("GPU", "GPU", "info", found)
        elif any(runs_on(arch, _dotted(code)) for code in seen.archs if code.startswith("sm_")):
            yield Check("GPU", "GPU", "pass", found)
        elif any(
            runs_on(arch, _dotted(code), ptx=True)
            for code in seen.archs
            if code.startswith("compute_")
        ):
            yield Check(
                "GPU",
                "GPU",
                "warn",
                found,
                why="Only PTX fits: the driver compiles every kernel at first use, for minutes, "
                "and keeps the result in ~/.nv/ComputeCache.",
                cure=f"Install a newer torch, or build one with gpus = '{arch}' in a recipe.",
            )
        else:
            yield Check(
                "GPU",
                "GPU",
                "fail",
                found,
                why='It stops with "no kernel image is available for execution on the device".',
                cure=f"Install a torch that has it, or build one with gpus = '{arch}' in a recipe.",
            )


def _dotted(code: str) -> str:
    """9.0 for sm_90, 12.0a for sm_120a."""
    digits = code.partition("_")[2]
    number = digits.rstrip("af")
    return f"{number[:-1]}.{number[-1]}{digits[len(number) :]}"


def _usable(seen: Seen) -> Iterator[Check]:
    """What torch itself said when it was asked for a GPU."""
    if not seen.host.gpus or seen.loaded.gpus is None:
        return
    trouble = seen.loaded.gpu_trouble
    hidden = seen.environ.get("CUDA_VISIBLE_DEVICES")
    if seen.loaded.gpus and not trouble:
        yield Check("GPU", "GPU from torch", "pass", f"{seen.loaded.gpus}, and one computes")
    elif hidden is not None and not seen.loaded.gpus and hidden.strip() in ("", "-1"):
        yield Check(
            "GPU",
            "GPU from torch",
            "warn",
            f"none: CUDA_VISIBLE_DEVICES is {hidden.strip()!r}",
            why="It hides every GPU.",
            cure="unset CUDA_VISIBLE_DEVICES",
        )
    else:
        yield Check(
            "GPU",
            "GPU from torch",
            "fail",
            trouble or "none",
            why="The machine has a GPU, and torch cannot compute on it.",
            cure="Mend what the lines above name; else `torchsmith diagnose` on this message, and "
            "nvidia-smi on the machine itself.",
        )


def best_capability(flags: frozenset[str]) -> str:
    """What torch would use on a processor with these flags; empty where it cannot be told."""
    return next((name for name, wanted in _CAPABILITIES if wanted <= flags), "")


def _capability(seen: Seen) -> Iterator[Check]:
    used = seen.facts.build.cpu
    if not used:
        return
    best = best_capability(seen.cpu_flags)
    names = [name for name, _ in _CAPABILITIES]
    if not best or (used in names and names.index(used) <= names.index(best)):
        yield Check("machine", "CPU capability", "pass" if best else "info", used)
        return
    found = f"{used}, and this processor has {best}"
    why = "Vector instructions that are there are not used: kernels run at a part of their speed."
    wanted = seen.environ.get("ATEN_CPU_CAPABILITY")
    cure = (
        f"unset ATEN_CPU_CAPABILITY, which says {wanted!r}"
        if wanted
        else f"This torch was built without {best} kernels: install another, or build one here."
    )
    yield Check("machine", "CPU capability", "warn", found, why=why, cure=cure)


def _threads(seen: Seen) -> Iterator[Check]:
    threads, cores = seen.facts.threads, seen.host.cores
    if threads is None:
        return
    found = f"{threads}, on {cores} core{'' if cores == 1 else 's'}"
    wanted = seen.environ.get("OMP_NUM_THREADS")
    if threads > cores:
        why = "More threads than cores this process may use wait for each other."
        limit = f"export OMP_NUM_THREADS={cores}, or torch.set_num_threads({cores})"
        yield Check("machine", "threads", "warn", found, why=why, cure=limit)
    elif threads == 1 < cores:
        why = "Every operator runs on one core."
        cure = (
            f"unset OMP_NUM_THREADS, which says {wanted!r}"
            if wanted
            else "torch may be built without OpenMP: torch.__config__.parallel_info() tells."
        )
        yield Check("machine", "threads", "warn", found, why=why, cure=cure)
    else:
        yield Check("machine", "threads", "pass", found)


def _shared_memory(seen: Seen) -> Iterator[Check]:
    size = seen.host.shm_bytes
    if size is None:
        yield Check("machine", "/dev/shm", "info", "unknown")
        return
    workers = seen.workers
    wanted = workers * AHEAD * BATCH
    found = f"{_gib(size)}; {workers} DataLoader workers may fill {_gib(wanted)}"
    if size >= wanted:
        yield Check("machine", "/dev/shm", "pass", found)
        return
    enough = max(1, -(-wanted // GIB))
    yield Check(
        "machine",
        "/dev/shm",
        "warn",
        found,
        why="Workers hand batches over through it, and die with a bus error where it is full "
        "(counted: 128 pictures of 224 x 224, two batches ahead for each).",
        cure=f"In a container --shm-size={enough}g; else mount -o remount,size={enough}G /dev/shm; "
        f"or at most {size // (AHEAD * BATCH)} workers.",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.0f} MiB"
