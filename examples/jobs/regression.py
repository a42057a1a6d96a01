"""Fit a polynomial of the fourth degree: the smallest training there is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DEGREE = 4


def features(x: Tensor) -> Tensor:
    """The powers of x, one column each."""
    return torch.stack([x**power for power in range(1, DEGREE + 1)], dim=1)


def main() -> None:
    """Fit until the loss is small, and show both polynomials."""
    torch.manual_seed(0)
    weights, bias = torch.randn(DEGREE), torch.randn(1)
    model = nn.Linear(DEGREE, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn="strong_wolfe")
    x = features(torch.linspace(-1.5, 1.5, 200))
    y = x @ weights + bias

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        loss.backward()
        return float(loss)

    rounds = 0
    loss = step()
    while loss > 1e-6 and rounds < 100:
        optimizer.step(step)
        loss = step()
        rounds += 1
    print(f"loss {loss:.2e} after {rounds} rounds")
    print(f"found  {[round(value, 3) for value in model.weight.flatten().tolist()]}")
    print(f"actual {[round(value, 3) for value in weights.tolist()]}")


if __name__ == "__main__":
    main()
