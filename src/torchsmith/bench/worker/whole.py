"""Cases of whole programs: what a call costs, training, inference, loading, importing."""

import io
import os
import subprocess
import sys
from typing import Any


def small_add(t: Any, device: str) -> Any:
    """Make the smallest of operations: what is left is the cost of calling one."""
    x, y = t.ones(8, device=device), t.ones(8, device=device)
    return lambda: x + y


def small_view(t: Any, device: str) -> Any:
    """Make views, which compute nothing."""
    x = t.ones(8, 8, device=device)
    return lambda: x[1:5].view(-1).unsqueeze(0)


def allocate(t: Any, device: str) -> Any:
    """Make a tensor and throw it away."""
    return lambda: t.empty(1024, device=device)


def small_module(t: Any, device: str) -> Any:
    """Make two small layers called through modules."""
    layers = t.nn.Sequential(t.nn.Linear(16, 16), t.nn.ReLU(), t.nn.Linear(16, 16)).to(device)
    x = t.randn(4, 16, device=device)
    return lambda: layers(x)


def small_graph(t: Any, device: str) -> Any:
    """Make a graph of forty small nodes, and go back through it."""
    x = t.ones(8, device=device, requires_grad=True)

    def call() -> Any:
        y = x
        for _ in range(20):
            y = y * 1.01 + 0.1
        return t.autograd.grad(y.sum(), x)

    return call


def to_python(t: Any, device: str) -> Any:
    """Make a number cross from torch to Python."""
    x = t.ones(8, device=device)
    return lambda: float(x[3])


def optimizer(name: str, **arguments: Any) -> Any:
    """Make a step over forty parameters."""

    def build(t: Any, device: str) -> Any:
        parameters = []
        for number in range(40):
            item = t.nn.Parameter(t.randn(64, 64 if number % 2 else 1, device=device))
            item.grad = t.randn_like(item)
            parameters.append(item)
        step = getattr(t.optim, name)(parameters, lr=1e-4, **arguments).step
        return lambda: step()

    return build


def function_of_many(t: Any, x: Any) -> Any:
    """Return something a compiler can make one loop of."""
    return t.relu(x * 2.0 + 1.0).sigmoid() * x - 0.5


def scripted(t: Any, device: str) -> Any:
    """Make the same through TorchScript."""
    x = t.randn(512, 512, device=device)
    traced = t.jit.trace(lambda y: function_of_many(t, y), (x,))
    return lambda: traced(x)


def compiled(t: Any, device: str) -> Any:
    """Make the same through torch.compile."""
    if not hasattr(t, "compile"):
        raise NotImplementedError("no torch.compile before torch 2.0")
    x = t.randn(512, 512, device=device)

    def call(y: Any) -> Any:
        return t.relu(y * 2.0 + 1.0).sigmoid() * y - 0.5

    try:
        quick = t.compile(call)
        quick(x)
    except Exception as error:
        # No compiler, a Python it does not know, no triton: its words for it are many.
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise NotImplementedError(
            "torch.compile: " + (lines[0] if lines else type(error).__name__)[:200]
        )
    return lambda: quick(x)


def loader(workers: int) -> Any:
    """Make a pass over 2 048 small samples."""

    def build(t: Any, device: str) -> Any:
        data = t.utils.data.TensorDataset(t.randn(2048, 3, 16, 16), t.arange(2048))
        batches = t.utils.data.DataLoader(data, batch_size=64, num_workers=workers, shuffle=True)

        def call() -> int:
            return sum(len(wanted) for _, wanted in batches)

        return call

    return build


def save_and_load(t: Any, device: str) -> Any:
    """Make a state dictionary go to bytes and back."""
    state = {str(number): t.randn(64, 256) for number in range(40)}

    def call() -> Any:
        place = io.BytesIO()
        t.save(state, place)
        place.seek(0)
        return t.load(place)

    return call


def import_torch(t: Any, device: str) -> Any:
    """Make a fresh Python that imports torch and ends."""

    def call() -> None:
        subprocess.run(
            [sys.executable, "-I", "-c", "import torch"],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ),
        )

    return call


def resnet(t: Any, device: str) -> Any:
    """Return a small network with residual blocks, for pictures of 32 by 32."""
    nn = t.nn

    class Block(nn.Module):  # type: ignore
        """Two convolutions and a way around them."""

        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
            self.around = nn.Conv2d(before, after, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            """Return the block's output."""
            y = t.relu(self.norms[0](self.first(x)))
            return t.relu(self.norms[1](self.second(y)) + self.around(x))

    blocks = [Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*blocks, *tail).to(device)


def transformer(t: Any, device: str) -> Any:
    """Return a small language model."""
    nn = t.nn
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(1000, 128), stack, nn.Linear(128, 1000)).to(device)


def pictures(t: Any, device: str) -> Any:
    """Return a batch of pictures and what they show."""
    count = 8 if device == "cpu" else 64
    wanted = t.randint(0, 10, (count,), device=device)
    return t.randn(count, 3, 32, 32, device=device), wanted


def text(t: Any, device: str) -> Any:
    """Return a batch of words and the words after them."""
    count = 4 if device == "cpu" else 32
    words = t.randint(0, 1000, (count, 65), device=device)
    return words[:, :-1], words[:, 1:]


def lstm(t: Any, device: str) -> Any:
    """Return a network that reads in order."""
    nn = t.nn

    class Reader(nn.Module):  # type: ignore
        """Words in, words out."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(1000, 64)
            self.cell = nn.LSTM(64, 128, batch_first=True)
            self.out = nn.Linear(128, 1000)

        def forward(self, x: Any) -> Any:
            """Return a score for each word."""
            return self.out(self.cell(self.words(x))[0])

    return Reader().to(device)


def train(network: Any, batch: Any) -> Any:
    """Make a step of training: forward, loss, backward, optimizer."""

    def build(t: Any, device: str) -> Any:
        model = network(t, device).train()
        x, wanted = batch(t, device)
        step = t.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def call() -> None:
            step.zero_grad()
            out = model(x)
            out = out.reshape(-1, out.shape[-1])
            t.nn.functional.cross_entropy(out, wanted.reshape(-1)).backward()
            step.step()

        return call

    return build


def infer(network: Any, batch: Any) -> Any:
    """Make a forward pass in evaluation mode."""

    def build(t: Any, device: str) -> Any:
        model = network(t, device).eval()
        x = batch(t, device)[0]

        def call() -> Any:
            with t.no_grad():
                return model(x)

        return call

    return build


def listed() -> "list[tuple[str, str, str, str, Any]]":
    """Return the cases of this file."""
    both, cpu = "cpu cuda", "cpu"
    return [
        ("overhead", "add of eight numbers", "quick", both, small_add),
        ("overhead", "views", "quick", both, small_view),
        ("overhead", "allocate", "full", both, allocate),
        ("overhead", "small modules", "quick", both, small_module),
        ("overhead", "autograd of forty small nodes", "quick", both, small_graph),
        ("overhead", "number to Python", "full", both, to_python),
        ("optimizer", "SGD step", "quick", both, optimizer("SGD", momentum=0.9)),
        ("optimizer", "Adam step", "quick", both, optimizer("Adam")),
        ("optimizer", "AdamW step", "full", both, optimizer("AdamW")),
        ("compile", "traced by TorchScript", "quick", both, scripted),
        ("compile", "torch.compile", "full", both, compiled),
        ("loader", "data loader, same process", "quick", cpu, loader(0)),
        ("loader", "data loader, two workers", "full", cpu, loader(2)),
        ("loader", "save and load", "quick", cpu, save_and_load),
        ("import", "import torch", "quick", cpu, import_torch),
        ("model", "residual network, training step", "quick", both, train(resnet, pictures)),
        ("model", "residual network, inference", "quick", both, infer(resnet, pictures)),
        ("model", "transformer, training step", "quick", both, train(transformer, text)),
        ("model", "transformer, inference", "quick", both, infer(transformer, text)),
        ("model", "LSTM, training step", "full", both, train(lstm, text)),
    ]
