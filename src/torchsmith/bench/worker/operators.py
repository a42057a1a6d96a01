"""Running an operator: the same numbers in, the bytes of its results and gradients out."""

import base64
import ctypes
from typing import Any

DIFFERENTIABLE = ("float64", "float32", "bfloat16", "float16")


class Pool:
    """Numbers for inputs: the same bytes for every side, in each type."""

    def __init__(self, t: Any, pools: "dict[str, str]") -> None:
        self.numbers = {}
        for name, text in pools.items():
            content = bytearray(base64.b64decode(text))
            self.numbers[name] = t.frombuffer(content, dtype=getattr(t, name)).clone()

    def make(self, t: Any, name: str, device: str) -> "Maker":
        """Return what hands out tensors of one type."""
        return Maker(t, self.numbers, name, device)


class Maker:
    """Hands out tensors, one after the other; those with gradients are remembered."""

    def __init__(self, t: Any, numbers: Any, name: str, device: str) -> None:
        self.t = t
        self.numbers = numbers
        self.name = name
        self.device = device
        self.place = 0
        self.leaves = []  # type: list[Any]

    def take(self, name: str, shape: "tuple[int, ...]") -> Any:
        """Return the next numbers of the pool, from its start again when it ends."""
        count = 1
        for size in shape:
            count *= size
        pool = self.numbers[name]
        indices = (self.t.arange(count) + self.place) % len(pool)
        self.place += count
        return pool[indices].reshape(shape)

    def leaf(self, x: Any) -> Any:
        """Make a tensor an input of the gradient."""
        x = x.detach().to(self.device)
        if x.is_floating_point() and self.name in DIFFERENTIABLE:
            x.requires_grad_(True)
            self.leaves.append(x)
        return x

    def __call__(self, *shape: int) -> Any:
        """Return numbers around zero."""
        return self.leaf(self.take(self.name, shape))

    def positive(self, *shape: int) -> Any:
        """Return numbers from one half up."""
        return self.leaf(self.take(self.name, shape).abs() + 0.5)

    def unit(self, *shape: int) -> Any:
        """Return numbers between -0.9 and 0.9."""
        x = self.take(self.name, shape)
        return self.leaf(x / (x.abs() + 1) * 0.9)

    def share(self, *shape: int) -> Any:
        """Return numbers between 0.05 and 0.95."""
        x = self.take(self.name, shape)
        return self.leaf(x / (x.abs() + 1) * 0.45 + 0.5)

    def whole(self, high: int, *shape: int) -> Any:
        """Return whole numbers below a limit."""
        x = (self.take("float64", shape).abs() * 1000).long() % high
        return x.to(self.device)

    def square(self, size: int) -> Any:
        """Return a matrix that is far from singular."""
        x = self.take(self.name, (size, size))
        return self.leaf(x + self.t.eye(size, dtype=x.dtype) * (2 * size))

    def symmetric(self, size: int) -> Any:
        """Return a symmetric matrix with well separated, positive eigenvalues."""
        x = self.take(self.name, (size, size)) / (4 * size)
        ramp = self.t.arange(1, size + 1).to(x.dtype)
        return self.leaf(x + x.t() + self.t.diag(ramp))


def raw(x: Any) -> "dict[str, Any]":
    """Return the very bytes of a tensor; no NumPy need be there."""
    x = x.detach().cpu().contiguous()
    content = ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""
    return {
        "dtype": str(x.dtype).replace("torch.", ""),
        "shape": list(x.shape),
        "data": base64.b64encode(content).decode("ascii"),
    }


def once(t: Any, pool: Pool, call: Any, dtype: str, device: str) -> "dict[str, Any]":
    """Run an operator and go back through it."""
    maker = pool.make(t, dtype, device)
    result = call(t, maker)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    found = {"result %d" % number: raw(x) for number, x in enumerate(outputs)}
    ends = [x for x in outputs if x.requires_grad and x.is_floating_point()]
    if maker.leaves and ends:
        total = sum(
            (x * maker.take(dtype, tuple(x.shape)).to(x.device).to(x.dtype)).sum() for x in ends
        )
        grads = t.autograd.grad(total, maker.leaves, allow_unused=True)
        for number, gradient in enumerate(grads):
            if gradient is not None:
                found["gradient %d" % number] = raw(gradient)
    return found


def run(t: Any, pool: Pool, call: Any, dtype: str, device: str) -> "dict[str, Any]":
    """Run an operator twice; one that does not give the same twice says so."""
    found = once(t, pool, call, dtype, device)
    return {"outputs": found, "stable": found == once(t, pool, call, dtype, device)}
