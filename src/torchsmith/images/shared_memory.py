"""How much shared memory and memory DataLoader workers want, and whether there is as much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchsmith.errors import UsageError
from torchsmith.recipe.values import size_bytes

DEFAULT_SHM = "8G"
# torch.utils.data.DataLoader's own prefetch_factor.
_PREFETCH = 2
# 256 images of 3x224x224 numbers of 4 bytes: what ImageNet is commonly trained with.
USUAL_BATCH = 256 * 3 * 224 * 224 * 4
# A process that has imported torch; measured 230 MiB for torch 2.13 without CUDA.
_PROCESS = 256 << 20
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(frozen=True, slots=True)
class Room:
    """What a container gets: bytes of /dev/shm and of memory; None where it is not known."""

    shm: int | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Loading:
    """How a program loads data: so many workers, batches of so many bytes."""

    workers: int
    batch: int = USUAL_BATCH

    @property
    def batches(self) -> int:
        """Batches that can lie in /dev/shm at once: those made ahead, and the one in use."""
        return self.workers * _PREFETCH + 1 if self.workers else 0

    @property
    def shm(self) -> int:
        """Bytes of /dev/shm wanted."""
        return self.batches * self.batch

    @property
    def memory(self) -> int:
        """Bytes of memory wanted: /dev/shm is memory too."""
        return self.shm + (self.workers + 1) * _PROCESS


def parse_size(option: str, text: str) -> int:
    """The bytes an option's size stands for."""
    try:
        found = size_bytes(text.strip())
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not found:
        raise UsageError(f"{option}: {text!r} is nothing", "A size is written as in 8G or 512M.")
    return found


def shown(count: int) -> str:
    """An amount the way people say it."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def shm_bytes(asked: str | None, usual: str, memory: int | None) -> int:
    """The size of /dev/shm in bytes: what was asked for, or the usual one where it fits.

    More of it than there is memory would not be refused by the kernel: the programs that fill it
    are killed instead. So it is refused here; what nobody asked for is made smaller.
    """
    if asked is not None:
        wanted = parse_size("--shm-size", asked)
        if memory is not None and wanted > memory:
            raise UsageError(
                f"--shm-size {asked} is more than the {shown(memory)} of memory there is",
                f"/dev/shm is memory: take at most half of it, --shm-size {memory >> 21}M.",
            )
        return wanted
    wanted = size_bytes(usual)
    # Half of the memory is what the kernel gives /dev/shm where nobody says anything.
    return wanted if memory is None or wanted <= memory else memory // 2


def shortages(loading: Loading, room: Room) -> Iterator[str]:
    """What is too small for these workers, with the arithmetic."""
    if not loading.workers:
        return
    usual = (
        " (256 images of 3x224x224 floats; --batch says yours)"
        if loading.batch == USUAL_BATCH
        else ""
    )
    what = (
        f"({loading.workers} x {_PREFETCH} made ahead + 1 in use) x {shown(loading.batch)}{usual}"
    )
    if room.shm is not None and loading.shm > room.shm:
        yield (
            f"{_workers(loading)} may fill {shown(loading.shm)} of /dev/shm: {what}; it has "
            f"{shown(room.shm)}. Take --shm-size {-(-loading.shm // (1 << 30))}G, or fewer workers"
        )
    if room.memory is not None and loading.memory > room.memory:
        yield (
            f"{_workers(loading)} may take {shown(loading.memory)} of memory: "
            f"{shown(loading.shm)} in /dev/shm + {loading.workers + 1} processes x "
            f"{shown(_PROCESS)}; there is {shown(room.memory)}. Take more with --memory, or fewer "
            "workers"
        )


def _workers(loading: Loading) -> str:
    return f"{loading.workers} worker{'' if loading.workers == 1 else 's'}"
