"""Judging the GPU code that is really in a package against the GPUs asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsmith.resolve.models import CudaChoice
from torchsmith.verify.binary import Library
from torchsmith.verify.checks import Check, Status, few
from torchsmith.verify.fatbin import order

GROUP = "GPU code"
_HAVE_SOME = ("torch", "torchvision")


def due(cuda: CudaChoice) -> tuple[str, ...]:
    """What a build for these GPUs should hold, as nvcc names it."""
    names = {f"sm_{arch.number}" for arch in cuda.archs}
    names |= {f"compute_{arch.number}" for arch in cuda.archs if arch.ptx}
    return tuple(sorted(names, key=order))


def judge_gpu_code(
    name: str, libraries: Sequence[Library], asked: CudaChoice | None = None
) -> Iterator[Check]:
    """Say which GPUs a package has code for; with `asked`, whether it is those and no others.

    Torch itself may hold more: where it is built for 9.0, one file is for sm_90a, too.
    https://github.com/pytorch/pytorch/blob/v2.6.0/cmake/Codegen.cmake
    """
    holding = [library for library in libraries if library.gpu]
    unread = [
        f"{library.path}: {library.gpu_unread}" for library in libraries if library.gpu_unread
    ]
    if unread:
        cure = "cuobjdump --list-elf --list-ptx FILE, of a newer CUDA, may know it"
        yield Check(GROUP, name, "warn", few(unread, 2), "a form we know", cure=cure)
    found = sorted({code for library in holding for code in library.gpu}, key=order)
    there = " ".join(found) or "none"
    if asked is None or not asked.archs:
        if holding:
            yield Check(GROUP, name, "info", f"{there}, in {few([i.name for i in holding])}")
        return
    wanted = due(asked)
    missing = [code for code in wanted if code not in found]
    extra = [code for code in found if code not in wanted]
    cure = f"TORCH_CUDA_ARCH_LIST={asked.arch_list!r}, and build again"
    if name == "torch":
        extra = [code for code in extra if code.rstrip("af") not in wanted]
    status: Status = "fail" if missing or extra else "pass"
    # Torch may have a reason for more; an extension need not have any.
    if (name == "torch" and not missing and extra) or (name not in _HAVE_SOME and not found):
        status = "warn"
    if status == "pass":
        yield Check(GROUP, name, "pass", there)
    else:
        yield Check(GROUP, name, status, there, " ".join(wanted), cure=cure)
