"""The machine against what torch makes of it: processor, threads, shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from torchsmith.diagnose.environment.seen import Seen
from torchsmith.findings import Finding

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


def judge_machine(seen: Seen) -> Iterator[Finding]:
    """Every line about the machine itself."""
    yield from _capability(seen)
    yield from _threads(seen)
    yield from _shared_memory(seen)


def best_capability(flags: frozenset[str]) -> str:
    """What torch would use on a processor with these flags; empty where it cannot be told."""
    return next((name for name, asked in _CAPABILITIES if asked <= flags), "")


def _capability(seen: Seen) -> Iterator[Finding]:
    used = seen.facts.build.cpu
    if not used:
        return
    best = best_capability(seen.cpu_flags)
    names = [name for name, _ in _CAPABILITIES]
    if not best or (used in names and names.index(used) <= names.index(best)):
        yield Finding("CPU capability", used, "ok" if best else "info")
        return
    found = f"{used}, and this processor has {best}"
    why = "Vector instructions that are there are not used: kernels run at a part of their speed."
    asked = seen.environ.get("ATEN_CPU_CAPABILITY")
    cure = (
        f"unset ATEN_CPU_CAPABILITY, which says {asked!r}"
        if asked
        else f"This torch was built without {best} kernels: install another, or build one here."
    )
    yield Finding("CPU capability", found, "warn", why, cure)


def _threads(seen: Seen) -> Iterator[Finding]:
    threads, cores = seen.facts.threads, seen.host.cores
    if threads is None:
        return
    found = f"{threads}, on {cores} core{'' if cores == 1 else 's'}"
    asked = seen.environ.get("OMP_NUM_THREADS")
    if threads > cores:
        why = "More threads than cores this process may use wait for each other."
        limit = f"export OMP_NUM_THREADS={cores}, or torch.set_num_threads({cores})"
        yield Finding("threads", found, "warn", why, limit)
    elif threads == 1 < cores:
        why = "Every operator runs on one core."
        cure = (
            f"unset OMP_NUM_THREADS, which says {asked!r}"
            if asked
            else "torch may be built without OpenMP: torch.__config__.parallel_info() tells."
        )
        yield Finding("threads", found, "warn", why, cure)
    else:
        yield Finding("threads", found, "ok")


def _shared_memory(seen: Seen) -> Iterator[Finding]:
    size = seen.host.shm_bytes
    if size is None:
        yield Finding("/dev/shm", "unknown", "info")
        return
    workers = seen.workers
    wanted = workers * AHEAD * BATCH
    found = f"{_gib(size)}; {workers} DataLoader workers may fill {_gib(wanted)}"
    if size >= wanted:
        yield Finding("/dev/shm", found, "ok")
        return
    enough = max(1, -(-wanted // GIB))
    yield Finding(
        "/dev/shm",
        found,
        "warn",
        "Workers hand batches over through it, and die with a bus error where it is full "
        "(counted: 128 pictures of 224 x 224, two batches ahead for each).",
        f"In a container --shm-size={enough}g; else mount -o remount,size={enough}G /dev/shm; or "
        f"at most {size // (AHEAD * BATCH)} workers.",
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.0f} MiB"
