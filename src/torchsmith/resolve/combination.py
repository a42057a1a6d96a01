"""What must go together, and what it is called when it does not.

A `Combination` holds just what the rules look at, so that the search for the nearest
working one can try thousands of them in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.conditions import ANYWHERE, Place
from torchsmith.facts.files import Facts
from torchsmith.resolve.models import Conflict


class Combination(Struct, frozen=True):
    """What must go together. Empty text or tuple: not asked for."""

    torch: str
    python: str = ""
    cuda: str = ""
    archs: tuple[str, ...] = ()
    cudnn: str = ""
    compiler: tuple[str, str] | None = None
    companions: tuple[tuple[str, str], ...] = ()
    # Whether a companion may be of a release that was made for another torch.
    unmatched: bool = False
    board: str = ""
    jetpack: str = ""
    # The distribution built on: asked for, or the board's. Empty: this machine.
    system: str = ""
    # The distribution of this machine.
    here: str = ""
    toolkit: str = ""
    platform: str = "linux-x86_64"
    # What is built on: this machine's, where no distribution is named.
    place: Place = ANYWHERE
    # Pythons this machine has; a distribution has its own.
    pythons: tuple[str, ...] = ()
    # Whether it is a published wheel, and the GPUs that is to run on.
    published: bool = False
    gpus: tuple[str, ...] = ()
    # Whether torch itself is compiled, and whether anything is.
    from_source: bool = True
    compiled: bool = True
    # A base image of the recipe's own: what it holds is not ours to judge.
    own_base: bool = False

    def shown(self) -> str:
        """In words a person would use."""
        parts = [f"torch {self.torch}"]
        if self.python:
            parts.append(f"Python {self.python}")
        parts.append(f"CUDA {self.cuda}" if self.cuda else "no CUDA")
        if self.archs:
            parts.append(f"compute capability {', '.join(self.archs)}")
        if self.cudnn:
            parts.append(f"cuDNN {self.cudnn}")
        if self.compiler and self.compiler[1]:
            parts.append(f"{self.compiler[0]} {self.compiler[1]}")
        parts += [f"{name} {version}" for name, version in self.companions]
        if self.system:
            parts.append(self.system)
        if self.jetpack:
            parts.append(f"JetPack {self.jetpack}")
        return ", ".join(parts)


class Clash(Struct, frozen=True):
    """A broken rule: the conflict, and the parts of the combination it is about."""

    conflict: Conflict
    dimensions: tuple[str, ...]
    subject: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Tells the same clash in two combinations."""
        return self.conflict.kind, self.subject


Rule = Callable[[Facts, Combination], Iterator[Clash]]


def with_companion(asked: Combination, name: str, version: str) -> Combination:
    """The same combination with one companion at another release; empty: without it."""
    companions = tuple(
        (mine, version if mine == name else theirs)
        for mine, theirs in asked.companions
        if version or mine != name
    )
    return replace(asked, companions=companions)
