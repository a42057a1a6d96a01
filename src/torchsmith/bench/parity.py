"""Numerical parity: the same inputs through two installations, operator by operator."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from torchsmith.bench.measure import Progress, Runner, start
from torchsmith.bench.numbers import INPUTS, Distance, distance, pools
from torchsmith.bench.process import Worker, WorkerLost
from torchsmith.bench.result import Contender, Facts
from torchsmith.bench.worker.operator_table import EXCLUDED, table
from torchsmith.errors import TorchsmithError, UsageError
from torchsmith.inputs import check_file

FORMAT = 1
_LIMIT = 120.0
Status = Literal["identical", "within", "beyond", "unstable", "missing", "failed"]


class ParityError(TorchsmithError):
    """Results differ by more than rounding explains."""

    exit_code = 9


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
        wish = {"do": "operate", "operator": operator, "dtype": dtype, "device": device}
        try:
            return self.begin().ask(wish, _LIMIT)
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
        told = [
            f"{name}: {answer[kind]}"
            for name, answer in zip(names, answers, strict=True)
            if kind in answer
        ]
        if told:
            return Compared(operator, dtype, kind, detail="; ".join(told))
    unstable = [
        name for name, answer in zip(names, answers, strict=True) if not answer.get("stable")
    ]
    if unstable:
        detail = f"not the same twice in {' and '.join(unstable)}"
        return Compared(operator, dtype, "unstable", detail=detail)
    one, other = (_outputs(answer) for answer in answers)
    return _furthest(operator, dtype, one, other)


class _Output(Struct, frozen=True):
    """A tensor as a worker sends it."""

    dtype: str
    shape: tuple[int, ...]
    data: str


def _outputs(answer: Mapping[str, object]) -> dict[str, _Output]:
    return msgspec.convert(answer["outputs"], dict[str, _Output])


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
        apart = distance(
            left.dtype, base64.b64decode(left.data), base64.b64decode(right.data), loose
        )
        if not apart.identical and _size(apart) >= _size(worst[1]):
            worst = (where, apart)
    where, apart = worst
    status: Status = "identical" if apart.identical else "beyond" if apart.beyond else "within"
    return Compared(
        operator, dtype, status, where, apart.absolute, apart.relative, apart.ulps, apart.detail
    )


def _size(apart: Distance) -> tuple[bool, int, float]:
    return apart.beyond, apart.ulps, apart.absolute


def as_json(parity: Parity) -> bytes:
    """The document, in one line."""
    return msgspec.json.encode(parity) + b"\n"


def read_parity(path: Path) -> Parity:
    """Read a document that `as_json` wrote."""
    hint = "`torchsmith parity A B --output FILE` writes such a file."
    check_file(path, hint)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Parity)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no result of `torchsmith parity`: {error}", hint) from None
