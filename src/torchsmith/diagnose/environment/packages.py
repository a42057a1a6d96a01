"""Which torch it is, and whether what lies beside it was made for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchsmith.checks import Check, few
from torchsmith.diagnose.diagnose import diagnose
from torchsmith.diagnose.environment.seen import Built, FoundTorch, Seen, version_of
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import companion_for
from torchsmith.verify.wheelfile import COMPANIONS

_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cudnn|c10_cuda|torch_cuda)\w*\.so")
_UNDEFINED = re.compile(r"undefined symbol: (\S+)")
# What the probe says of a check that took too long.
_TOO_SLOW = "did not end within"
# Torch before 2.3 was compiled against NumPy 1: https://github.com/pytorch/pytorch/issues/107302
_NUMPY_2 = (2, 3)


def judge_packages(seen: Seen, facts: Facts) -> Iterator[Check]:
    """Every line about what is installed."""
    yield _import(seen)
    yield from _torches(seen)
    yield from _numpy(seen)
    for item in seen.built:
        yield from _built(item, seen, facts)


def _import(seen: Seen) -> Check:
    check = seen.imported
    if check.status == "fail":
        message = check.detail.splitlines() or [check.found]
        found = check.found or message[-1]
        known = diagnose([*message, check.found]).named
        why = known[0].meaning if known else "Nothing that uses torch can run."
        cure = known[0].cure if known else "Install torch again: pip install --force-reinstall."
        if not known and _TOO_SLOW in check.found:
            why = "It may only be slow: a cold disk, a busy machine, a network filesystem."
            cure = "Try again; --timeout SECONDS gives it more time."
        return Check("packages", "import torch", "fail", found, why=why, cure=cure)
    found = f"{seen.facts.version or check.found}, Python {seen.version}, {check.seconds:.1f} s"
    if check.status == "warn":
        first = check.detail.strip().partition("\n")[0]
        return Check("packages", "import torch", "info", f"{found}; it says: {first}")
    return Check("packages", "import torch", "pass", found)


def _torches(seen: Seen) -> Iterator[Check]:
    first, *others = seen.torches
    if others:
        hidden = few([f"{item.version or '?'} in {item.path}" for item in others])
        yield Check(
            "packages",
            "several torches",
            "warn",
            f"{first.version or '?'} in {first.path} is imported; hidden: {hidden}",
            why="Libraries installed beside one of them meet the other.",
            cure=_which_cure(others, seen),
        )
    else:
        yield Check("packages", "one torch", "pass", first.path)
    yield from _recorded(first)
    if seen.here:
        yield Check(
            "packages",
            "torch here",
            "warn",
            f"{seen.here} is imported instead by a Python started in this folder",
            why="PyTorch's own sources have no torch._C: the import fails.",
            cure="Start Python in another folder.",
        )


def _which_cure(others: Sequence[FoundTorch], seen: Seen) -> str:
    path = others[0].path
    if seen.environ.get("PYTHONPATH"):
        return "Take the folder out of PYTHONPATH, or uninstall one of them."
    if "/.local/" in path or "/.local/" in seen.torches[0].path:
        return "PYTHONNOUSERSITE=1 leaves ~/.local out; or pip uninstall torch there."
    return f"Uninstall the one that is not meant: {seen.python} -m pip uninstall torch"


def _recorded(torch: FoundTorch) -> Iterator[Check]:
    """A torch over another: pip notes two versions, or one that the files are not of."""
    strange = [item for item in torch.recorded if not _same(item, torch.version)]
    if torch.version and (strange or len(torch.recorded) > 1):
        yield Check(
            "packages",
            "half a torch",
            "fail",
            f"its files are {torch.version}, and pip noted {few(sorted(torch.recorded))}",
            why="One release was put over another: its Python and its libraries may not belong "
            "together.",
            cure="Remove the folders torch and torch-*.dist-info beside it, then install it again.",
        )


def _same(recorded: str, version: str) -> bool:
    """2.6.0 is noted for 2.6.0+cpu where the label is the index's own."""
    return recorded == version or recorded == version.partition("+")[0]


def _numpy(seen: Seen) -> Iterator[Check]:
    if not seen.numpy or not seen.facts.version:
        return
    bridge = seen.facts.features.get("numpy")
    torch, numpy = version_of(seen.facts.version), version_of(seen.numpy)
    old = torch is not None and torch.release[:2] < _NUMPY_2
    if old and numpy is not None and numpy.release >= (2,):
        yield Check(
            "packages",
            "NumPy",
            "fail",
            f"{seen.numpy}; torch {seen.facts.version} was built for NumPy 1",
            why='tensor.numpy() and DataLoader stop with "Numpy is not available".',
            cure="pip install 'numpy<2', or torch 2.3 or newer.",
        )
    elif bridge is False:
        yield Check(
            "packages",
            "NumPy",
            "fail",
            f"{seen.numpy}; torch cannot use it",
            why="tensor.numpy() and DataLoader's default collation stop.",
            cure="Install NumPy again; if torch was built here, build it with numpy installed.",
        )
    else:
        yield Check("packages", "NumPy", "pass", f"{seen.numpy}, and torch can use it")


def _built(item: Built, seen: Seen, facts: Facts) -> Iterator[Check]:
    """A companion or an extension: what it requires, what the loader says, what it does."""
    torch = seen.facts.version or seen.torches[0].version
    refused = {
        path: message for path, message in seen.loaded.refused.items() if path in item.libraries
    }
    failed = [check for check in seen.checks if check.status == "fail" and _about(check, item)]
    found = f"{item.version} for {item.wants or 'a torch it does not name'}; {torch} is here"
    cure = _cure(item, torch, facts)
    if refused:
        path, message = next(iter(refused.items()))
        why = _why_refused(path, message, seen)
        yield Check("packages", item.name, "fail", found, why=why, cure=cure)
    elif failed:
        why = f"{failed[0].name}: {failed[0].found}"
        yield Check("packages", item.name, "fail", found, why=why, cure=cure)
    elif not item.fits:
        why = "It was compiled against another torch: it loads here, and may still crash."
        yield Check("packages", item.name, "warn", found, why=why, cure=cure)
    else:
        yield Check("packages", item.name, "pass", f"{item.version}, loads with torch {torch}")


def _about(check: Check, item: Built) -> bool:
    return check.group == item.name or (
        check.group == "extensions"
        and check.name.removeprefix("import ") in {*item.modules, item.name.replace("-", "_")}
    )


def _why_refused(path: str, message: str, seen: Seen) -> str:
    """What the loader says, with the kind of mismatch a symbol's name tells."""
    name = path.rpartition("/")[2]
    symbol = _UNDEFINED.search(message)
    if symbol is None and seen.facts.cuda is None and _CUDA_LIBRARY.search(message):
        return f"{name} cannot be loaded: it is built for CUDA, and this torch is not. {message}"
    if symbol is None:
        return f"{name} cannot be loaded: {message}"
    return f"{name} cannot be loaded: undefined symbol {symbol[1]}. {symbol_tells(symbol[1], seen)}"


def symbol_tells(symbol: str, seen: Seen) -> str:
    """Why a symbol is not there: the other C++ ABI, or another release."""
    new = "__cxx11" in symbol
    # Ss abbreviates the old std::string: a reference to one, or one after a nested name.
    old = re.search(r"(?:RK?|E)Ss", symbol) is not None
    if new and seen.facts.cxx11_abi is False:
        return "It was compiled with the C++11 ABI, and this torch was not."
    if old and not new and seen.facts.cxx11_abi:
        return "It was compiled without the C++11 ABI, which this torch has."
    if re.search(r"3c10|5torch|2at", symbol):
        return "This torch has no such function: it was compiled against another release."
    return "No library that is loaded has it."


def _cure(item: Built, torch: str, facts: Facts) -> str:
    # A nightly build is its release's for this question: 2.7.0.dev20250101+cu126 -> 2.7.0.
    version = version_of(torch)
    public = version.base_version if version is not None else torch
    if item.name in COMPANIONS:
        kind = item.name.removeprefix("torch")
        known = companion_for(facts, kind, public) if version is not None else None
        if known is not None:
            return f"pip install {item.name}=={known.version}, which belongs to torch {public}"
        return f"Install the {item.name} of torch {public}, or build it: `companions` in a recipe."
    return (
        f"Install the {item.name} built for torch {public}, or build it against this one: "
        f"pip install --no-build-isolation --no-binary {item.name} {item.name}"
    )
