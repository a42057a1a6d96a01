"""Learn to tell drawn digits apart: what mnist is for, without its download.

Runs alone, or as one of several processes that torchrun starts. The data is drawn here: each
digit is the segments of a pocket calculator, shifted and covered with noise.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SIDE = 16
# Top, upper left, upper right, middle, lower left, lower right, bottom.
SEGMENTS = (
    *("1110111", "0010010", "1011101", "1011011", "0111010"),
    *("1101011", "1101111", "1010010", "1111111", "1111011"),
)


def drawn(digit: int) -> Tensor:
    """A digit without noise."""
    image = torch.zeros(SIDE, SIDE)
    on = [mark == "1" for mark in SEGMENTS[digit]]
    top, middle, bottom, left, right = 2, 7, 12, 4, 10
    for lit, row in zip((on[0], on[3], on[6]), (top, middle, bottom), strict=True):
        image[row, left : right + 1] += float(lit)
    for lit, column, first in (
        (on[1], left, top),
        (on[2], right, top),
        (on[4], left, middle),
        (on[5], right, middle),
    ):
        image[first : first + 6, column] += float(lit)
    return image.clamp(max=1)


def dataset(count: int, seed: int) -> TensorDataset:
    """So many digits, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    plain = torch.stack([drawn(digit) for digit in range(10)])
    labels = torch.randint(10, (count,), generator=random)
    shifts = torch.randint(-2, 3, (count, 2), generator=random).tolist()
    images = torch.stack(
        [
            plain[label].roll(tuple(shift), (0, 1))
            for label, shift in zip(labels.tolist(), shifts, strict=True)
        ]
    )
    images += 0.3 * torch.randn(images.shape, generator=random)
    return TensorDataset(images.unsqueeze(1), labels)


def network() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIDE // 4) ** 2, 10),
    )


def main() -> None:
    """Train, and say how many digits it tells apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=2000)
    arguments = parser.parse_args()

    together = "RANK" in os.environ
    if together:
        dist.init_process_group(os.environ.get("TORCHSMITH_BACKEND"))
    rank = dist.get_rank() if together else 0
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")

    torch.manual_seed(0)
    model: nn.Module = network().to(device)
    if together:
        model = DistributedDataParallel(model)
    data = dataset(arguments.count, seed=1)
    sampler = DistributedSampler(data) if together else None
    loader = DataLoader(data, batch_size=32, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(arguments.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
        if rank == 0:
            print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)

    if rank == 0:
        images, labels = dataset(1000, seed=2).tensors
        with torch.no_grad():
            right = (model(images.to(device)).argmax(1).cpu() == labels).float().mean().item()
        processes = dist.get_world_size() if together else 1
        print(f"accuracy {right:.3f} with {processes} processes", flush=True)
        if folder := os.environ.get("OUTPUT_DIR"):
            plain = model.module if together else model
            torch.save(plain.state_dict(), Path(folder) / "digits.pt")
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
