"""Answer requests about the torch of this Python: a line of JSON in, a line of JSON out.

It ends with its input. Nothing torch prints gets between the answers: they have a descriptor of
their own.
"""

import ctypes
import gc
import importlib
import importlib.util
import itertools
import json
import os
import platform
import re
import signal
import sys
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = ("dense", "elements", "whole")
# What a torch says of something it was built without, or that came with a later release.
LACKS = re.compile(
    "not implemented for|not compiled with|compiled with(?:out)? (?:MKL|LAPACK)|LAPACK library not"
    r"|(?:'torch[\w.]*'|'Tensor' object|'_OpNamespace' \S+ object) has no attribute"
    "|unexpected keyword|not supported|is not available|not linked with|No available kernel"
    "|compile with"
)
LIBRARIES = re.compile(
    r"/(lib(?:openblas|mkl_core|mkl_rt|blis|flexiblas|atlas|blas|gomp|iomp5|omp|tbb|nvpl_blas"
    r"|armpl|acl|arm_compute|jemalloc|tcmalloc|mimalloc|cublas|cudnn|cufft|cusolver)"
    r"[^/ ]*\.so[^/ ]*)$"
)
# What `set:` may change, beyond environment variables; the words are torch's own.
SETTINGS = (
    "float32_matmul_precision",
    "allow_tf32",
    "cudnn_benchmark",
    "cudnn_deterministic",
    "deterministic",
    "mkldnn",
    "flush_denormal",
    "threads",
    "interop_threads",
    "reduced_precision_reduction",
)
# A call this slow is a block of its own, and one block is enough.
SLOW = 0.1


def load(name: str) -> Any:
    """Load a file beside this one; its folder is not on the path, and should not be."""
    module_name = "torchsmith_bench_" + name
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, os.path.join(HERE, name + ".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def torch() -> Any:
    """Return the torch that is measured."""
    return importlib.import_module("torch")


def die_with_parent() -> None:
    """Have the system end this process with the one that asks.

    A worker that is stopped while another is measured would not notice the end of its input.
    """
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def truth(text: str) -> bool:
    """Read a yes or no."""
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no"):
        return False
    raise ValueError("%r is neither true nor false" % text)


def apply(t: Any, name: str, value: str) -> None:
    """Change one setting of torch."""
    if name == "float32_matmul_precision":
        t.set_float32_matmul_precision(value)
    elif name == "allow_tf32":
        t.backends.cuda.matmul.allow_tf32 = truth(value)
        t.backends.cudnn.allow_tf32 = truth(value)
    elif name == "cudnn_benchmark":
        t.backends.cudnn.benchmark = truth(value)
    elif name == "cudnn_deterministic":
        t.backends.cudnn.deterministic = truth(value)
    elif name == "deterministic":
        t.use_deterministic_algorithms(truth(value))
    elif name == "mkldnn":
        t._C._set_mkldnn_enabled(truth(value))
    elif name == "flush_denormal":
        t.set_flush_denormal(truth(value))
    elif name == "threads":
        t.set_num_threads(int(value))
    elif name == "interop_threads":
        t.set_num_interop_threads(int(value))
    elif name == "reduced_precision_reduction":
        t.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = truth(value)
        t.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = truth(value)
    else:
        raise ValueError("no setting %r" % name)


def loaded_libraries() -> "list[str]":
    """Return the names of the libraries in this process that decide about speed."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            found = (LIBRARIES.search(line.rstrip("\n")) for line in file)
            return sorted({match.group(1) for match in found if match})
    except OSError:
        return []


def openblas_core() -> str:
    """Return the processor that torch's OpenBLAS took this one for.

    A release that does not know a processor uses its kernels for a very old one.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = sorted({line.split()[-1] for line in file if "libopenblas" in line})
    for path in paths:
        # NumPy's own has other names for its functions.
        ask = getattr(ctypes.CDLL(path), "openblas_get_corename", None)
        if ask is not None:
            ask.restype = ctypes.c_char_p
            return str(ask().decode("ascii", "replace"))
    return ""


def attempt(function: Any, otherwise: Any = "") -> Any:
    """Return what a function says, or something else if it cannot."""
    try:
        return function()
    except Exception:
        return otherwise


def facts(t: Any) -> "dict[str, Any]":
    """Return what decides how quick this torch is, in its own words."""
    cuda = bool(attempt(t.cuda.is_available, False))
    return {
        "torch": t.__version__,
        "python": platform.python_version(),
        "config": attempt(t.__config__.show),
        "parallel": attempt(t.__config__.parallel_info),
        "capability": attempt(lambda: t.backends.cpu.get_cpu_capability()),
        "git": attempt(lambda: t.version.git_version) or "",
        "debug": bool(attempt(lambda: t.version.debug, False)),
        "cuda": (attempt(lambda: t.version.cuda) or "") if cuda else "",
        "cudnn": attempt(lambda: t.backends.cudnn.version() or 0, 0) if cuda else 0,
        "gpu": attempt(lambda: t.cuda.get_device_name(0)) if cuda else "",
        "threads": t.get_num_threads(),
        "mkldnn": bool(attempt(t.backends.mkldnn.is_available, False)),
        "mkl": bool(attempt(t.backends.mkl.is_available, False)),
        "libraries": loaded_libraries(),
        "openblas_core": attempt(openblas_core),
    }


def wall(call: Any, calls: int) -> float:
    """Return the seconds a call takes, measured over so many."""
    clock = time.perf_counter
    began = clock()
    for _ in itertools.repeat(None, calls):
        call()
    return (clock() - began) / calls


def on_gpu(t: Any, call: Any, calls: int) -> float:
    """Return the seconds a call takes on the GPU's own clock, waits for launches included."""
    first, last = t.cuda.Event(enable_timing=True), t.cuda.Event(enable_timing=True)
    t.cuda.synchronize()
    first.record()
    for _ in itertools.repeat(None, calls):
        call()
    last.record()
    t.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1000.0 / calls


def timed(t: Any, device: str, call: Any, calls: int) -> float:
    """Time so many calls on the clock of the device."""
    return on_gpu(t, call, calls) if device == "cuda" else wall(call, calls)


def tune(t: Any, device: str, call: Any, block: float, warm: float) -> "tuple[int, float]":
    """Warm up for so many seconds, then say how many calls last a block, and what one takes."""
    seconds = timed(t, device, call, 1)
    calls, spent = 1, seconds
    if seconds < SLOW:
        # Doubled until a block lasts: the first calls are of no use for an estimate.
        while spent < warm or calls * seconds < block:
            if calls * seconds < block:
                calls = min(calls * 2, 1 << 20)
            seconds = timed(t, device, call, calls)
            spent += max(calls * seconds, 1e-6)
            if calls >= 1 << 20:
                break
    return max(1, round(block / max(seconds, 1e-9))), seconds


def measure(t: Any, device: str, call: Any, calls: int, blocks: int) -> "list[float]":
    """Return the seconds of a call in each block, after one that brings the caches back."""
    if calls > 1:
        timed(t, device, call, max(1, calls // 4))
    gc.disable()
    try:
        return [timed(t, device, call, calls) for _ in range(blocks)]
    finally:
        gc.enable()


class Worker:
    """What lives between two requests: the case that is ready, and the inputs of operators."""

    def __init__(self) -> None:
        self.device = "cpu"
        self.call = None  # type: Any
        self.cases = {}  # type: dict[str, Any]
        self.cpus = set()  # type: set[int]
        self.pool = None  # type: Any

    def begin(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Take processors and threads, import torch, apply settings, say what it is."""
        if request.get("cpus") and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, request["cpus"])
        try:
            t = torch()
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
            return {"broken": str(error)[:500], "absent": absent}
        except Exception as error:
            return {"broken": "%s: %s" % (type(error).__name__, str(error)[:500]), "absent": False}
        if not hasattr(t, "randn"):
            # A folder that happens to have the name is imported as an empty package.
            return {"broken": "there is no torch in its folder", "absent": True}
        if request.get("threads"):
            t.set_num_threads(request["threads"])
        for name, value in request.get("settings", {}).items():
            try:
                apply(t, name, value)
            except Exception as error:
                return {"refused": "%s=%s: %s" % (name, value, str(error)[:300])}
        self.cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        # The threads of loops are born here, while all processors are open to them.
        attempt(lambda: t.ones(1 << 20).add_(1))
        for file in FILES:
            for _, name, _, _, build in load(file).listed():
                self.cases[name] = build
        # A product loads the libraries that are loaded late.
        attempt(lambda: t.randn(64, 64) @ t.randn(64, 64))
        return {"facts": facts(t)}

    def prepare(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Make a case ready, warm it up, say how many calls make a block."""
        t = torch()
        self.drop(request)
        self.device = request["device"]
        if self.cpus:
            # Launching is the work of one thread: on the same processor for every side, or one
            # of them keeps a worse one for as long as it lives.
            os.sched_setaffinity(0, {min(self.cpus)} if self.device == "cuda" else self.cpus)
        t.manual_seed(0)
        self.call = self.cases[request["case"]](t, self.device)
        gc.collect()
        calls, seconds = tune(t, self.device, self.call, request["block"], request["warm"])
        return {"calls": calls, "seconds": seconds}

    def time(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Time the case that is ready."""
        times = measure(torch(), self.device, self.call, request["calls"], request["blocks"])
        return {"times": times}

    def drop(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Forget the case, with its memory."""
        had = self.call is not None
        self.call = None
        if had and self.device == "cuda":
            torch().cuda.empty_cache()
        return {}

    def inputs(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Take the numbers that operators are given."""
        self.pool = load("operators").Pool(torch(), request["pools"])
        return {}

    def operate(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """Run one operator twice in one type; results and gradients come back as bytes."""
        operators = load("operators")
        call = operators.table()[request["operator"]][2]
        found = operators.run(torch(), self.pool, call, request["dtype"], request["device"])
        return dict(found)


def answer(worker: Worker, request: "dict[str, Any]") -> "dict[str, Any]":
    """Do what is asked; what goes wrong is the answer."""
    try:
        return dict(getattr(worker, request["do"])(request))
    except Exception as error:
        first = (str(error).strip().split("\n")[0] or type(error).__name__)[:300]
        # Of a case, or of torch itself: this torch does not have what was asked for.
        lacks = isinstance(error, NotImplementedError)
        # A stop in the middle of using memory: what was half made goes, and the next case can try.
        attempt(lambda: worker.drop({}))
        if lacks or LACKS.search(str(error)):
            return {"missing": first}
        return {"failed": "%s: %s" % (type(error).__name__, first)}


def main() -> None:
    """Answer until nobody asks any more."""
    # Ctrl-C is for the one who asks: it ends this process in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    worker = Worker()
    for line in questions:
        out.write(json.dumps(answer(worker, json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
