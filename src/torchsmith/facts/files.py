"""Reading the facts files, each at most once and only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from torchsmith.facts import models
from torchsmith.facts.compiled import load_table

DATA = Path(__file__).parent / "data"

_File = TypeVar("_File", bound=msgspec.Struct)


class Facts:
    """Everything torchsmith knows of the world, read lazily from a folder of TOML files."""

    def __init__(self, folder: Path = DATA) -> None:
        self.folder = folder

    def _read(self, name: str, model: type[_File]) -> _File:
        path = self.folder / f"{name}.toml"
        try:
            return msgspec.convert(load_table(path), model)
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}: {error}") from None

    @cached_property
    def releases(self) -> models.ReleasesFile:
        """PyTorch's releases: tags, commits, dates, Pythons."""
        return self._read("releases", models.ReleasesFile)

    @cached_property
    def torch(self) -> models.TorchFile:
        """What each range of PyTorch releases needs."""
        return self._read("torch", models.TorchFile)

    @cached_property
    def companions(self) -> models.CompanionsFile:
        """torchvision, torchaudio, torchtext and the torch each release goes with."""
        return self._read("companions", models.CompanionsFile)

    @cached_property
    def stack(self) -> models.StackFile:
        """Other libraries compiled against torch, and how each is built."""
        return self._read("stack", models.StackFile)

    @cached_property
    def cuda(self) -> models.CudaFile:
        """CUDA toolkits, architectures, host compilers, drivers."""
        return self._read("cuda", models.CudaFile)

    @cached_property
    def gpus(self) -> models.GpusFile:
        """GPU names and their compute capabilities."""
        return self._read("gpus", models.GpusFile)

    @cached_property
    def boards(self) -> models.BoardsFile:
        """Boards and what they lack."""
        return self._read("boards", models.BoardsFile)

    @cached_property
    def features(self) -> models.FeaturesFile:
        """What PyTorch can be built with, and the switches that say so."""
        return self._read("features", models.FeaturesFile)

    @cached_property
    def costs(self) -> models.CostsFile:
        """What builds take."""
        return self._read("costs", models.CostsFile)

    @cached_property
    def systems(self) -> models.SystemsFile:
        """Distributions, and the source packages of Debian's suites."""
        return self._read("systems", models.SystemsFile)

    @cached_property
    def patches(self) -> models.PatchesFile:
        """The patches torchsmith ships."""
        return self._read("patches", models.PatchesFile)

    def patch_content(self, patch: models.PatchFact) -> bytes:
        """The text of a shipped patch."""
        return (self.folder / "patches" / patch.file).read_bytes()


def addresses(table: Mapping[str, models.Source], fact: models.Fact | None) -> str:
    """The addresses a fact can be checked at, out of its file's table of sources."""
    if fact is None:
        return ""
    return " ".join(dict.fromkeys(table[key].url for key in fact.source.split()))


@cache
def shipped() -> Facts:
    """The facts this torchsmith was shipped with."""
    return Facts()
