"""Processes that share a GPU train one network together.

    python -m torch.distributed.run --standalone --nproc-per-node 2 gpu_train.py gloo

Each sees its own half of the data. Their gradients are averaged, so that after every step their
weights are the same, which is looked at in the end. Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time


def main() -> int:
    """Train, compare weights, say what came of it."""
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group(sys.argv[1])
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    layers = torch.nn
    network = layers.Sequential(
        layers.Conv2d(1, 16, 3), layers.ReLU(), layers.Flatten(), layers.Linear(16 * 26 * 26, 10)
    ).cuda()
    parallel = layers.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 1, 28, 28, generator=generator)
    generator.manual_seed(100 + rank)
    losses: list[float] = []
    start = time.monotonic()
    for _ in range(60):
        labels = torch.randint(10, (64,), generator=generator)
        images = patterns[labels] + 0.5 * torch.randn(64, 1, 28, 28, generator=generator)
        loss = layers.functional.cross_entropy(parallel(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([weight.detach().flatten() for weight in network.parameters()])
    largest, smallest = weights.clone(), weights.clone()
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN)
    if rank == 0:
        found = {
            "processes": size,
            "backend": sys.argv[1],
            "first loss": round(losses[0], 4),
            "last loss": round(losses[-1], 6),
            "weights differ by": (largest - smallest).max().item(),
            "seconds": round(time.monotonic() - start, 2),
        }
        print(json.dumps(found), flush=True)
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
