"""Questions about PyTorch's releases and what goes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol, TypeVar

from torchsmith.facts.files import Facts
from torchsmith.facts.models import (
    Library,
    LibraryRelease,
    PublishedArchs,
    Source,
    StackPackage,
    TorchRange,
    TorchRelease,
    WheelCudnn,
    WheelLibc,
)
from torchsmith.facts.ranges import Release, release, version_range


class _ByTorch(Protocol):
    @property
    def torch(self) -> str: ...


_Entry = TypeVar("_Entry", bound=_ByTorch)


def entry_for(entries: Sequence[_Entry], torch: str) -> _Entry | None:
    """Return the one entry whose torch range holds this release."""
    return next((entry for entry in entries if torch in version_range(entry.torch)), None)


def patched_cuda(facts: Facts, torch: str, cuda: str) -> TorchRange | None:
    """The entry that says patches let this release be built with a toolkit newer than it."""
    entry = entry_for(facts.torch.patched_cuda, torch)
    return entry if entry is not None and cuda in version_range(entry.value) else None


@cache
def releases(facts: Facts) -> tuple[TorchRelease, ...]:
    """Every release we know, oldest first."""
    return tuple(sorted(facts.releases.release, key=lambda item: release(item.version)))


@cache
def find_release(facts: Facts, version: str) -> TorchRelease | None:
    """Return the release of this name; for a prefix such as 2.6, its newest patch release."""
    wanted: Release = release(version)
    matching = [
        item
        for item in releases(facts)
        if release(item.version)[: len(wanted)] == wanted or item.version == version
    ]
    exact = [item for item in matching if item.version == version]
    return (exact or matching)[-1] if matching else None


@cache
def companion_for(facts: Facts, name: str, torch: str) -> LibraryRelease | None:
    """Return the newest companion release that is built against this torch."""
    matching = [
        item for item in companion_releases(facts, name) if torch in version_range(item.torch)
    ]
    # A release made for exactly this torch beats one that merely tolerates it.
    exact = [item for item in matching if torch in (item.torch, item.beside)]
    return (exact or matching)[-1] if matching else None


@cache
def companion_releases(facts: Facts, name: str) -> tuple[LibraryRelease, ...]:
    """Every release of a companion, oldest first."""
    if stack_package(facts, name) is not None:
        # Their versions are not all numbers: the file has them in order.
        return tuple(item for item in facts.stack.release if item.name == name)
    mine = [item for item in facts.companions.release if item.name == name]
    return tuple(sorted(mine, key=lambda item: release(item.version)))


@cache
def stack_package(facts: Facts, name: str) -> StackPackage | None:
    """How a library other than the four companions is built, if that is known."""
    return next((item for item in facts.stack.package if item.name == name), None)


@cache
def companion_project(facts: Facts, name: str) -> Library:
    """What is known of a companion or a package of a stack."""
    known = stack_package(facts, name)
    return known or next(item for item in facts.companions.project if item.name == name)


def companion_sources(facts: Facts, name: str) -> Mapping[str, Source]:
    """The table its facts name their sources from."""
    known = stack_package(facts, name) is not None
    return facts.stack.sources if known else facts.companions.sources


@cache
def is_published(facts: Facts, torch: str, cuda: str, platform: str = "linux-x86_64") -> bool:
    """Whether wheels of this combination are in upstream's own matrix: what is in them is known."""
    entry = published_archs(facts, torch, cuda, platform)
    return entry is not None and bool(entry.archs)


@cache
def wheel_cudas(facts: Facts, torch: str, platform: str) -> tuple[str, ...]:
    """The CUDAs PyTorch publishes wheels of a release for, oldest first."""
    return tuple(
        sorted(
            {
                item.version
                for item in facts.cuda.toolkit
                if published_archs(facts, torch, item.version, platform) is not None
            },
            key=release,
        )
    )


def wheel_pythons(known: TorchRelease, platform: str) -> tuple[str, ...]:
    """The Pythons a release has published wheels for on a platform; none: it has no wheels."""
    mine = next((own for on, own in known.pythons_on.items() if on == platform), known.pythons)
    return tuple(dict.fromkeys((*mine, *index_pythons(known, platform))))


def index_pythons(known: TorchRelease, platform: str) -> tuple[str, ...]:
    """Those of them whose wheels are on PyTorch's own index and not on PyPI."""
    return tuple(python for on, own in known.index_on.items() if on == platform for python in own)


@cache
def wheel_libc(facts: Facts, torch: str, cuda: str, platform: str) -> WheelLibc | None:
    """The glibc the published wheels of a release ask for; None: an old one."""
    for entry in facts.torch.wheel_libc:
        if (
            torch in version_range(entry.torch)
            and entry.platform in (None, platform)
            and (entry.cuda is None or (cuda != "" and cuda in version_range(entry.cuda)))
        ):
            return entry
    return None


def wheel_cudnn(facts: Facts, torch: str, cuda: str) -> WheelCudnn | None:
    """The cuDNN of the published wheels of a release; None: nobody has looked."""
    for entry in facts.torch.wheel_cudnn:
        if torch in version_range(entry.torch) and cuda in version_range(entry.cuda):
            return entry
    return None


def published_archs(facts: Facts, torch: str, cuda: str, platform: str) -> PublishedArchs | None:
    """The wheels PyTorch publishes for this combination; None also where nobody has looked."""
    if torch not in facts.torch.looked_at:
        return None
    for entry in facts.torch.published:
        if (
            entry.platform == platform
            and torch in version_range(entry.torch)
            and cuda in version_range(entry.cuda)
        ):
            return entry
    return None
