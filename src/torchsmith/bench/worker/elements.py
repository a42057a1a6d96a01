"""Cases of torch's own kernels: each element, reductions, indexing, sorting, normalising."""

from typing import Any

COLUMNS = 1024


def rows_for(device: str) -> int:
    """Return how many rows make a million numbers; sixteen on a GPU, or only launching is timed."""
    return 1024 if device == "cpu" else 16 * 1024


def plain(function: Any, short: str = "float32", positive: bool = False) -> Any:
    """Make a function of many numbers."""

    def build(t: Any, device: str) -> Any:
        x = t.randn(rows_for(device), COLUMNS, device=device)
        x = (x.abs() + 0.1 if positive else x).to(getattr(t, short))
        return lambda: function(t, x)

    return build


def two(function: Any) -> Any:
    """Make a function of two times as many numbers."""

    def build(t: Any, device: str) -> Any:
        shape = (rows_for(device), COLUMNS)
        x, y = t.randn(shape, device=device), t.randn(shape, device=device)
        return lambda: function(t, x, y)

    return build


def chain(t: Any, x: Any) -> Any:
    """Return GELU as it was written before there was one."""
    return 0.5 * x * (1.0 + t.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def in_place(t: Any, device: str) -> Any:
    """Make an addition in place: memory bandwidth."""
    shape = (rows_for(device), COLUMNS)
    x, y = t.zeros(shape, device=device), t.ones(shape, device=device)
    return lambda: x.add_(y)


def indexed(function: Any) -> Any:
    """Make a function of a table, 20 000 rows to pick, and a source of that many rows."""

    def build(t: Any, device: str) -> Any:
        count = 20000 if device == "cpu" else 320000
        x = t.randn(count, 64, device=device)
        rows = t.randint(0, count, (count,), device=device)
        source = t.randn(count, 64, device=device)
        return lambda: function(t, x, rows, source)

    return build


def gather(t: Any, x: Any, rows: Any, source: Any) -> Any:
    """Pick a number of each column."""
    return t.gather(x, 0, rows.view(-1, 1).expand(-1, 64))


def scatter_add(t: Any, x: Any, rows: Any, source: Any) -> Any:
    """Add rows into a table."""
    return t.zeros_like(x).scatter_add_(0, rows.view(-1, 1).expand(-1, 64), source)


def embedding(t: Any, device: str) -> Any:
    """Make a lookup of a text in a vocabulary."""
    count = 16 if device == "cpu" else 256
    table = t.randn(30000, 256, device=device)
    text = t.randint(0, 30000, (count, 128), device=device)
    return lambda: t.nn.functional.embedding(text, table)


def embedding_gradient(t: Any, device: str) -> Any:
    """Make a lookup and its gradient."""
    table = t.randn(5000, 128, device=device, requires_grad=True)
    text = t.randint(0, 5000, (16, 128), device=device)
    g = t.randn(16, 128, 128, device=device)
    return lambda: t.autograd.grad(t.nn.functional.embedding(text, table), table, g)


def embedding_bag(t: Any, device: str) -> Any:
    """Make sums of looked up rows."""
    table, bags = t.randn(30000, 64, device=device), t.randint(0, 30000, (512, 20), device=device)
    return lambda: t.nn.functional.embedding_bag(bags, table, mode="sum")


def pictures(function: Any) -> Any:
    """Make a function of a batch of pictures."""

    def build(t: Any, device: str) -> Any:
        x = t.randn(8 if device == "cpu" else 128, 64, 28, 28, device=device)
        w, b = t.ones(64, device=device), t.zeros(64, device=device)
        mean, variance = t.zeros(64, device=device), t.ones(64, device=device)
        return lambda: function(t, x, w, b, mean, variance)

    return build


def layer_norm_gradient(t: Any, device: str) -> Any:
    """Make a layer norm with its gradient."""
    x = t.randn(512, 512, device=device, requires_grad=True)
    w, b = t.ones(512, device=device), t.zeros(512, device=device)
    g = t.randn(512, 512, device=device)
    return lambda: t.autograd.grad(t.layer_norm(x, (512,), w, b), x, g)


def rms_norm(t: Any, x: Any) -> Any:
    """Normalise by the root of the mean square, where torch has it (2.4)."""
    return t.nn.functional.rms_norm(x, (COLUMNS,))


def attention(causal: bool, short: str, length: int) -> Any:
    """Make attention of eight heads; before 2.0 there is no function for it."""

    def build(t: Any, device: str) -> Any:
        function = getattr(t.nn.functional, "scaled_dot_product_attention", None)
        if function is None:
            raise NotImplementedError("no scaled_dot_product_attention before torch 2.0")
        many = length if device == "cpu" else length * 4
        q, k, v = [t.randn(2, 8, many, 64, device=device).to(getattr(t, short)) for _ in range(3)]
        return lambda: function(q, k, v, is_causal=causal)

    return build


def written_attention(t: Any, device: str) -> Any:
    """Make attention as people wrote it before there was a function."""
    q, k, v = [t.randn(2, 8, 128, 64, device=device) for _ in range(3)]
    return lambda: t.softmax(q @ k.transpose(-1, -2) / 8.0, -1) @ v


def cross_entropy(t: Any, device: str) -> Any:
    """Make a loss over a vocabulary, with its gradient."""
    x = t.randn(128, 8000, device=device, requires_grad=True)
    wanted = t.randint(0, 8000, (128,), device=device)
    return lambda: t.autograd.grad(t.nn.functional.cross_entropy(x, wanted), x)


def sequence(function: Any) -> Any:
    """Make a function of 100 000 numbers in no order."""

    def build(t: Any, device: str) -> Any:
        x = t.randn(100000, device=device)
        whole = t.randint(0, 5000, (100000,), device=device)
        edges = t.sort(t.randn(1000, device=device))[0]
        return lambda: function(t, x, whole, edges)

    return build


def listed() -> "list[tuple[str, str, str, str, Any]]":
    """Return the cases of this file."""
    quick = [
        ("elementwise", "chain of eight f32", plain(chain)),
        ("elementwise", "exp f32", plain(lambda t, x: t.exp(x))),
        ("elementwise", "add in place f32", in_place),
        ("elementwise", "where f32", two(lambda t, x, y: t.where(x > y, x, y))),
        ("elementwise", "convert f32 to bf16", plain(lambda t, x: x.to(t.bfloat16))),
        ("reduction", "sum f32", plain(lambda t, x: x.sum())),
        ("reduction", "sum of columns f32", plain(lambda t, x: x.sum(0))),
        ("reduction", "argmax of rows f32", plain(lambda t, x: x.argmax(1))),
        ("reduction", "cumulative sum f32", plain(lambda t, x: x.cumsum(1))),
        ("indexing", "index select", indexed(lambda t, x, rows, s: t.index_select(x, 0, rows))),
        ("indexing", "scatter add", indexed(scatter_add)),
        ("indexing", "masked select", plain(lambda t, x: x[x > 0])),
        ("indexing", "transpose and copy", plain(lambda t, x: x.t().contiguous())),
        ("sort", "sort 100 000 f32", sequence(lambda t, x, w, e: t.sort(x))),
        ("sort", "topk of rows f32", plain(lambda t, x: t.topk(x, 16, 1))),
        ("norm", "layer norm f32", plain(lambda t, x: t.layer_norm(x, (COLUMNS,)))),
        (
            "norm",
            "batch norm, training f32",
            pictures(lambda t, x, w, b, m, v: t.batch_norm(x, w, b, m, v, True, 0.1, 1e-5, True)),
        ),
        ("attention", "softmax f32", plain(lambda t, x: t.softmax(x, 1))),
        ("attention", "attention f32", attention(False, "float32", 128)),
        ("attention", "cross entropy with gradient f32", cross_entropy),
        ("embedding", "embedding f32", embedding),
        ("embedding", "embedding with gradient f32", embedding_gradient),
        ("random", "normal numbers f32", plain(lambda t, x: t.randn_like(x))),
    ]
    full = [
        ("elementwise", "chain of eight f64", plain(chain, "float64")),
        ("elementwise", "chain of eight bf16", plain(chain, "bfloat16")),
        ("elementwise", "tanh f32", plain(lambda t, x: t.tanh(x))),
        ("elementwise", "log f64", plain(lambda t, x: t.log(x), "float64", positive=True)),
        ("elementwise", "power f32", plain(lambda t, x: t.pow(x, 1.7), positive=True)),
        ("elementwise", "gelu f32", plain(lambda t, x: t.nn.functional.gelu(x))),
        ("elementwise", "multiply broadcast f32", plain(lambda t, x: x * x[0])),
        ("reduction", "mean of rows f32", plain(lambda t, x: x.mean(1))),
        ("reduction", "deviation f32", plain(lambda t, x: x.std())),
        ("reduction", "logsumexp f32", plain(lambda t, x: x.logsumexp(1))),
        ("reduction", "sum bf16", plain(lambda t, x: x.sum(), "bfloat16")),
        ("reduction", "any", plain(lambda t, x: (x > 9).any())),
        ("indexing", "gather", indexed(gather)),
        ("indexing", "index put", indexed(lambda t, x, rows, s: x.index_put_((rows,), s))),
        ("indexing", "nonzero", plain(lambda t, x: t.nonzero(x > 0))),
        ("indexing", "concatenate", two(lambda t, x, y: t.cat((x, y), 1))),
        ("sort", "unique 100 000", sequence(lambda t, x, w, e: t.unique(w))),
        ("sort", "sort rows f32", plain(lambda t, x: t.sort(x, 1))),
        ("sort", "search sorted", sequence(lambda t, x, w, e: t.searchsorted(e, x))),
        (
            "norm",
            "group norm f32",
            pictures(lambda t, x, w, b, m, v: t.group_norm(x, 8, w, b)),
        ),
        ("norm", "layer norm with gradient f32", layer_norm_gradient),
        ("norm", "rms norm f32", plain(rms_norm)),
        ("attention", "attention, causal f32", attention(True, "float32", 256)),
        ("attention", "attention bf16", attention(False, "bfloat16", 128)),
        ("attention", "attention, written out f32", written_attention),
        ("attention", "log softmax f32", plain(lambda t, x: t.log_softmax(x, 1))),
        ("embedding", "embedding bag f32", embedding_bag),
        ("random", "uniform numbers f32", plain(lambda t, x: t.rand_like(x))),
        ("random", "permutation", sequence(lambda t, x, w, e: t.randperm(100000))),
        ("random", "dropout f32", plain(lambda t, x: t.nn.functional.dropout(x, 0.1))),
    ]
    return [(group, name, "quick", "cpu cuda", build) for group, name, build in quick] + [
        (group, name, "full", "cpu cuda", build) for group, name, build in full
    ]
