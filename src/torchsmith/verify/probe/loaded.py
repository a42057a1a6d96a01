"""What lies in the memory of a process that uses torch, and what cannot be put there."""

import ctypes
import importlib
import os
import warnings
from typing import Any

# The functions of OpenBLAS; builds for wheels give them a start and an end of their own.
OPENBLAS = [(start, end) for start in ("", "scipy_") for end in ("", "64_", "_64", "64")]


def mapped() -> "list[str]":
    """The shared libraries of this process, each once, in the order of their addresses."""
    paths = []  # type: list[str]
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").split(None, 5)[-1]
            last = path.rpartition("/")[2]
            if path.startswith("/") and ".so" in last and path not in paths:
                paths.append(path)
    return paths


def pool(path: str) -> "dict[str, Any]":
    """Ask an OpenBLAS how many threads it uses, if it was built for any, and for which CPU."""
    library = ctypes.CDLL(path)
    known = {"path": path}  # type: dict[str, Any]
    for key, name in (("threads", "get_num_threads"), ("parallel", "get_parallel")):
        for start, end in OPENBLAS:
            function = getattr(library, "%sopenblas_%s%s" % (start, name, end), None)
            if function is not None:
                known[key] = int(function())
                break
    for start, end in OPENBLAS:
        function = getattr(library, "%sopenblas_get_corename%s" % (start, end), None)
        if function is not None:
            function.restype = ctypes.c_char_p
            known["core"] = (function() or b"").decode("ascii", "replace")
            break
    return known


def gpus(torch: Any) -> "tuple[int | None, str]":
    """How many GPUs torch can use; if none, what it says."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return None, ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count:
        try:
            torch.ones(8, device="cuda").cumsum(0).cpu()
        except Exception as error:
            return count, str(error).strip().split("\n")[0][:300]
        return count, ""
    try:
        torch.cuda.init()
    except Exception as error:
        message = str(error).strip().split("\n")[0]
    else:
        message = ""
    first = str(warned[0].message).strip().split("\n")[0] if warned else message
    return 0, first[:300]


def loaded(neighbours: "list[str]") -> "dict[str, Any]":
    """Import the neighbours of torch beside it, then look."""
    torch = importlib.import_module("torch")
    versions = {}
    unimported = {}
    for name in neighbours:
        try:
            module = importlib.import_module(name)
        except BaseException as error:
            first = str(error).strip().split("\n")[0]
            unimported[name] = ("%s: %s" % (type(error).__name__, first))[:300]
            continue
        top = importlib.import_module(name.partition(".")[0])
        versions[name] = str(getattr(top, "__version__", getattr(module, "__version__", "")))
    libraries = mapped()
    count, trouble = gpus(torch)
    named = [path for path in libraries if "openblas" in os.path.basename(path)]
    answer = {
        "libraries": libraries,
        "modules": versions,
        "unimported": unimported,
        "pools": [pool(path) for path in named],
        "gpus": count,
        "gpu_trouble": trouble,
    }
    return {"status": "info", "found": "", "detail": "", "loaded": answer}


def opened(path: str) -> None:
    """Load a library with every symbol it needs, as an import would at its first call."""
    importlib.import_module("torch")
    ctypes.CDLL(path, mode=os.RTLD_NOW)
