"""Which files are compiled together. Pure: values in, values out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torchsmith.toolchain.accel.lessons import Lessons

Language = Literal["c++", "cuda"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
# More files in a batch save less and less, take more memory, and lose more when they clash. About a
# third of what a CUDA file takes are headers, and the rest is its own and much longer: a batch of
# more files is what everything waits for.
_MOST_FILES: Mapping[Language, int] = {"c++": 32, "cuda": 8}
# A file this large takes its time for itself, not for its headers: generated ones mostly.
LARGE = 120_000
# So does a kernel of this size, for one kind of CPU: its loops are unfolded and vectorised.
LARGE_KERNEL = 8_000
# What reading the headers of a file weighs, in bytes of the file itself.
_HEADERS = 10_000
_HEAVIEST = 900_000
_LIGHTEST = 200_000
# So many batches for each core, or the last of them leave the other cores idle.
_BATCHES_A_CORE: Mapping[Language, int] = {"c++": 4, "cuda": 2}
# Bytes that all but a few batches stay below; the fewer files, the less.
_TAKES = 3 << 30
_MOST_HALVINGS = 3


@dataclass(frozen=True, slots=True)
class File:
    """A file to compile: its name relative to the build folder, its size, and its object.

    `included` is the size of the C++ files it includes, PyTorch's kernels for one kind of CPU.
    """

    name: str
    size: int
    output: str
    included: int = 0

    @property
    def weight(self) -> int:
        """About how much of a batch it is."""
        return _HEADERS + self.size + self.included

    @property
    def is_large(self) -> bool:
        """Whether it is compiled by itself: with others it would take as long, or longer."""
        return self.size >= LARGE or self.included >= LARGE_KERNEL


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a batch may become."""

    files: int
    weight: int = _HEAVIEST


def limits_for(
    files: Sequence[File], cores: int, memory: int | None = None, language: Language = "c++"
) -> Limits:
    """Limits that keep every core busy to the end, and all of them at once within memory.

    By halves: a little more or less memory makes no other batches.
    """
    most = _MOST_FILES[language]
    batches = cores * _BATCHES_A_CORE[language]
    weight = sum(file.weight for file in files if not file.is_large)
    halvings = 0
    while memory and memory < cores * _TAKES >> halvings and halvings < _MOST_HALVINGS:
        halvings += 1
    heaviest = _HEAVIEST >> halvings
    return Limits(
        files=max(2, min(most >> halvings, -(-len(files) // batches))),
        weight=max(min(_LIGHTEST, heaviest), min(heaviest, weight // batches)),
    )


def form_batches(
    files: Iterable[File], lessons: Lessons, limits: Limits
) -> tuple[tuple[File, ...], ...]:
    """Batches of two files or more; files in none of them are compiled as they always were.

    Neighbours in the source tree share headers, so they go together. Where a batch ends
    depends on the names near its end alone: a file more or less changes the batches around it
    and leaves the others, and what a compiler cache holds of them, as they were. What is known
    of clashes divides a batch, and moves no file into another one: it would be a stranger there,
    and might clash in turn.
    """
    formed: list[tuple[File, ...]] = []
    for batch in _cut(sorted(files, key=lambda file: file.name), limits):
        by_name = {file.name: file for file in batch}
        formed += [tuple(by_name[name] for name in group) for group in lessons.divide(by_name)]
    return tuple(batch for batch in formed if len(batch) > 1)


def _cut(files: Iterable[File], limits: Limits) -> Iterator[list[File]]:
    batch: list[File] = []
    weight = 0
    for file in files:
        if file.is_large:
            continue
        if batch and weight + file.weight > limits.weight:
            yield batch
            batch, weight = [], 0
        batch.append(file)
        weight += file.weight
        full = len(batch) >= limits.files
        if full or (len(batch) * 2 > limits.files and _ends_here(file.name, limits)):
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _ends_here(name: str, limits: Limits) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] * limits.files < 2 * 256


def batch_name(outputs: Iterable[str]) -> str:
    """A name that stays as long as the batch does, in every checkout: outputs are relative."""
    return hashlib.sha256("\0".join(outputs).encode()).hexdigest()[:16]
