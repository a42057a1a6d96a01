"""The names results carry: wheel files, version labels, conda build strings."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.facts.ranges import python_release
from torchsmith.resolve.models import Arch


def python_tag(python: str) -> str:
    """3.11 -> cp311; 3.13t -> cp313, for the interpreter is the same."""
    return f"cp{python.removesuffix('t').replace('.', '')}"


def abi_tag(python: str) -> str:
    """3.11 -> cp311, 3.13t -> cp313t, 3.5 -> cp35m: that flag went away with Python 3.8."""
    if python.endswith("t"):
        return f"{python_tag(python)}t"
    return python_tag(python) + ("m" if python_release(python) < (3, 8) else "")


def wheel_name(package: str, version: str, python: str, platform: str) -> str:
    """The file name a wheel has when setup.py has made it, before its platform is repaired."""
    tag = platform.replace("linux-", "linux_")
    return f"{package}-{version}-{python_tag(python)}-{abi_tag(python)}-{tag}.whl"


def version_label(asked: str | None, cuda: str, archs: Sequence[Arch], *, explicit: bool) -> str:
    """The local version label: cpu, cu126, or cu126.sm86 for GPUs that were asked for by name."""
    if asked is not None:
        return "" if asked == "none" else asked
    if not cuda:
        return "cpu"
    label = f"cu{cuda.replace('.', '')}"
    if explicit and len(archs) <= 3:
        label = ".".join([label, *(f"sm{arch.number}" for arch in archs)])
    return label


def conda_build_string(python: str, cuda_build: str, cudnn: str, number: int) -> str:
    """As PyTorch's own channel writes it with CUDA, and as conda-forge does without."""
    if not cuda_build:
        return f"cpu_py{python.replace('.', '')}_{number}"
    parts = [f"py{python}", f"cuda{cuda_build}"]
    if cudnn:
        parts.append(f"cudnn{cudnn}")
    return "_".join([*parts, str(number)])
