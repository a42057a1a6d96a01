"""Numbers as bytes: packing inputs, and how far two results lie apart."""

from __future__ import annotations

import base64
import math
import random
import struct
from dataclasses import dataclass

_FORMATS = {
    "float64": ("d", 8),
    "float32": ("f", 4),
    "float16": ("e", 2),
    "int64": ("q", 8),
    "int32": ("i", 4),
    "uint8": ("B", 1),
    "bool": ("B", 1),
}
# As torch.testing.assert_close has them: relative, absolute.
_TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
}
INPUTS = ("float64", "float32", "float16", "bfloat16")


def pools(seed: int, count: int = 4096) -> dict[str, str]:
    """The numbers operators are given, around zero, as bytes of each type in base64."""
    chance = random.Random(seed)
    values = [chance.gauss(0.0, 1.0) for _ in range(count)]
    found = {
        name: struct.pack(f"<{count}{_FORMATS[name][0]}", *values)
        for name in ("float64", "float32", "float16")
    }
    # The upper half of a float32; which way it is rounded does not matter for an input.
    halves = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
    found["bfloat16"] = struct.pack(f"<{count}H", *halves)
    return {name: base64.b64encode(content).decode() for name, content in found.items()}


def unpack(dtype: str, content: bytes) -> list[float]:
    """The numbers in a tensor's bytes."""
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(content) // 2}H", content)
        wide = struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))
        return list(struct.unpack(f"<{len(halves)}f", wide))
    letter, size = _FORMATS[dtype]
    return list(struct.unpack(f"<{len(content) // size}{letter}", content))


def _steps(dtype: str, content: bytes) -> list[int]:
    """Whole numbers in the order of the floating-point ones: neighbours differ by one."""
    letter, size = {"float64": ("Q", 8), "float32": ("I", 4)}.get(dtype, ("H", 2))
    sign = 1 << (8 * size - 1)
    numbers = struct.unpack(f"<{len(content) // size}{letter}", content)
    return [sign - number if number & sign else number for number in numbers]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two results lie apart: absolute, relative to the larger, in units of the last place.

    `detail` is for what no number tells. JSON has no infinity, so there is none here.
    """

    identical: bool
    beyond: bool
    absolute: float = 0.0
    relative: float = 0.0
    ulps: int = 0
    detail: str = ""


def distance(dtype: str, one: bytes, other: bytes, loose: float) -> Distance:
    """Compare two results of the same type; `loose` is how many times the usual is tolerated."""
    if one == other:
        return Distance(identical=True, beyond=False)
    left, right = unpack(dtype, one), unpack(dtype, other)
    if dtype not in _TOLERANCES:
        worst = max(abs(a - b) for a, b in zip(left, right, strict=True))
        return Distance(identical=False, beyond=True, absolute=float(worst))
    rtol, atol = _TOLERANCES[dtype]
    if dtype in ("float16", "bfloat16"):
        # Their usual tolerance is generous already.
        loose = min(loose, 4.0)
    finite = [value for value in right if math.isfinite(value)]
    # A sum that nearly cancels is as exact as what was summed, not as what is left of it.
    usual = math.sqrt(sum(value * value for value in finite) / len(finite)) if finite else 0.0
    absolute = relative = 0.0
    beyond = False
    ulps = 0
    places = zip(left, right, _steps(dtype, one), _steps(dtype, other), strict=True)
    for a, b, place, other_place in places:
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        if not (math.isfinite(a) and math.isfinite(b)):
            return Distance(identical=False, beyond=True, detail=f"{a} against {b}")
        apart = abs(a - b)
        absolute = max(absolute, apart)
        relative = max(relative, apart / max(abs(a), abs(b)))
        if abs(b) >= usual / 100:
            # What is left of a sum that cancels may be any number of places off.
            ulps = max(ulps, abs(place - other_place))
        beyond = beyond or apart > loose * (atol + rtol * max(abs(b), usual))
    return Distance(False, beyond, absolute, relative, ulps)
