"""What any torch must be able to do on a CPU, held against results made without it."""

import contextlib
import importlib
import io
import json
import os
import socket
import tempfile
from typing import Any

REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference.json")


class Absent(Exception):
    """This torch was built without what the check is about."""


def torch() -> Any:
    """Return the torch under test; imported before the checks are forked."""
    return importlib.import_module("torch")


def reference(name: str) -> "dict[str, Any]":
    """Return an input with its expected result."""
    with io.open(REFERENCE, encoding="utf-8") as file:
        return dict(json.load(file)[name])


def flat(value: Any) -> "list[float]":
    """Return the numbers of nested lists."""
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in flat(item)]
    return [float(str(value))]


def furthest(found: Any, wanted: Any) -> float:
    """Return the largest difference, relative to the size of the expected numbers."""
    left, right = flat(found), flat(wanted)
    assert len(left) == len(right), "%d numbers where %d are due" % (len(left), len(right))
    scale = max([1.0] + [abs(x) for x in right])
    worst = 0.0
    for a, b in zip(left, right):
        difference = abs(a - b)
        # Not a number compares as false with everything.
        if not difference <= worst:
            worst = difference
        if difference != difference:
            return float("inf")
    return worst / scale


def compare(name: str, function: Any, narrow: float = 2e-5) -> str:
    """Call a function in both precisions and hold it against the reference."""
    t = torch()
    case = reference(name)
    worst = []
    for dtype, most in ((t.float64, 1e-9), (t.float32, narrow)):
        inputs = {key: t.tensor(value, dtype=dtype) for key, value in case.items() if key != "want"}
        try:
            found = function(t, **inputs)
        except RuntimeError as error:
            text = str(error)
            if "LAPACK library not found" in text or "compiled with MKL" in text:
                raise Absent(text.split("\n")[0])
            if "compile with LAPACK" in text or "compiled with LAPACK" in text:
                raise Absent(text.split("\n")[0])
            raise
        off = furthest(found.tolist(), case["want"])
        assert off <= most, "%s: off by %.3g, at most %.3g is due" % (dtype, off, most)
        worst.append("%.1g" % off)
    return "off by %s (float64), %s (float32)" % tuple(worst)


def tensors() -> None:
    """Views, indexing, broadcasting, integer and boolean arithmetic."""
    t = torch()
    x = t.arange(12).reshape(3, 4)
    assert x.t()[1].tolist() == [1, 5, 9]
    assert (x[:, 1:3] * t.tensor([1, 10])).sum().item() == 1 + 5 + 9 + 20 + 60 + 100
    assert x[x > 9].tolist() == [10, 11]
    x.view(-1)[0] = 7
    assert x[0, 0].item() == 7
    assert t.cat([x, x]).shape == (6, 4)


def autograd() -> None:
    """First and second derivatives."""
    t = torch()
    x = t.ones(3, 3, requires_grad=True)
    x.mm(x).sum().backward()
    assert x.grad.sum().item() == 54, x.grad
    y = t.tensor([2.0, 3.0], requires_grad=True)
    (first,) = t.autograd.grad((y**3).sum(), y, create_graph=True)
    (second,) = t.autograd.grad(first.sum(), y)
    assert second.tolist() == [12.0, 18.0], second


def training() -> str:
    """A small network learns what it is shown."""
    t = torch()
    t.manual_seed(0)
    nn = importlib.import_module("torch.nn")
    x = t.randn(64, 4)
    y = x.sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    steps = importlib.import_module("torch.optim").Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        steps.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10, losses
    return "loss %.3g to %.3g in 60 steps" % (losses[0], losses[-1])


def serialization() -> None:
    """What is saved is what is loaded, in memory and in a file."""
    t = torch()
    state = {"weight": t.arange(6.0).reshape(2, 3), "step": t.tensor(3)}
    memory = io.BytesIO()
    t.save(state, memory)
    memory.seek(0)
    handle, name = tempfile.mkstemp()
    os.close(handle)
    try:
        t.save(state, name)
        for loaded in (t.load(memory), t.load(name)):
            assert loaded["weight"].tolist() == state["weight"].tolist()
            assert loaded["step"].item() == 3
    finally:
        os.remove(name)


def data_loader() -> None:
    """Two worker processes hand over tensors through shared memory."""
    t = torch()
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(
        data.TensorDataset(t.arange(32.0).reshape(16, 2)),
        batch_size=4,
        num_workers=2,
    )
    batches = [batch[0] for batch in loader]
    assert t.cat(batches).view(-1).tolist() == list(range(32))


def tracing() -> None:
    """TorchScript computes what Python does."""
    t = torch()
    traced = t.jit.trace(lambda x: (x * 2 + 1).relu(), (t.ones(3),))
    assert traced(t.tensor([-1.0, 0.0, 1.0])).tolist() == [0.0, 1.0, 3.0]


def compiling() -> None:
    """torch.compile captures a function with its gradient; what it made is run as it stands."""
    t = torch()
    if not hasattr(t, "compile"):
        raise Absent("torch.compile came with 2.0")
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        registry = importlib.import_module("torch._dynamo.backends.registry")
        return registry.lookup_backend("aot_eager")(graph, inputs)

    x = t.tensor([-1.0, 0.5, 1.0], requires_grad=True)
    try:
        made = t.compile(lambda y: (y * 2 + 1).relu(), backend=backend)
        found = made(x)
    except RuntimeError as error:
        # As torch itself says of a Python that came after it.
        if "Python 3" in str(error) and "supported" in str(error):
            raise Absent(str(error).split("\n")[0])
        raise
    except ImportError as error:
        if error.name != "functorch":
            raise
        raise Absent("built without functorch")
    found.sum().backward()
    assert graphs, "nothing was captured"
    assert found.tolist() == [0.0, 2.0, 3.0], found
    assert x.grad.tolist() == [0.0, 2.0, 2.0], x.grad


def solve(t: Any, a: Any, b: Any) -> Any:
    """Solve linear equations, under each name this had."""
    linalg = getattr(t, "linalg", None)  # type: Any
    if hasattr(linalg, "solve"):
        return linalg.solve(a, b)
    return (getattr(t, "solve", None) or t.gesv)(b, a)[0]


def eigh(t: Any, a: Any) -> Any:
    """Eigenvalues of a symmetric matrix, under each name this had."""
    linalg = getattr(t, "linalg", None)  # type: Any
    if hasattr(linalg, "eigh"):
        return linalg.eigh(a)[0]
    return t.symeig(a)[0]


def fft(t: Any, x: Any) -> Any:
    """A Fourier transform; until 1.7 torch.fft is a function on pairs."""
    if callable(t.fft):
        return t.rfft(x, 1, onesided=False)
    return t.view_as_real(t.fft.fft(x))


def conv2d(t: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Padding 1, stride 2."""
    return t.conv2d(x, weight, bias, 2, 1)


def layer_norm(t: Any, x: Any) -> Any:
    """Over the last dimension."""
    return t.layer_norm(x, (8,))


def random_stream() -> str:
    """The same seed gives the numbers it gives everywhere."""
    t = torch()
    case = reference("rng")
    t.manual_seed(case["seed"])
    off = furthest(t.rand(6).tolist(), case["want"])
    assert off < 1e-7, off
    return "seed %s" % case["seed"]


def numpy_bridge() -> str:
    """Both sides see one memory."""
    t = torch()
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        raise Absent("numpy is not installed here")
    array = numpy.arange(4.0)
    tensor = t.from_numpy(array)
    tensor[0] = 5
    assert array[0] == 5
    assert tensor.numpy().sum() == 11
    return "numpy %s" % numpy.__version__


def threads() -> str:
    """One thread and several give the same product of whole numbers."""
    t = torch()
    count = t.get_num_threads()
    x = (t.arange(512 * 512) % 17 - 8).reshape(512, 512).float()
    several = x.mm(x)
    t.set_num_threads(1)
    assert t.get_num_threads() == 1
    assert (x.mm(x) - several).abs().max().item() == 0
    return "%d" % count


def gloo() -> str:
    """A process group of one reduces a tensor."""
    t = torch()
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        raise Absent("built without distributed")
    if not getattr(distributed, "is_gloo_available", lambda: True)():
        raise Absent("built without gloo")
    handle, name = tempfile.mkstemp()
    os.close(handle)
    # Otherwise gloo looks this machine's name up, which fails on many a machine.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        distributed.init_process_group("gloo", init_method="file://" + name, rank=0, world_size=1)
        x = t.tensor([3.0])
        distributed.all_reduce(x)
        assert x.item() == 3
        distributed.destroy_process_group()
    finally:
        if os.path.exists(name):
            os.remove(name)
    return "one process"


def rendezvous() -> str:
    """Processes can meet at an address, the way torchrun has them meet."""
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available():
        raise Absent("built without distributed")
    if not hasattr(distributed, "TCPStore"):
        raise Absent("this release has no store of its own")
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = distributed.TCPStore("127.0.0.1", port, 1, True)
    store.set("key", "value")
    assert store.get("key") == b"value"
    return "one process"


def checks(request: "dict[str, Any]") -> "list[tuple[str, str, Any]]":
    """Every check of this file, in order."""
    behaviour = [
        ("tensors", tensors),
        ("autograd", autograd),
        ("training", training),
        ("serialization", serialization),
        ("data loader", data_loader),
        ("tracing", tracing),
        ("torch.compile", compiling),
        ("numpy bridge", numpy_bridge),
        ("threads", threads),
        ("gloo", gloo),
        ("rendezvous", rendezvous),
    ]
    numerics = [
        ("matmul", lambda: compare("matmul", lambda t, a, b: a.mm(b))),
        ("conv2d", lambda: compare("conv2d", conv2d)),
        ("layer_norm", lambda: compare("layer_norm", layer_norm, 1e-4)),
        ("softmax", lambda: compare("softmax", lambda t, x: x.softmax(1))),
        ("svd", lambda: compare("svd", lambda t, a: t.svd(a)[1])),
        ("solve", lambda: compare("solve", solve, 1e-4)),
        ("eigh", lambda: compare("eigh", eigh)),
        ("fft", lambda: compare("fft", fft)),
        ("random stream", random_stream),
    ]
    return [("behaviour", name, function) for name, function in behaviour] + [
        ("numerics", name, function) for name, function in numerics
    ]
