"""Numerical parity: the same inputs through two installations, operator by operator."""

from __future__ import annotations

import base64
import contextlib
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from torchsmith.bench.launch import Say, Side, Worker, WorkerLost, pick_cpus
from torchsmith.bench.measure import Progress, Runner, prepare, start
from torchsmith.bench.result import FORMAT, Contender, Facts, read_document
from torchsmith.bench.worker.operators import EXCLUDED, table
from torchsmith.errors import UsageError

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
# How many numbers operators draw from.
_NUMBERS = 4096
INPUTS = ("float64", "float32", "float16", "bfloat16")


def pools(seed: int) -> dict[str, str]:
    """The numbers operators are given, around zero, as bytes of each type in base64."""
    chance = random.Random(seed)
    values = [chance.gauss(0.0, 1.0) for _ in range(_NUMBERS)]
    found = {
        name: struct.pack(f"<{_NUMBERS}{_FORMATS[name][0]}", *values)
        for name in ("float64", "float32", "float16")
    }
    # The upper half of a float32; which way it is rounded does not matter for an input.
    halves = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
    found["bfloat16"] = struct.pack(f"<{_NUMBERS}H", *halves)
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


_LIMIT = 120.0
Status = Literal["identical", "within", "beyond", "unstable", "missing", "failed"]


class Compared(Struct, frozen=True, omit_defaults=True):
    """An operator in one type: the furthest its results and gradients lie apart."""

    operator: str
    dtype: str
    status: Status
    where: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    ulps: int = 0
    detail: str = ""


class Parity(Struct, frozen=True, kw_only=True):
    """All operators of one side against another; `stopped` says why, if it is not whole."""

    format: int = FORMAT
    device: str
    seed: int
    sides: tuple[Contender, Contender]
    compared: tuple[Compared, ...]
    excluded: dict[str, str]
    stopped: str = ""

    def counts(self) -> dict[Status, int]:
        """How many operators in how many types, by what came of them."""
        found: dict[Status, int] = {}
        for item in self.compared:
            found[item.status] = found.get(item.status, 0) + 1
        return found


def choose(operators: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of operators and types; names that do not exist are refused."""
    known = table()
    for name in operators:
        if name in EXCLUDED:
            raise UsageError(f"{name} is not compared: {EXCLUDED[name]}")
        if name not in known:
            raise UsageError(f"there is no operator {name!r} here", "`--operators` lists them.")
    for name in dtypes:
        if name not in (*INPUTS, "int64"):
            raise UsageError(f"there is no type {name!r} here", f"Types: {', '.join(INPUTS)}.")
    return [
        (name, dtype)
        for name, (types, _, _) in known.items()
        if not operators or name in operators
        for dtype in types.split()
        if not dtypes or dtype in dtypes
    ]


class _Side:
    """A worker that is started again when it is lost."""

    def __init__(self, runner: Runner, numbers: Mapping[str, str]) -> None:
        self._runner = runner
        self._numbers = numbers
        self._worker: Worker | None = None
        self.facts = Facts()

    def begin(self) -> Worker:
        if self._worker is None:
            self._worker, self.facts = start(self._runner)
            self._worker.ask({"do": "inputs", "pools": self._numbers}, _LIMIT)
        return self._worker

    def run(self, operator: str, dtype: str, device: str) -> Mapping[str, object]:
        request = {"do": "operate", "operator": operator, "dtype": dtype, "device": device}
        try:
            return self.begin().ask(request, _LIMIT)
        except WorkerLost as lost:
            self.end()
            return {"failed": str(lost)}

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def compare(
    runners: tuple[Runner, Runner],
    sides: tuple[Contender, Contender],
    pairs: Sequence[tuple[str, str]],
    progress: Progress,
    *,
    device: str = "cpu",
    seed: int = 1,
) -> Parity:
    """Run every operator on both sides. Ctrl-C keeps what was compared."""
    numbers = pools(seed)
    first, second = (_Side(runner, numbers) for runner in runners)
    found: list[Compared] = []
    stopped = ""
    with contextlib.ExitStack() as stack:
        for side in (first, second):
            stack.callback(side.end)
            side.begin()
        try:
            for number, (operator, dtype) in enumerate(pairs):
                progress(number, len(pairs), f"{operator} {dtype}")
                one = first.run(operator, dtype, device)
                other = second.run(operator, dtype, device)
                names = (runners[0].name, runners[1].name)
                found.append(_compared(operator, dtype, names, (one, other)))
        except KeyboardInterrupt:
            stopped = "interrupted"
    described = (
        msgspec.structs.replace(sides[0], facts=first.facts),
        msgspec.structs.replace(sides[1], facts=second.facts),
    )
    return Parity(
        device=device,
        seed=seed,
        sides=described,
        compared=tuple(found),
        excluded=dict(EXCLUDED),
        stopped=stopped,
    )


def _compared(
    operator: str,
    dtype: str,
    names: tuple[str, str],
    answers: tuple[Mapping[str, object], Mapping[str, object]],
) -> Compared:
    kinds: tuple[Literal["missing"], Literal["failed"]] = ("missing", "failed")
    for kind in kinds:
        parts = [
            f"{name}: {answer[kind]}"
            for name, answer in zip(names, answers, strict=True)
            if kind in answer
        ]
        if parts:
            return Compared(operator, dtype, kind, detail="; ".join(parts))
    unstable = [
        name for name, answer in zip(names, answers, strict=True) if not answer.get("stable")
    ]
    if unstable:
        detail = f"not the same twice in {' and '.join(unstable)}"
        return Compared(operator, dtype, "unstable", detail=detail)
    try:
        one, other = (_outputs(answer) for answer in answers)
    except ValueError as error:
        return Compared(operator, dtype, "failed", detail=f"an answer of no sense: {error}")
    return _furthest(operator, dtype, one, other)


class _Output(Struct, frozen=True):
    """A tensor as a worker sends it."""

    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data: bytes

    def __post_init__(self) -> None:
        size = 2 if self.dtype == "bfloat16" else _FORMATS.get(self.dtype, ("", 0))[1]
        if not size or len(self.data) != size * math.prod(self.shape):
            raise ValueError(f"{len(self.data)} bytes of {self.dtype[:20]} {self.shape[:5]}")


def _outputs(answer: Mapping[str, object]) -> dict[str, _Output]:
    try:
        return msgspec.convert(answer.get("outputs"), dict[str, _Output])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _furthest(
    operator: str, dtype: str, one: Mapping[str, _Output], other: Mapping[str, _Output]
) -> Compared:
    loose = table()[operator][1]
    worst: tuple[str, Distance] = ("", Distance(identical=True, beyond=False))
    for where in {**one, **other}:
        left, right = one.get(where), other.get(where)
        if left is None or right is None:
            return Compared(operator, dtype, "beyond", where, detail="only one side has it")
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            detail = f"{left.dtype} {left.shape} against {right.dtype} {right.shape}"
            return Compared(operator, dtype, "beyond", where, detail=detail)
        apart = distance(left.dtype, left.data, right.data, loose)
        if not apart.identical and _size(apart) >= _size(worst[1]):
            worst = (where, apart)
    where, apart = worst
    status: Status = "identical" if apart.identical else "beyond" if apart.beyond else "within"
    return Compared(
        operator, dtype, status, where, apart.absolute, apart.relative, apart.ulps, apart.detail
    )


def _size(apart: Distance) -> tuple[bool, int, float]:
    return apart.beyond, apart.ulps, apart.absolute


def read_parity(path: Path) -> Parity:
    """Read the result of `torchsmith parity`."""
    return read_document(path, Parity, "parity")


def hold(
    sides: Sequence[Side],
    pairs: Sequence[tuple[str, str]],
    progress: Progress,
    say: Say,
    *,
    device: str = "cpu",
    threads: int = 1,
    seed: int = 1,
    python: str = "",
) -> Parity:
    """Hold the results of two sides against each other."""
    if len(sides) != 2 or device == "both":
        raise UsageError(
            "results are compared between two sides on one device",
            "Name two installations, and --device cpu or cuda.",
        )
    runners = prepare(sides, pick_cpus(threads), say, python=python, gpu=device == "cuda")
    first, second = (
        Contender(side.name, side.target, side.environ, side.settings) for side in sides
    )
    return compare(
        (runners[0], runners[1]), (first, second), pairs, progress, device=device, seed=seed
    )
