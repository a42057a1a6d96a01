"""What torch does on a GPU, held against what it does on the CPU."""

import importlib
import os
import tempfile
from typing import Any


class Absent(Exception):
    """Nothing to try it on, or nothing built to try."""


def device() -> Any:
    """Return torch, if there is a GPU for it."""
    torch = importlib.import_module("torch")
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise Absent("built without CUDA")
    if not torch.cuda.is_available():
        raise Absent("no GPU that this torch can use is here: not tried")
    return torch


def close(torch: Any, found: Any, wanted: Any, most: float) -> str:
    """Compare what came back with what the CPU says."""
    scale = max(1.0, wanted.abs().max().item())
    off = (found.float().cpu() - wanted).abs().max().item() / scale
    assert off <= most, "off by %.3g, at most %.3g is due" % (off, most)
    return "off by %.1g" % off


def gpu() -> str:
    """Which GPU, and whether there is code for it."""
    torch = device()
    major, minor = torch.cuda.get_device_capability(0)
    x = torch.ones(1000, device="cuda").cumsum(0)
    assert x[-1].item() == 1000
    return "%s, %d.%d" % (torch.cuda.get_device_name(0), major, minor)


def matmul() -> str:
    """cuBLAS, in single precision."""
    torch = device()
    torch.manual_seed(0)
    a, b = torch.randn(128, 96), torch.randn(96, 64)
    return close(torch, a.cuda().mm(b.cuda()), a.mm(b), 1e-3)


def half() -> str:
    """cuBLAS, in half precision."""
    torch = device()
    torch.manual_seed(0)
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    return close(torch, a.cuda().half().mm(b.cuda().half()), a.mm(b), 1e-2)


def conv() -> str:
    """Return how a convolution does, and its gradient: cuDNN where it is there."""
    torch = device()
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 16, 16), torch.randn(4, 8, 3, 3)
    moved = w.cuda().requires_grad_()
    result = torch.conv2d(x.cuda(), moved, None, 1, 1)
    result.sum().backward()
    w.requires_grad_()
    wanted = torch.conv2d(x, w, None, 1, 1)
    wanted.sum().backward()
    close(torch, moved.grad, w.grad, 5e-3)
    text = close(torch, result.detach(), wanted.detach(), 5e-3)
    version = torch.backends.cudnn.version()
    return text + (", cuDNN %s" % version if version else ", without cuDNN")


def solve() -> str:
    """cuSOLVER or MAGMA."""
    torch = device()
    if not hasattr(getattr(torch, "linalg", None), "solve"):
        raise Absent("torch.linalg came with 1.8")
    torch.manual_seed(0)
    a = torch.randn(16, 16) + 16 * torch.eye(16)
    b = torch.randn(16, 2)
    found = torch.linalg.solve(a.cuda(), b.cuda())
    return close(torch, found, torch.linalg.solve(a, b), 1e-4)


def fft() -> str:
    """cuFFT, there and back."""
    torch = device()
    if callable(torch.fft):
        raise Absent("torch.fft is a module from 1.8 on")
    x = torch.randn(64)
    back = torch.fft.ifft(torch.fft.fft(x.cuda())).real
    return close(torch, back, x, 1e-4)


def flash() -> str:
    """The flash attention kernel and no other."""
    torch = device()
    try:
        attention = importlib.import_module("torch.nn.attention")
        only = attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION)
    except (ImportError, AttributeError):
        raise Absent("cannot be asked for by name before 2.3")
    if getattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)() is False:
        raise Absent("built without flash attention")
    torch.manual_seed(0)
    q = torch.randn(1, 2, 32, 64)
    attend = torch.nn.functional.scaled_dot_product_attention
    with only:
        try:
            found = attend(*[q.cuda().half()] * 3)
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise Absent("no flash attention kernel for this GPU")
            raise
    return close(torch, found, attend(q, q, q), 1e-2)


def nccl() -> str:
    """A process group of one reduces a tensor on the GPU."""
    torch = device()
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available() or not distributed.is_nccl_available():
        raise Absent("built without NCCL")
    handle, name = tempfile.mkstemp()
    os.close(handle)
    try:
        distributed.init_process_group("nccl", init_method="file://" + name, rank=0, world_size=1)
        x = torch.tensor([3.0], device="cuda")
        distributed.all_reduce(x)
        assert x.item() == 3
        distributed.destroy_process_group()
    finally:
        if os.path.exists(name):
            os.remove(name)
    version = torch.cuda.nccl.version()
    return "NCCL " + (".".join(map(str, version)) if isinstance(version, tuple) else str(version))


def checks(request: "dict[str, Any]") -> "list[tuple[str, str, Any]]":
    """Every check of this file, in order."""
    return [
        ("gpu", "gpu", gpu),
        ("gpu", "matmul on the gpu", matmul),
        ("gpu", "half precision", half),
        ("gpu", "convolution on the gpu", conv),
        ("gpu", "solve on the gpu", solve),
        ("gpu", "fft on the gpu", fft),
        ("gpu", "flash attention", flash),
        ("gpu", "nccl", nccl),
    ]
