"""Where yours loses, and why: what differs between two builds, held against what is slower."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from torchsmith.bench.result import Compared, Contender, Facts, Reason
from torchsmith.verify.probing import parse_config

_TUNED = re.compile(r"-m(?:arch|cpu|tune)=\S+|-m(?:avx\S*|sse\S*|fma)")
_LEVEL = re.compile(r"(?:^|\s)(-O\w*|-flto\S*)(?=\s|$)")
# Library names as they are loaded: libgomp-24e2ab19.so.1.0.0, libiomp5.so.
_BLAS = (
    ("mkl", "MKL"),
    ("openblas", "OpenBLAS"),
    ("blis", "BLIS"),
    ("nvpl", "NVPL"),
    ("armpl", "Arm Performance Libraries"),
    ("flexiblas", "FlexiBLAS"),
    ("atlas", "ATLAS"),
)
_OPENMP = ("libgomp", "libiomp5", "libomp")
_ALLOCATORS = ("libjemalloc", "libtcmalloc", "libmimalloc")


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A trait that decides about groups, and the sentence about it."""

    trait: str
    groups: tuple[str, ...]
    say: str
    device: str = ""
    yours: str = ""
    other: str = ""

    def speaks(self, group: str, device: str, yours: str, other: str) -> bool:
        """Whether it has something to say about a group that is slower."""
        return (
            ("*" in self.groups or group in self.groups)
            and self.device in ("", device)
            and yours != other
            and bool(re.search(self.yours, yours) and re.search(self.other, other))
        )


@cache
def rules() -> tuple[Rule, ...]:
    """The rules as they are written down, the weightiest first."""
    text = resources.files("torchsmith.bench").joinpath("data/reasons.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["rule"], tuple[Rule, ...])


def traits(side: Contender) -> dict[str, str]:
    """What decides how quick a torch is, each in a few words."""
    facts = side.facts
    build = parse_config(facts.config)
    flags = build.settings.get("CXX_FLAGS", "")
    blas = _blas(facts)
    settings = {**side.environ, **side.settings}
    return {
        "settings": ", ".join(f"{key}={value}" for key, value in settings.items())
        or "none of its own",
        "debug": "debug" if facts.debug or build.settings.get("BUILD_TYPE") == "Debug" else "",
        "blas": blas,
        "core": facts.openblas_core,
        "lapack": _LAPACK.get(build.settings.get("LAPACK_INFO", ""), blas),
        "onednn": build.mkldnn or "none",
        "fbgemm": "FBGEMM" if build.setting("fbgemm") else "none",
        "fft": f"MKL {build.mkl.partition('-')[0]}" if facts.mkl else "pocketfft",
        "openmp": _first(facts, _OPENMP) or ("OpenMP" if build.openmp else "none"),
        "capability": facts.capability or build.cpu or "no extension",
        "flags": " ".join(_TUNED.findall(flags)) or "any processor of its kind",
        "optimisation": " ".join(dict.fromkeys(_LEVEL.findall(flags))),
        "threads": str(facts.threads),
        "allocator": _first(facts, _ALLOCATORS) or "libc",
        "cuda": facts.cuda,
        "cudnn": str(facts.cudnn) if facts.cudnn else "",
        "python": ".".join(facts.python.split(".")[:2]),
        "torch": facts.torch,
        "compiler": build.compiler,
    }


_LAPACK = {"mkl": "MKL", "open": "OpenBLAS", "generic": "the system", "flexi": "FlexiBLAS"}


def _blas(facts: Facts) -> str:
    build = parse_config(facts.config)
    if facts.mkl:
        return f"MKL {build.mkl.partition('-')[0]}".strip()
    named = build.settings.get("BLAS_INFO", "")
    # NumPy brings an OpenBLAS of its own into the same process, so what torch says counts first.
    for key, name in _BLAS:
        if named == key or (key == "openblas" and named == "open"):
            return name
    if named:
        return named
    for key, name in _BLAS:
        if any(f"lib{key}" in library for library in facts.libraries):
            return name
    return "none"


def _first(facts: Facts, names: Sequence[str]) -> str:
    return next(
        (name for name in names if any(item.startswith(name) for item in facts.libraries)), ""
    )


def reasons(sides: Sequence[Contender], groups: Sequence[Compared]) -> tuple[Reason, ...]:
    """The groups in which the first side is slower, the worst first, each with what explains it."""
    known = {side.name: traits(side) for side in sides}
    yours = known[sides[0].name]
    found = []
    for item in sorted(groups, key=lambda item: item.speedup):
        if item.verdict != "slower":
            continue
        other = known[item.against]
        found_reasons: dict[str, str] = {}
        for rule in rules():
            mine, its = yours[rule.trait], other[rule.trait]
            # The first that speaks of a trait says the most about it.
            if rule.trait not in found_reasons and rule.speaks(item.group, item.device, mine, its):
                found_reasons[rule.trait] = rule.say.format(yours=mine, other=its)
        because = tuple(found_reasons.values()) or (
            "Nothing that torch says of its build differs: look at the machine, or profile it.",
        )
        found.append(Reason(item.against, item.device, item.group, item.speedup, because))
    return tuple(found)
