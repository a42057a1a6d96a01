"""Running operators: the same numbers in, the bytes of their results and gradients out.

The table below says which operators are compared, and why some are not. Each gets torch and what
hands out its inputs, a `Maker`.
"""

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


FLOATS = "float32 float64 bfloat16 float16"
EXACT = "float32 float64"

# No two runs of these need agree, in one installation or in two.
EXCLUDED = {
    "dropout": "random by purpose",
    "rand": "random by purpose",
    "randn": "random by purpose",
    "randint": "random by purpose",
    "randperm": "random by purpose",
    "bernoulli": "random by purpose",
    "multinomial": "random by purpose",
    "normal": "random by purpose",
    "rrelu": "random by purpose while training",
    "gumbel_softmax": "random by purpose",
    "fractional_max_pool2d": "picks its regions at random",
    "empty": "memory as it is",
    "eig": "vectors are free in sign and scale; eigvalsh is compared",
    "svd": "vectors are free in sign; svdvals are compared",
    "eigh": "vectors are free in sign; eigvalsh is compared",
}


def f(t: Any) -> Any:
    """Return torch's functions of networks."""
    return t.nn.functional


UNARY = {
    "call": "abs asinh atan ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac neg round"
    " sigmoid sign sin sinc sinh square tan tanh trunc i0 nan_to_num",
    "positive": "digamma lgamma log log10 log1p log2 reciprocal rsqrt sqrt",
    "unit": "acos asin atanh erfinv",
}
ACTIVATIONS = (
    "relu gelu silu mish elu selu celu softplus softsign hardtanh hardswish hardsigmoid leaky_relu"
    " logsigmoid tanhshrink softshrink hardshrink relu6 glu"
)
BINARY = (
    "add sub mul maximum minimum fmod remainder atan2 hypot copysign logaddexp logaddexp2 fmax fmin"
)
REDUCTIONS = "sum mean std var amax amin prod logsumexp cumsum cumprod nansum argmax argmin"
WHOLE = "bitwise_and bitwise_or bitwise_xor gcd lcm add mul maximum floor_divide remainder"
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss poisson_nll_loss"


def table() -> "dict[str, tuple[str, float, Any]]":
    """Return the operators: types, how many times the usual tolerance, and a call."""
    found = {}  # type: dict[str, tuple[str, float, Any]]

    def add(name: str, call: Any, dtypes: str = FLOATS, loose: float = 1.0) -> None:
        found[name] = (dtypes, loose, call)

    for kind, names in UNARY.items():
        for name in names.split():
            add(name, _unary(name, kind))
    for name in ACTIVATIONS.split():
        add(name, lambda t, m, name=name: getattr(f(t), name)(m(12, 20)))
    for name in BINARY.split():
        add(name, lambda t, m, name=name: getattr(t, name)(m(17, 19), m(17, 19)))
    for name in REDUCTIONS.split():
        add(name, lambda t, m, name=name: getattr(t, name)(m(23, 17), 1), loose=10)
    for name in WHOLE.split():
        add("integer " + name, _integer(name), "int64")
    for name in LOSSES.split():
        add(name, lambda t, m, name=name: getattr(f(t), name)(m(8, 9), m(8, 9).detach()), loose=10)
    _elements(add)
    _products(add)
    _linalg(add)
    _layers(add)
    _losses(add)
    _indexing(add)
    _transforms(add)
    _networks(add)
    return found


def _unary(name: str, kind: str) -> Any:
    def call(t: Any, m: Any) -> Any:
        x = m(17, 19) if kind == "call" else getattr(m, kind)(17, 19)
        return getattr(t, name)(x)

    return call


def _integer(name: str) -> Any:
    def call(t: Any, m: Any) -> Any:
        a, b = m.whole(1000, 300), m.whole(50, 300) + 1
        if name == "floor_divide":
            return t.div(a, b, rounding_mode="floor")
        return getattr(t, name)(a, b)

    return call


def _elements(add: Any) -> None:
    add("acosh", lambda t, m: t.acosh(m.positive(17, 19) + 1))
    add("logit", lambda t, m: t.logit(m.share(17, 19)), loose=10)
    add("div", lambda t, m: m(17, 19) / m.positive(17, 19))
    add("pow", lambda t, m: t.pow(m.positive(17, 19), m(17, 19)), loose=4)
    add("lerp", lambda t, m: t.lerp(m(9, 9), m(9, 9), 0.3))
    add("addcmul", lambda t, m: t.addcmul(m(9, 9), m(9, 9), m(9, 9), value=0.5))
    add("addcdiv", lambda t, m: t.addcdiv(m(9, 9), m(9, 9), m.positive(9, 9)))
    add("clamp", lambda t, m: m(17, 19).clamp(-0.5, 0.7))
    add("prelu", lambda t, m: f(t).prelu(m(4, 6, 5), m(6)))
    add("count_nonzero", lambda t, m: (m(50) > 0).sum())
    add("median", lambda t, m: t.median(m(9, 11), 1)[0])
    add("quantile", lambda t, m: t.quantile(m(40), 0.3), EXACT)
    add("norm", lambda t, m: t.linalg.vector_norm(m(9, 11), 2, 1), loose=4)
    add("max of a dimension", lambda t, m: t.max(m(9, 11), 1)[0])


def _products(add: Any) -> None:
    add("mm", lambda t, m: m(24, 32) @ m(32, 16), loose=10)
    add("bmm", lambda t, m: t.bmm(m(4, 12, 16), m(4, 16, 8)), loose=10)
    add("mv", lambda t, m: t.mv(m(24, 32), m(32)), loose=10)
    add("dot", lambda t, m: t.dot(m(64), m(64)), loose=20)
    add("outer", lambda t, m: t.outer(m(12), m(9)))
    add("addmm", lambda t, m: t.addmm(m(8, 6), m(8, 12), m(12, 6), beta=0.5), loose=10)
    add("baddbmm", lambda t, m: t.baddbmm(m(3, 4, 5), m(3, 4, 6), m(3, 6, 5)), loose=10)
    add("einsum", lambda t, m: t.einsum("bij,bkj->bik", m(3, 4, 9), m(3, 5, 9)), loose=10)
    add("tensordot", lambda t, m: t.tensordot(m(4, 5, 6), m(5, 6, 3), 2), loose=10)
    add("kron", lambda t, m: t.kron(m(3, 4), m(5, 2)))
    add("linear", lambda t, m: f(t).linear(m(6, 32), m(10, 32), m(10)), loose=10)
    add("bilinear", lambda t, m: f(t).bilinear(m(6, 8), m(6, 7), m(5, 8, 7)), loose=20)
    add("cdist", lambda t, m: t.cdist(m(9, 5), m(7, 5)), EXACT, 100)


def _linalg(add: Any) -> None:
    def of_square(name: str) -> None:
        add(name, lambda t, m: getattr(t.linalg, name)(m.square(12)), EXACT, 100)

    for name in ("inv", "det", "slogdet", "matrix_norm", "pinv"):
        of_square(name)
    add("solve", lambda t, m: t.linalg.solve(m.square(12), m(12, 3)), EXACT, 100)
    add("lstsq", lambda t, m: t.linalg.lstsq(m.square(12), m(12, 3))[0], EXACT, 100)
    add("cholesky", lambda t, m: t.linalg.cholesky(_even(t, m.symmetric(10))), EXACT, 100)
    add("eigvalsh", lambda t, m: t.linalg.eigvalsh(_even(t, m.symmetric(10))), EXACT, 100)
    add("svdvals", lambda t, m: t.linalg.svdvals(m.symmetric(10)), EXACT, 100)
    # Rows are free in sign.
    add("qr", lambda t, m: t.linalg.qr(m.square(10))[1].abs(), EXACT, 100)
    add("matrix_exp", lambda t, m: t.matrix_exp(m(6, 6) / 4), EXACT, 100)
    add("matrix_power", lambda t, m: t.linalg.matrix_power(m(6, 6) / 2, 3), EXACT, 20)
    add(
        "solve_triangular",
        lambda t, m: t.linalg.solve_triangular(m.square(9).tril(), m(9, 3), upper=False),
        EXACT,
        100,
    )


def _even(t: Any, x: Any) -> Any:
    return (x + x.transpose(-1, -2)) / 2


def _layers(add: Any) -> None:
    add("conv1d", lambda t, m: t.conv1d(m(2, 6, 40), m(5, 6, 7), m(5), 2, 3), loose=20)
    add("conv2d", lambda t, m: t.conv2d(m(2, 6, 12, 12), m(8, 6, 3, 3), m(8), 1, 1), loose=20)
    add(
        "conv2d of groups",
        lambda t, m: t.conv2d(m(2, 6, 9, 9), m(6, 1, 3, 3), None, 1, 1, 1, 6),
        loose=20,
    )
    add(
        "conv2d dilated",
        lambda t, m: t.conv2d(m(2, 4, 14, 14), m(4, 4, 3, 3), None, 1, 2, 2),
        loose=20,
    )
    add("conv3d", lambda t, m: t.conv3d(m(1, 3, 6, 6, 6), m(4, 3, 3, 3, 3)), loose=20)
    add(
        "conv_transpose2d",
        lambda t, m: t.conv_transpose2d(m(2, 4, 7, 7), m(4, 3, 4, 4), None, 2, 1),
        loose=20,
    )
    add("unfold", lambda t, m: f(t).unfold(m(1, 3, 8, 8), 3))
    add("max_pool2d", lambda t, m: f(t).max_pool2d(m(2, 3, 9, 9), 3, 2, 1))
    add("avg_pool2d", lambda t, m: f(t).avg_pool2d(m(2, 3, 9, 9), 3, 2), loose=4)
    add("adaptive_avg_pool2d", lambda t, m: f(t).adaptive_avg_pool2d(m(2, 3, 9, 9), 4), loose=4)
    add("adaptive_max_pool2d", lambda t, m: f(t).adaptive_max_pool2d(m(2, 3, 9, 9), 4))
    add("lp_pool2d", lambda t, m: f(t).lp_pool2d(m.positive(1, 2, 8, 8), 2, 2), loose=10)
    add("interpolate nearest", lambda t, m: f(t).interpolate(m(1, 2, 5, 5), size=(9, 9)))
    for mode in ("bilinear", "bicubic"):
        add("interpolate " + mode, _interpolate(mode), loose=10)
    add(
        "grid_sample",
        lambda t, m: f(t).grid_sample(m(1, 2, 7, 7), m.unit(1, 5, 5, 2), align_corners=False),
        EXACT,
        20,
    )
    add("pixel_shuffle", lambda t, m: f(t).pixel_shuffle(m(1, 8, 3, 3), 2))
    add("pad by reflection", lambda t, m: f(t).pad(m(1, 2, 5, 5), (1, 2, 1, 2), mode="reflect"))
    add("layer_norm", lambda t, m: f(t).layer_norm(m(6, 40), (40,), m(40), m(40)), loose=20)
    add(
        "batch_norm",
        lambda t, m: f(t).batch_norm(m(6, 4, 5, 5), None, None, m(4), m(4), True),
        loose=20,
    )
    add("group_norm", lambda t, m: f(t).group_norm(m(3, 8, 5, 5), 4, m(8), m(8)), loose=20)
    add("instance_norm", lambda t, m: f(t).instance_norm(m(3, 4, 6, 6)), loose=20)
    add("rms_norm", lambda t, m: f(t).rms_norm(m(6, 40), (40,)), loose=20)
    add("local_response_norm", lambda t, m: f(t).local_response_norm(m(2, 8, 5, 5), 3), loose=10)
    add("softmax", lambda t, m: t.softmax(m(9, 30), 1), loose=10)
    add("log_softmax", lambda t, m: t.log_softmax(m(9, 30), 1), loose=10)
    add("softmin", lambda t, m: f(t).softmin(m(9, 30), 1), loose=10)
    add("normalize", lambda t, m: f(t).normalize(m(9, 30), dim=1), loose=10)
    add("cosine_similarity", lambda t, m: t.cosine_similarity(m(9, 30), m(9, 30)), loose=20)
    add("pairwise_distance", lambda t, m: t.pairwise_distance(m(9, 30), m(9, 30)), loose=20)
    for causal in (False, True):
        add("attention, causal" if causal else "attention", _attention(causal), loose=30)


def _interpolate(mode: str) -> Any:
    return lambda t, m: f(t).interpolate(m(1, 2, 5, 5), size=(9, 9), mode=mode, align_corners=False)


def _attention(causal: bool) -> Any:
    def call(t: Any, m: Any) -> Any:
        function = getattr(f(t), "scaled_dot_product_attention", None)
        if function is None:
            raise NotImplementedError("no scaled_dot_product_attention before torch 2.0")
        return function(m(2, 2, 9, 8), m(2, 2, 9, 8), m(2, 2, 9, 8), is_causal=causal)

    return call


def _losses(add: Any) -> None:
    add("cross_entropy", lambda t, m: f(t).cross_entropy(m(9, 12), m.whole(12, 9)), loose=10)
    add("nll_loss", lambda t, m: f(t).nll_loss(m(9, 12), m.whole(12, 9)), loose=10)
    add(
        "binary_cross_entropy",
        lambda t, m: f(t).binary_cross_entropy(m.share(9, 4), m.share(9, 4).detach()),
        loose=20,
    )
    add(
        "binary_cross_entropy_with_logits",
        lambda t, m: f(t).binary_cross_entropy_with_logits(m(9, 4), m.share(9, 4).detach()),
        loose=10,
    )
    add(
        "kl_div",
        lambda t, m: f(t).kl_div(m(9, 4), m.share(9, 4).detach(), reduction="batchmean"),
        loose=10,
    )
    add(
        "triplet_margin_loss",
        lambda t, m: f(t).triplet_margin_loss(m(6, 8), m(6, 8), m(6, 8)),
        loose=20,
    )
    add("multi_margin_loss", lambda t, m: f(t).multi_margin_loss(m(9, 5), m.whole(5, 9)), EXACT, 10)


def _indexing(add: Any) -> None:
    add("index_select", lambda t, m: t.index_select(m(20, 6), 0, m.whole(20, 15)))
    add("gather", lambda t, m: t.gather(m(20, 6), 0, m.whole(20, 7, 6)))
    add("scatter_add", lambda t, m: m(9, 6).scatter_add(0, m.whole(9, 20, 6), m(20, 6)), loose=10)
    add("index_add", lambda t, m: m(9, 6).index_add(0, m.whole(9, 20), m(20, 6)), loose=10)
    add("take", lambda t, m: t.take(m(9, 6), m.whole(54, 30)))
    add("where", lambda t, m: t.where(m(9, 9).detach() > 0, m(9, 9), m(9, 9)))
    add("masked_fill", lambda t, m: m(9, 9).masked_fill(m.whole(2, 9, 9) > 0, 0.5))
    add("embedding", lambda t, m: f(t).embedding(m.whole(20, 4, 5), m(20, 6)), loose=10)
    add(
        "embedding_bag",
        lambda t, m: f(t).embedding_bag(m.whole(20, 4, 5), m(20, 6), mode="sum"),
        loose=10,
    )
    add("roll", lambda t, m: t.roll(m(7, 6), 2, 0))
    add("flip", lambda t, m: t.flip(m(7, 6), (0,)))
    add("cat", lambda t, m: t.cat((m(7, 6), m(7, 3)), 1))
    add("stack", lambda t, m: t.stack((m(7, 6), m(7, 6)), 1))
    add("tril", lambda t, m: t.tril(m(7, 7)))
    add("triu", lambda t, m: t.triu(m(7, 7)))
    add("rot90", lambda t, m: t.rot90(m(7, 6)))
    add("repeat_interleave", lambda t, m: m(7, 3).repeat_interleave(3, 0))
    add("topk", lambda t, m: t.topk(m(9, 20), 5, 1)[0])
    add("sort", lambda t, m: t.sort(m(9, 20), 1)[0])
    add("diff", lambda t, m: t.diff(m(9, 20)))
    add("trace", lambda t, m: t.trace(m(9, 9)), EXACT, 10)
    add("cross", lambda t, m: t.cross(m(9, 3), m(9, 3), dim=1))
    add("diagonal", lambda t, m: t.diagonal(m(9, 7)))
    add("trapezoid", lambda t, m: t.trapezoid(m(9, 20)), loose=10)
    add("unique", lambda t, m: t.unique(m.whole(20, 60)), "int64")
    add("bincount", lambda t, m: t.bincount(m.whole(20, 60)), "int64")
    add("nonzero", lambda t, m: t.nonzero(m.whole(3, 60)), "int64")
    add(
        "searchsorted",
        lambda t, m: t.searchsorted(t.arange(0, 50, 3, device=m.device), m.whole(50, 60)),
        "int64",
    )
    add("histc", lambda t, m: t.histc(m(100).detach(), 10, -2.0, 2.0), EXACT)


def _transforms(add: Any) -> None:
    for name in ("fft", "ifft", "rfft", "fft2", "rfft2"):
        add(
            "fft." + name,
            lambda t, m, name=name: t.view_as_real(getattr(t.fft, name)(m(6, 24)).resolve_conj()),
            EXACT,
            50,
        )
    add("fft of a prime length", lambda t, m: t.view_as_real(t.fft.fft(m(3, 31))), EXACT, 50)
    add("fft.irfft", lambda t, m: t.fft.irfft(t.fft.rfft(m(5, 24))), EXACT, 50)
    add(
        "stft",
        lambda t, m: t.view_as_real(
            t.stft(
                m(1, 160),
                32,
                window=t.ones(32, dtype=getattr(t, m.name), device=m.device),
                return_complex=True,
            )
        ),
        EXACT,
        50,
    )


def _networks(add: Any) -> None:
    for name in ("LSTM", "GRU", "RNN"):
        add(name, _recurrent(name), EXACT, 50)
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
        add(name + " steps", _steps(name), EXACT, 20)


def _recurrent(name: str) -> Any:
    def call(t: Any, m: Any) -> Any:
        layer = getattr(t.nn, name)(6, 8).to(dtype=getattr(t, m.name))
        with t.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(m.take(m.name, tuple(parameter.shape)) / 4)
        layer.to(m.device)
        return layer(m(5, 2, 6))[0]

    return call


def _steps(name: str) -> Any:
    def call(t: Any, m: Any) -> Any:
        x = m(8, 8)
        step = getattr(t.optim, name)([x], lr=0.01)
        for _ in range(3):
            x.grad = m.take(m.name, (8, 8)).to(m.device)
            step.step()
        # What it leaves is the result; there is no gradient to take.
        m.leaves.clear()
        return x

    return call
