"""Reading the facts files, each at most once and only when asked for."""

from __future__ import annotations

import contextlib
import json
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from torchsmith.facts import models
from torchsmith.files import write_whole

DATA = Path(__file__).parent / "data"

File = TypeVar("File", bound=msgspec.Struct)


def load_table(path: Path) -> dict[str, Any]:
    """The content of a TOML file, kept as JSON beside it the way Python keeps its own modules.

    Parsing 200 kB of TOML takes as long as importing half of torchsmith; the same as JSON takes
    two milliseconds. The copy is used only while it matches its source, and where it cannot be
    written nothing is lost but time.
    """
    status = path.stat()
    stamp = [status.st_mtime_ns, status.st_size]
    compiled = path.parent / "__pycache__" / f"{path.name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(compiled.read_bytes())
        if kept["source"] == stamp:
            table: dict[str, Any] = kept["table"]
            return table
    with path.open("rb") as file:
        table = tomllib.load(file)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, TypeError):
            kept = json.dumps({"source": stamp, "table": table})
            write_whole(compiled, kept.encode(), mode=0o644, sync=False)
    return table


class _Table(Generic[File]):
    """A file of facts as an attribute, read when it is first asked for."""

    def __init__(self, model: type[File]) -> None:
        self._model = model

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facts: Facts, owner: type) -> File:
        path = facts.folder / f"{self._name}.toml"
        try:
            table = msgspec.convert(load_table(path), self._model)
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}: {error}") from None
        # From here on, the attribute of the object hides this one.
        facts.__dict__[self._name] = table
        return table


class Facts:
    """Everything torchsmith knows of the world, read lazily from a folder of TOML files."""

    # PyTorch's releases: tags, commits, dates, Pythons.
    releases = _Table(models.ReleasesFile)
    # What each range of PyTorch releases needs.
    torch = _Table(models.TorchFile)
    # torchvision, torchaudio, torchtext and the torch each release goes with.
    companions = _Table(models.CompanionsFile)
    # Other libraries compiled against torch, and how each is built.
    stack = _Table(models.StackFile)
    # CUDA toolkits, architectures, host compilers, drivers.
    cuda = _Table(models.CudaFile)
    # GPU names and their compute capabilities.
    gpus = _Table(models.GpusFile)
    # Boards and what they lack.
    boards = _Table(models.BoardsFile)
    # What PyTorch can be built with, and the switches that say so.
    features = _Table(models.FeaturesFile)
    # What builds take.
    costs = _Table(models.CostsFile)
    # Distributions, and the source packages of Debian's suites.
    systems = _Table(models.SystemsFile)
    # The patches torchsmith ships.
    patches = _Table(models.PatchesFile)

    def __init__(self, folder: Path = DATA) -> None:
        self.folder = folder

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
