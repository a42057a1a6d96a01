"""What was built, used on the GPU and on the CPU, where it is installed.

    python gpu_checks.py ops         # the extension of benchmarks/gpu_ops
    python gpu_checks.py vision      # torchvision's own kernels
    python gpu_checks.py torch       # torch itself: cub, cuBLAS, cuDNN, cuFFT, NCCL, training
    python gpu_checks.py PACKAGE     # torch-scatter, torch-cluster, torch-spline-conv,
                                     # causal-conv1d, flash-attn

Prints one line of JSON: each check with the worst difference seen, the most allowed, and whether
it holds. The references are the CPU's: other code, written by others.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# Sums are added up in another order on a GPU, and it fuses a product with a sum.
_EXACT, _CLOSE, _DOUBLE = 0.0, 1e-5, 1e-12
# Between pixels a place that is off in its last digit is multiplied by the slope there.
_BETWEEN = 1e-4
# Of half precision, after two products.
_HALF = 5e-3
Found = tuple[str, float, float]


def worst(found: Any, wanted: Any) -> float:
    """The largest difference, as a part of the largest value; endless where the shapes differ."""
    found = found.detach().cpu()
    wanted = wanted.detach().cpu()
    if found.shape != wanted.shape or not found.numel():
        return float("inf")
    scale = max(1.0, wanted.abs().max().item())
    return float((found.double() - wanted.double()).abs().max().item() / scale)


def ops(torch: Any) -> Iterator[Found]:
    """Kernels of our own against ATen on the CPU."""
    gpu_ops = importlib.import_module("gpu_ops")
    for kind, most in ((torch.float32, _CLOSE), (torch.float64, _DOUBLE)):
        name = str(kind).rpartition(".")[2]
        for size in (1, 255, 1 << 20, (1 << 24) + 7):
            x, y = torch.randn(size, dtype=kind), torch.randn(size, dtype=kind)
            found = gpu_ops.saxpy(2.5, x.cuda(), y.cuda())
            yield f"saxpy {name} {size}", worst(found, 2.5 * x + y), most
        x = torch.randn(4097, 33, dtype=kind)
        slope = torch.randn(4097, 33, dtype=kind)
        mine = x.cuda().requires_grad_()
        theirs = x.clone().requires_grad_()
        out = gpu_ops.relu(mine)
        wanted = torch.nn.functional.relu(theirs)
        yield f"relu {name}", worst(out, wanted), _EXACT
        out.backward(slope.cuda())
        wanted.backward(slope)
        yield f"relu's gradient {name}", worst(mine.grad, theirs.grad), _EXACT
        for rows, columns in ((1, 1), (7, 100), (3000, 1025)):
            x = torch.rand(rows, columns, dtype=kind)
            found = gpu_ops.row_sums(x.cuda())
            yield f"row sums {name} {rows}x{columns}", worst(found, x.sum(1)), most
    checked = torch.autograd.gradcheck(
        gpu_ops.relu, torch.randn(8, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    )
    yield "relu by finite differences", 0.0 if checked else 1.0, _EXACT


def _boxes(torch: Any, count: int, most: float) -> Any:
    low = torch.rand(count, 2) * most * 0.6
    return torch.cat([low, low + torch.rand(count, 2) * most * 0.4 + 1], 1)


def vision(torch: Any) -> Iterator[Found]:
    """torchvision's kernels on the GPU against its own on the CPU, results and gradients."""
    vision_ops = importlib.import_module("torchvision").ops
    for count in (1, 60, 1000):
        boxes, scores = _boxes(torch, count, 100.0), torch.rand(count)
        wanted = vision_ops.nms(boxes, scores, 0.5)
        found = vision_ops.nms(boxes.cuda(), scores.cuda(), 0.5)
        yield f"nms {count}", worst(found, wanted), _EXACT
    picture = torch.randn(2, 5, 40, 40)
    regions = torch.cat([torch.randint(0, 2, (30, 1)).float(), _boxes(torch, 30, 40.0)], 1)
    for name, call in (
        ("roi_align", lambda x, r: vision_ops.roi_align(x, r, (7, 7), 1.0, 2, aligned=True)),
        ("roi_pool", lambda x, r: vision_ops.roi_pool(x, r, (7, 7), 1.0)),
    ):
        yield from _both(torch, name, call, picture, regions)
    weight, bias = torch.randn(6, 5, 3, 3), torch.randn(6)
    offset, mask = torch.randn(2, 18, 38, 38), torch.rand(2, 9, 38, 38)
    yield from _both(
        torch,
        "deform_conv2d",
        lambda x, o: vision_ops.deform_conv2d(
            x, o, weight.to(x.device), bias.to(x.device), mask=mask.to(x.device)
        ),
        picture,
        offset,
    )


def _both(
    torch: Any, name: str, call: Callable[[Any, Any], Any], x: Any, second: Any
) -> Iterator[Found]:
    theirs, mine = x.clone().requires_grad_(), x.cuda().requires_grad_()
    wanted, found = call(theirs, second), call(mine, second.cuda())
    yield name, worst(found, wanted), _BETWEEN
    slope = torch.randn_like(wanted)
    wanted.backward(slope)
    found.backward(slope.cuda())
    yield f"{name}'s gradient", worst(mine.grad, theirs.grad), _BETWEEN


def whole(torch: Any) -> Iterator[Found]:
    """Torch's own kernels on the GPU against those on the CPU, and a network trained there."""
    yield from _kernels(torch)
    yield from _libraries(torch)
    yield "loss after training", _trained(torch), 0.05
    yield "NCCL among one", _reduced(torch), _EXACT


def _kernels(torch: Any) -> Iterator[Found]:
    """What is built on cub, whose names differ between releases of CUDA."""
    numbers = torch.randint(0, 1000, (100_003,))
    reals = torch.randn(257, 4099)
    weights = torch.rand(100_003)
    functional = torch.nn.functional
    calls: dict[str, tuple[Callable[..., Any], Any]] = {
        "sort": (lambda x: x.sort(stable=True)[1], numbers),
        "unique": (lambda x: torch.cat(torch.unique(x, return_counts=True)), numbers),
        "unique of flags": (lambda x: torch.unique(x > 500).long(), numbers),
        "nonzero": (lambda x: (x > 500).nonzero(), numbers),
        "topk": (lambda x: x.topk(50)[0], weights),
        "cumsum": (lambda x: x.cumsum(0), numbers),
        "cummax": (lambda x: x.cummax(1)[0], reals),
        "cumprod": (lambda x: (1 + x / 4099).cumprod(1), reals),
        "logcumsumexp": (lambda x: x.logcumsumexp(1), reals),
        "median": (lambda x: x.median(1)[0], reals),
    }
    for name, (call, x) in calls.items():
        most = _EXACT if x.dtype == torch.int64 else _CLOSE
        # The rounding of thousands of factors adds up.
        most = 10 * _CLOSE if name == "cumprod" else most
        yield name, worst(call(x.cuda()), call(x)), most
    table = torch.randn(1000, 64)
    both = [table.clone().requires_grad_(), table.cuda().requires_grad_()]
    for name in ("embedding", "embedding_bag"):
        for mine in both:
            mine.grad = None
            index = numbers[:99_999].view(-1, 9).to(mine.device)
            getattr(functional, name)(index, mine).square().sum().backward()
        yield f"{name}'s gradient", worst(both[1].grad, both[0].grad), _CLOSE


def _libraries(torch: Any) -> Iterator[Found]:
    """What NVIDIA's libraries do for it."""
    a, b = torch.randn(512, 700), torch.randn(700, 300)
    yield "matmul", worst(a.cuda() @ b.cuda(), a @ b), _CLOSE
    square = torch.randn(200, 200, dtype=torch.float64) + 20 * torch.eye(200)
    yield "solve", worst(torch.linalg.inv(square.cuda()), torch.linalg.inv(square)), _DOUBLE
    signal = torch.randn(16, 1000)
    yield "fft", worst(torch.fft.rfft(signal.cuda()).abs(), torch.fft.rfft(signal).abs()), _CLOSE
    picture, kernel = torch.randn(4, 8, 33, 33), torch.randn(16, 8, 3, 3)
    yield from _both(torch, "conv2d", torch.nn.functional.conv2d, picture, kernel)
    words = torch.randn(2, 4, 65, 32)
    attend = torch.nn.functional.scaled_dot_product_attention
    found = attend(words.cuda(), words.cuda(), words.cuda())
    yield "attention", worst(found, attend(words, words, words)), _CLOSE


def _trained(torch: Any) -> float:
    """The loss, as a part of what it was, after a small network learned to add up."""
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    ).cuda()
    steps = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(300):
        x = torch.randn(256, 16, device="cuda")
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return float(losses[-1] / losses[0])


def _reduced(torch: Any) -> float:
    """How far off a sum over one process is."""
    file = tempfile.mkdtemp() + "/store"
    torch.distributed.init_process_group("nccl", init_method=f"file://{file}", rank=0, world_size=1)
    x = torch.arange(1000.0, device="cuda")
    torch.distributed.all_reduce(x)
    off = worst(x, torch.arange(1000.0))
    torch.distributed.destroy_process_group()
    return off


def scatter(torch: Any) -> Iterator[Found]:
    """torch-scatter's kernels on the GPU against its own on the CPU, results and gradients."""
    library = importlib.import_module("torch_scatter")
    index = torch.randint(0, 100, (10_007,))
    x = torch.randn(10_007, 17)
    for name in ("sum", "mean", "max"):

        def scattered(x: Any, at: Any, name: str = name) -> Any:
            return library.scatter(x, at, 0, reduce=name)

        yield from _both(torch, f"scatter {name}", scattered, x, index)
    ends = torch.tensor([0, 3, 3, 5_000, 10_007])
    for name in ("sum", "max"):

        def reduced(x: Any, at: Any, name: str = name) -> Any:
            return library.segment_csr(x, at, reduce=name)

        yield from _both(torch, f"segment_csr {name}", reduced, x, ends)


def cluster(torch: Any) -> Iterator[Found]:
    """torch-cluster's kernels on the GPU against its own on the CPU."""
    library = importlib.import_module("torch_cluster")
    x, y = torch.randn(2_000, 3), torch.randn(300, 3)
    theirs, mine = library.knn(x, y, 5), library.knn(x.cuda(), y.cuda(), 5)
    # Among neighbours the order may differ, the distances may not.
    near = [
        (x[found[1]] - y[found[0]]).norm(dim=1).view(300, 5).sort()[0]
        for found in (theirs, mine.cpu())
    ]
    yield "knn", worst(near[1], near[0]), _CLOSE


def spline(torch: Any) -> Iterator[Found]:
    """torch-spline-conv's kernels on the GPU against its own on the CPU."""
    library = importlib.import_module("torch_spline_conv")
    size, is_open = torch.tensor([5, 5]), torch.tensor([1, 0], dtype=torch.uint8)
    edges, places = torch.randint(0, 500, (2, 4_000)), torch.rand(4_000, 2)
    for degree in (1, 2, 3):

        def call(x: Any, weight: Any, degree: int = degree) -> Any:
            given = (each.to(x.device) for each in (edges, places))
            kept = (each.to(x.device) for each in (size, is_open))
            return library.spline_conv(x, *given, weight, *kept, degree)

        inputs = torch.randn(500, 8), torch.randn(25, 8, 16)
        yield from _both(torch, f"spline_conv of degree {degree}", call, *inputs)


def causal(torch: Any) -> Iterator[Found]:
    """causal-conv1d's kernels on the GPU against torch's own convolution."""
    library = importlib.import_module("causal_conv1d")
    for width in (2, 3, 4):
        x = torch.randn(3, 64, 517)
        weight = torch.randn(64, width)

        def call(x: Any, weight: Any, width: int = width) -> Any:
            if x.is_cuda:
                return library.causal_conv1d_fn(x, weight)
            padded = torch.nn.functional.pad(x, (width - 1, 0))
            return torch.nn.functional.conv1d(padded, weight.unsqueeze(1), groups=64)

        yield from _both(torch, f"causal_conv1d of width {width}", call, x, weight)


def flash(torch: Any) -> Iterator[Found]:
    """flash-attn's kernels on the GPU against plain attention in double precision."""
    library = importlib.import_module("flash_attn")
    for size in (32, 64, 128):
        q, k, v = (torch.randn(2, 257, 4, size, dtype=torch.float16) for _ in range(3))
        found = library.flash_attn_func(q.cuda(), k.cuda(), v.cuda(), causal=True)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            *(each.double().transpose(1, 2) for each in (q, k, v)), is_causal=True
        )
        yield f"attention of {size}", worst(found, wanted.transpose(1, 2)), _HALF


def main() -> int:
    """Run the checks that were named; 1 if one does not hold."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    # A product in TF32 has three digits.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    suites: dict[str, Callable[[Any], Iterator[Found]]] = {
        "ops": ops,
        "vision": vision,
        "torch": whole,
        "torch-scatter": scatter,
        "torch-cluster": cluster,
        "torch-spline-conv": spline,
        "causal-conv1d": causal,
        "flash-attn": flash,
    }
    modules = {"ops": "gpu_ops", "vision": "torchvision"}
    module = importlib.import_module(modules.get(sys.argv[1], sys.argv[1].replace("-", "_")))
    checks = [
        {"check": name, "worst": off, "allowed": most, "holds": off <= most}
        for name, off, most in suites[sys.argv[1]](torch)
    ]
    torch.cuda.synchronize()
    major, minor = torch.cuda.get_device_capability(0)
    said = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "capability": f"{major}.{minor}",
        "version": getattr(module, "__version__", ""),
        "module": module.__file__,
        "checks": checks,
    }
    print(json.dumps(said))
    return 0 if all(check["holds"] for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
