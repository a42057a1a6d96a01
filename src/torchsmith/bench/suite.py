"""The cases there are, by group, suite and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsmith.bench.worker import dense, elements, whole
from torchsmith.errors import UsageError
from torchsmith.names import did_you_mean

GROUPS = {
    "matmul": "products of matrices and vectors",
    "conv": "convolutions and pooling",
    "linalg": "solving and decomposing",
    "fft": "Fourier transforms",
    "elementwise": "chains of operations on each element",
    "reduction": "sums, means, maxima",
    "indexing": "picking, scattering, copying",
    "sort": "sorting and searching",
    "norm": "normalisation layers",
    "attention": "softmax, attention, losses",
    "embedding": "lookups in tables",
    "random": "random numbers",
    "overhead": "what a call costs, with and without autograd",
    "optimizer": "optimizer steps",
    "compile": "TorchScript and torch.compile",
    "loader": "data loaders, saving and loading",
    "import": "import torch in a fresh Python",
    "model": "training and inference of small networks",
}


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is timed on a device."""

    name: str
    group: str
    device: str


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard a suite tries: rounds in all, over so many lives of the workers, and block times."""

    rounds: int
    lives: int
    block: float
    blocks: int
    warm: float


EFFORTS = {
    "quick": Effort(rounds=12, lives=2, block=0.005, blocks=3, warm=0.1),
    "full": Effort(rounds=20, lives=4, block=0.01, blocks=3, warm=0.2),
}


def choose(
    suite: str, devices: Sequence[str], groups: Sequence[str] = (), skip: Sequence[str] = ()
) -> tuple[Case, ...]:
    """The cases of a suite, in the groups that are asked for and not in those left out."""
    for name in (*groups, *skip):
        if name not in GROUPS:
            raise UsageError(f"there is no group {name!r}", did_you_mean(name, GROUPS))
    suites = ("quick",) if suite == "quick" else ("quick", "full")
    found = [
        Case(name, group, device)
        for device in devices
        for file in (dense, elements, whole)
        for group, name, of_suite, on, _ in file.listed()
        if of_suite in suites and device in on.split()
        if (not groups or group in groups) and group not in skip
    ]
    if not found:
        raise UsageError(
            f"there is no case left on {', '.join(devices)}", f"Groups: {', '.join(GROUPS)}."
        )
    order = list(GROUPS)
    return tuple(sorted(found, key=lambda case: (case.device, order.index(case.group))))
