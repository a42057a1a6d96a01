"""Cases of what a BLAS, a LAPACK, an FFT library and oneDNN or cuDNN do."""

from typing import Any

SHORT = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16"}


def dtype_of(t: Any, short: str) -> Any:
    """Return torch's type for a short name."""
    return getattr(t, SHORT[short])


def matmul(rows: int, inner: int, columns: int, short: str) -> Any:
    """Make a product of two matrices."""

    def build(t: Any, device: str) -> Any:
        a = t.randn(rows, inner, device=device).to(dtype_of(t, short))
        b = t.randn(inner, columns, device=device).to(dtype_of(t, short))
        return lambda: t.mm(a, b)

    return build


def bmm(batch: int, rows: int, inner: int, columns: int, short: str) -> Any:
    """Make a batch of products."""

    def build(t: Any, device: str) -> Any:
        a = t.randn(batch, rows, inner, device=device).to(dtype_of(t, short))
        b = t.randn(batch, inner, columns, device=device).to(dtype_of(t, short))
        return lambda: t.bmm(a, b)

    return build


def matvec(t: Any, device: str) -> Any:
    """Make the product of a matrix and a vector: memory, not arithmetic."""
    rows = 2048 if device == "cpu" else 16 * 2048
    a, b = t.randn(rows, 2048, device=device), t.randn(2048, device=device)
    return lambda: t.mv(a, b)


def linear(t: Any, device: str) -> Any:
    """Make a layer with few rows, as in inference."""
    layer = t.nn.Linear(1024, 1024).to(device)
    x = t.randn(16, 1024, device=device)

    def call() -> Any:
        with t.no_grad():
            return layer(x)

    return call


def conv2d(
    channels: int, size: int, kernel: int, groups: int = 1, short: str = "f32", last: bool = False
) -> Any:
    """Make a convolution of four pictures (64 on a GPU)."""

    def build(t: Any, device: str) -> Any:
        count = 4 if device == "cpu" else 64
        x = t.randn(count, channels, size, size, device=device).to(dtype_of(t, short))
        w = t.randn(channels, channels // groups, kernel, kernel, device=device)
        w = w.to(dtype_of(t, short))
        if last:
            x = x.contiguous(memory_format=t.channels_last)
            w = w.contiguous(memory_format=t.channels_last)
        padding = kernel // 2
        return lambda: t.conv2d(x, w, None, 1, padding, 1, groups)

    return build


def conv1d(t: Any, device: str) -> Any:
    """Make a convolution of sound."""
    x, w = t.randn(8, 32, 2000, device=device), t.randn(64, 32, 9, device=device)
    return lambda: t.conv1d(x, w, None, 2, 4)


def conv3d(t: Any, device: str) -> Any:
    """Make a convolution of film."""
    x, w = t.randn(1, 16, 8, 28, 28, device=device), t.randn(16, 16, 3, 3, 3, device=device)
    return lambda: t.conv3d(x, w, None, 1, 1)


def conv_transpose(t: Any, device: str) -> Any:
    """Make a transposed convolution."""
    x, w = t.randn(4, 32, 28, 28, device=device), t.randn(32, 32, 4, 4, device=device)
    return lambda: t.conv_transpose2d(x, w, None, 2, 1)


def conv_backward(t: Any, device: str) -> Any:
    """Make a convolution with both gradients."""
    x = t.randn(4, 32, 28, 28, device=device, requires_grad=True)
    w = t.randn(32, 32, 3, 3, device=device, requires_grad=True)
    g = t.randn(4, 32, 28, 28, device=device)
    return lambda: t.autograd.grad(t.conv2d(x, w, None, 1, 1), (x, w), g)


def max_pool(t: Any, device: str) -> Any:
    """Make a pooling."""
    x = t.randn(8, 32, 56, 56, device=device)
    return lambda: t.nn.functional.max_pool2d(x, 3, 2, 1)


def positive(t: Any, size: int, device: str, short: str = "f32") -> Any:
    """Return a symmetric matrix all of whose eigenvalues are well above zero."""
    a = t.randn(size, size, device=device).to(dtype_of(t, short))
    return a @ a.t() / size + t.eye(size, device=device).to(a.dtype)


def linalg(name: str, size: int, short: str = "f32", batch: int = 0) -> Any:
    """Make a decomposition or a solution."""

    def build(t: Any, device: str) -> Any:
        a = positive(t, size, device, short)
        if batch:
            a = a.expand(batch, size, size).contiguous()
        function = getattr(t.linalg, name)
        if name in ("solve", "lstsq"):
            b = t.randn(size, 8, device=device).to(a.dtype)
            if batch:
                b = b.expand(batch, size, 8).contiguous()
            return lambda: function(a, b)
        return lambda: function(a)

    return build


def fft(name: str, shape: "tuple[int, ...]") -> Any:
    """Make a transform; of sixteen times as much on a GPU."""

    def build(t: Any, device: str) -> Any:
        x = t.randn(shape[0] if device == "cpu" else 16 * shape[0], *shape[1:], device=device)
        function = getattr(t.fft, name)
        return lambda: function(x)

    return build


def stft(t: Any, device: str) -> Any:
    """Make the transform of sound in windows."""
    x, window = t.randn(4, 16000, device=device), t.hann_window(400, device=device)
    return lambda: t.stft(x, 400, 160, window=window, return_complex=True)


def listed() -> "list[tuple[str, str, str, str, Any]]":
    """Return the cases of this file."""
    both, cpu, cuda = "cpu cuda", "cpu", "cuda"
    return [
        ("matmul", "matmul 64 f32", "quick", both, matmul(64, 64, 64, "f32")),
        ("matmul", "matmul 512 f32", "quick", both, matmul(512, 512, 512, "f32")),
        ("matmul", "matmul 512 f64", "quick", both, matmul(512, 512, 512, "f64")),
        ("matmul", "matmul 512 bf16", "quick", both, matmul(512, 512, 512, "bf16")),
        ("matmul", "matmul 256 f16", "full", both, matmul(256, 256, 256, "f16")),
        ("matmul", "matmul 1024 f32", "full", both, matmul(1024, 1024, 1024, "f32")),
        ("matmul", "matmul 128x4096x128 f32", "full", both, matmul(128, 4096, 128, "f32")),
        ("matmul", "matmul 4096 f32", "quick", cuda, matmul(4096, 4096, 4096, "f32")),
        ("matmul", "matmul 4096 bf16", "quick", cuda, matmul(4096, 4096, 4096, "bf16")),
        ("matmul", "matmul 4096 f16", "full", cuda, matmul(4096, 4096, 4096, "f16")),
        ("matmul", "bmm 64x64 f32", "quick", both, bmm(64, 64, 64, 64, "f32")),
        ("matmul", "bmm 16x128 f64", "full", both, bmm(16, 128, 128, 128, "f64")),
        ("matmul", "bmm 32x128x64 bf16", "full", both, bmm(32, 128, 64, 128, "bf16")),
        ("matmul", "bmm 64x512 f32", "quick", cuda, bmm(64, 512, 512, 512, "f32")),
        ("matmul", "matrix-vector 2048 f32", "quick", both, matvec),
        ("matmul", "linear 16x1024 f32", "quick", both, linear),
        ("conv", "conv2d 3x3 f32", "quick", both, conv2d(64, 28, 3)),
        ("conv", "conv2d 1x1 f32", "quick", both, conv2d(128, 28, 1)),
        ("conv", "conv2d depthwise f32", "quick", both, conv2d(64, 56, 3, groups=64)),
        ("conv", "conv2d channels last f32", "full", both, conv2d(64, 28, 3, last=True)),
        ("conv", "conv2d 3x3 bf16", "full", both, conv2d(32, 28, 3, short="bf16")),
        ("conv", "conv2d 3x3 wide f32", "quick", cuda, conv2d(256, 56, 3)),
        ("conv", "conv1d f32", "full", both, conv1d),
        ("conv", "conv3d f32", "full", both, conv3d),
        ("conv", "conv transposed f32", "full", both, conv_transpose),
        ("conv", "conv2d with gradients f32", "quick", both, conv_backward),
        ("conv", "max pool f32", "full", both, max_pool),
        ("linalg", "solve 256 f32", "quick", both, linalg("solve", 256)),
        ("linalg", "solve 64x32 f64", "full", both, linalg("solve", 32, "f64", 64)),
        ("linalg", "cholesky 512 f32", "quick", both, linalg("cholesky", 512)),
        ("linalg", "eigh 128 f32", "quick", both, linalg("eigh", 128)),
        ("linalg", "svd 128 f32", "quick", both, linalg("svd", 128)),
        ("linalg", "qr 256 f32", "full", both, linalg("qr", 256)),
        ("linalg", "inverse 256 f64", "full", both, linalg("inv", 256, "f64")),
        ("linalg", "least squares 128 f32", "full", cpu, linalg("lstsq", 128)),
        ("linalg", "determinant 256 f32", "full", both, linalg("det", 256)),
        ("fft", "fft 16x4096 f32", "quick", both, fft("fft", (16, 4096))),
        ("fft", "rfft2 256 f32", "quick", both, fft("rfft2", (4, 256, 256))),
        ("fft", "fft of a prime length f32", "full", both, fft("fft", (16, 4093))),
        ("fft", "stft f32", "full", both, stft),
    ]
