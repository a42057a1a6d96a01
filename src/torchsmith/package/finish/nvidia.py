"""NVIDIA's wheels on PyPI: which of them brings a library, at which version, and where to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchsmith.errors import UsageError
from torchsmith.verify.linkage import baseline

# Whose version is CUDA's own.
_NAMED_AFTER_CUDA = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cublas", "nvidia-cuda-nvrtc")
# Not of the toolkit: each has versions of its own, and names itself after a CUDA.
_APART = ("nvidia-cudnn", "nvidia-cusparselt", "nvidia-nccl", "nvidia-nvshmem")
# What `cuda-toolkit` calls them, where that is not the end of their own name.
_EXTRAS = {
    "nvidia-cuda-runtime": "cudart",
    "nvidia-cuda-nvrtc": "nvrtc",
    "nvidia-cuda-cupti": "cupti",
}


@dataclass(frozen=True, slots=True)
class Bringer:
    """A distribution, and the folder of site-packages its libraries lie in."""

    requirement: str
    folder: str


def read_pins(lines: Iterable[str]) -> dict[str, str]:
    """Distributions and their versions, from what `pip freeze` prints or wheels require."""
    found: dict[str, str] = {}
    for line in lines:
        try:
            wanted = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        exact = [item.version for item in wanted.specifier if item.operator in ("==", "===")]
        if len(exact) == 1:
            found[canonicalize_name(wanted.name)] = exact[0]
    return found


def brought_by_nvidia(library: str) -> str:
    """nvidia-cublas for libcublas.so.12; empty for what NVIDIA does not ship."""
    name = baseline().bringer(library)
    return name if name.startswith("nvidia-") else ""


def bringer(library: str, pins: Mapping[str, str]) -> Bringer:
    """The distribution that brings a library, in the version that is pinned.

    Where only the toolkit's release is, its own list of parts (`cuda-toolkit`) says the rest.
    """
    name = brought_by_nvidia(library)
    for pinned, version in pins.items():
        suffix = pinned.removeprefix(name)
        if pinned.startswith(name) and re.fullmatch(r"(-cu\d+)?", suffix):
            return _brought(f"{pinned}=={version}", name, suffix or _cuda(pins))
    cuda = _cuda(pins)
    if name in _APART and cuda:
        # The library's own number is its version's first.
        number = library.partition(".so.")[2].partition(".")[0]
        return _brought(f"{name}{cuda}=={number}.*", name, cuda)
    if "cuda-toolkit" in pins:
        extra = _EXTRAS.get(name, name.removeprefix("nvidia-"))
        return _brought(f"cuda-toolkit[{extra}]=={pins['cuda-toolkit']}", name, cuda)
    raise UsageError(
        f"{library} comes with {name}, and it is not known in which version",
        "Name the versions it was built with: --pins FILE, as `pip freeze` prints them.",
    )


def _cuda(pins: Mapping[str, str]) -> str:
    """-cu12, by the first that is named after CUDA; empty if none is."""
    known = next((pins[name] for name in _NAMED_AFTER_CUDA if name in pins), "")
    return f"-cu{known.partition('.')[0]}" if known else ""


def _brought(requirement: str, name: str, cuda: str) -> Bringer:
    """Up to CUDA 12 every part has a folder; from 13 on those of the toolkit share one."""
    part = name.removeprefix("nvidia-").replace("-", "_")
    if name not in _APART and int(cuda.removeprefix("-cu") or 0) >= 13:
        part = cuda.removeprefix("-")
    return Bringer(f'{requirement}; platform_system == "Linux"', f"nvidia/{part}/lib")
