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
        if len(exact) == 1 and "*" not in exact[0]:
            found[canonicalize_name(wanted.name)] = exact[0]
    return found


def brought_by_nvidia(library: str) -> str:
    """nvidia-cublas for libcublas.so.12; empty for what NVIDIA does not ship."""
    name = baseline().bringer(library)
    return name if name.startswith("nvidia-") else ""


def bringer(library: str, pins: Mapping[str, str]) -> Bringer:
    """The distribution that brings a library, at the version that is pinned."""
    name = brought_by_nvidia(library)
    for pinned, version in pins.items():
        suffix = pinned.removeprefix(name)
        if pinned.startswith(name) and re.fullmatch(r"(-cu\d+)?", suffix):
            # Up to CUDA 12 each has a folder; from 13 on they share one, except for those that
            # are not of the toolkit, which keep the suffix in their name.
            part = name.removeprefix("nvidia-").replace("-", "_") if suffix else _shared(pins, name)
            requirement = f'{pinned}=={version}; platform_system == "Linux"'
            return Bringer(requirement, f"nvidia/{part}/lib")
    raise UsageError(
        f"{library} comes with {name}, and it is not known in which version",
        "Name the versions it was built with: --pins FILE, as `pip freeze` prints them.",
    )


def _shared(pins: Mapping[str, str], name: str) -> str:
    for known in _NAMED_AFTER_CUDA:
        if known in pins:
            return f"cu{pins[known].partition('.')[0]}"
    raise UsageError(
        f"it is not known which CUDA {name} belongs to",
        f"Name the version of {_NAMED_AFTER_CUDA[1]} among the --pins, too.",
    )
