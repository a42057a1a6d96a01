"""Comparing speeds: cases of a suite, measured on every side in turn, in rounds, and judged."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median

from torchsmith import __version__
from torchsmith.bench.launch import (
    Launcher,
    Say,
    Side,
    Worker,
    WorkerLost,
    launcher,
    pick_cpus,
)
from torchsmith.bench.reasons import reasons
from torchsmith.bench.result import Contender, Facts, Machine, Measured, Method, Result
from torchsmith.bench.verdicts import ALPHA, CONTROL, FEWEST, judge
from torchsmith.bench.worker import dense, elements, whole
from torchsmith.errors import HostError, TorchsmithError, UsageError
from torchsmith.host.probe import Programs
from torchsmith.host.system import read_cpu_name
from torchsmith.names import did_you_mean

GROUPS = {
    "matmul": "products of matrices and vectors",
    "conv": "convolutions and pooling",
    "linalg": "solving and decomposing",
    "fft": "Fourier transforms",
    "elementwise": "chains of operations on each element",
    "reduction": "sums, means, maxima",
    "indexing": "picking, scattering, copying",
    "sort": "sorting and searching",
    "norm": "normalisation layers",
    "attention": "softmax, attention, losses",
    "embedding": "lookups in tables",
    "random": "random numbers",
    "overhead": "what a call costs, with and without autograd",
    "optimizer": "optimizer steps",
    "compile": "TorchScript and torch.compile",
    "loader": "data loaders, saving and loading",
    "import": "import torch in a fresh Python",
    "model": "training and inference of small networks",
}


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is timed on a device."""

    name: str
    group: str
    device: str


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard a suite tries: rounds in all, over so many lives of the workers, and block times."""

    rounds: int
    lives: int
    block: float
    blocks: int
    warm: float


EFFORTS = {
    "quick": Effort(rounds=12, lives=2, block=0.005, blocks=3, warm=0.1),
    "full": Effort(rounds=20, lives=4, block=0.01, blocks=3, warm=0.2),
}


def choose(
    suite: str, devices: Sequence[str], groups: Sequence[str] = (), skip: Sequence[str] = ()
) -> tuple[Case, ...]:
    """The cases of a suite, in the groups that are asked for and not in those left out."""
    for name in (*groups, *skip):
        if name not in GROUPS:
            raise UsageError(f"there is no group {name!r}", did_you_mean(name, GROUPS))
    suites = ("quick",) if suite == "quick" else ("quick", "full")
    found = [
        Case(name, group, device)
        for device in devices
        for file in (dense, elements, whole)
        for group, name, of_suite, on, _ in file.listed()
        if of_suite in suites and device in on.split()
        if (not groups or group in groups) and group not in skip
    ]
    if not found:
        raise UsageError(
            f"no case is left for {', '.join(devices)}", f"Groups: {', '.join(GROUPS)}."
        )
    order = list(GROUPS)
    return tuple(sorted(found, key=lambda case: (case.device, order.index(case.group))))


# The slowest case gets so many seconds for each side in all; it has fewer rounds then.
_CASE_SECONDS = 30.0
# Compiling, or a cold start of a GPU: the first call of a case may take long.
_PREPARE_LIMIT = 300.0
_BEGIN_LIMIT = 300.0
_TIME_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Runner:
    """What a side needs to be measured."""

    name: str
    start: Launcher
    settings: dict[str, str]
    cpus: tuple[int, ...]
    threads: int


@dataclass(slots=True)
class Record:
    """The measurements of a case so far."""

    case: Case
    times: dict[str, list[float]] = field(default_factory=dict)
    lives: list[int] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def measured(self) -> Measured:
        """The record as the result's document has it."""
        return Measured(
            name=self.case.name,
            group=self.case.group,
            device=self.case.device,
            # No clock knows more than four digits of this.
            times={
                name: tuple(float(f"{value:.4g}") for value in times)
                for name, times in self.times.items()
            },
            lives=tuple(self.lives),
            missing=dict(self.missing),
            failed=dict(self.failed),
        )

    def out(self, name: str) -> bool:
        """Whether a side failed, or lacks what the case needs."""
        return name in self.missing or name in self.failed


Progress = Callable[[int, int, str], None]


def orders(names: Sequence[str], rounds: int, chance: random.Random) -> Iterator[list[str]]:
    """The order of the sides in each round: one by chance, then the same backwards."""
    order = list(names)
    for number in range(rounds):
        if number % 2 == 0:
            chance.shuffle(order)
        else:
            order.reverse()
        yield list(order)


class Comparison:
    """A comparison under way; what was measured stays when it is stopped."""

    def __init__(
        self, runners: Sequence[Runner], cases: Sequence[Case], effort: Effort, seed: int
    ) -> None:
        self.runners = {runner.name: runner for runner in runners}
        self.records = [Record(case) for case in cases]
        self.facts: dict[str, Facts] = {}
        self.stopped = ""
        self._effort = effort
        self._chance = random.Random(seed)
        self._workers: dict[str, Worker] = {}

    def measure(self, progress: Progress, deadline: float | None = None) -> None:
        """Measure until done, until the deadline, or until Ctrl-C."""
        total = self._effort.lives * len(self.records)
        done = 0
        try:
            for life in range(self._effort.lives):
                if life:
                    # Where its memory lies is part of a process's speed: each life has a new one.
                    self.close()
                # The same order for every side, another in each life: no case always comes
                # after the same one.
                for record in self._chance.sample(self.records, len(self.records)):
                    if deadline is not None and time.monotonic() > deadline:
                        self.stopped = "the time was up"
                        return
                    progress(done, total, record.case.name)
                    self._case(record, life)
                    done += 1
            progress(done, total, "")
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        finally:
            self.close()

    def begin(self) -> None:
        """Start every side once: what cannot be measured is refused before anything is."""
        try:
            for name in self.runners:
                self._begin(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every worker."""
        for name in list(self._workers):
            self._workers.pop(name).end()

    def _begin(self, name: str) -> None:
        self._workers[name], self.facts[name] = start(self.runners[name])

    def _ask(self, name: str, request: Mapping[str, object], limit: float) -> dict[str, object]:
        """Ask a side; one that is lost has failed at this, and is started again for the next."""
        try:
            if name not in self._workers:
                self._begin(name)
            return self._workers[name].ask(request, limit)
        except WorkerLost as lost:
            self._workers.pop(name).end()
            return {"failed": str(lost)}
        except TorchsmithError as error:
            # It began well once; that it does not now must not cost what was measured.
            return {"failed": error.message}

    def _case(self, record: Record, life: int) -> None:
        calls: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for name in self.runners:
            if record.out(name):
                continue
            request = {
                "do": "prepare",
                "case": record.case.name,
                "device": record.case.device,
                "block": self._effort.block,
                "warm": self._effort.warm,
            }
            answer = self._ask(name, request, _PREPARE_LIMIT)
            if self._refused(record, name, answer):
                continue
            calls[name] = int(str(answer["calls"]))
            seconds[name] = float(str(answer["seconds"]))
        ready = [name for name in calls if not record.out(name)]
        if len(ready) > 1:
            self._rounds(record, ready, calls, max(seconds.values()), life)
        for name in ready:
            # The next case begins with all the memory there is.
            if name in self._workers:
                self._ask(name, {"do": "drop"}, _TIME_LIMIT)

    def _rounds(
        self, record: Record, ready: list[str], calls: dict[str, int], slowest: float, life: int
    ) -> None:
        effort = self._effort
        slow = slowest > 2 * effort.block
        # A call longer than a block is its own block.
        blocks = 1 if slow else effort.blocks
        visit = max(slowest, effort.block) * blocks
        wanted = max(FEWEST, min(effort.rounds, int(_CASE_SECONDS / visit)))
        first, last = (wanted * number // effort.lives for number in (life, life + 1))
        record.lives.append(0)
        for order in orders(ready, last - first, self._chance):
            found: dict[str, float] = {}
            # A side that failed in an earlier round has nothing ready any more.
            for name in [name for name in order if name in ready]:
                request = {"do": "time", "calls": calls[name], "blocks": blocks}
                answer = self._ask(name, request, _TIME_LIMIT)
                if self._refused(record, name, answer):
                    ready.remove(name)
                    continue
                times = answer["times"]
                assert isinstance(times, list)
                found[name] = median([float(value) for value in times])
            # Whole rounds only: the sides' times of a round belong together.
            record.lives[-1] += 1
            for name in ready:
                record.times.setdefault(name, []).append(found[name])

    @staticmethod
    def _refused(record: Record, name: str, answer: Mapping[str, object]) -> bool:
        for kind, place in (("missing", record.missing), ("failed", record.failed)):
            if kind in answer:
                place[name] = str(answer[kind])
                # Half a series would be compared with a whole one.
                record.times.pop(name, None)
                return True
        return False


def start(runner: Runner) -> tuple[Worker, Facts]:
    """Start a worker and ask which torch it has; an error explains one that has none."""
    import msgspec

    try:
        worker = Worker(runner.start())
    except OSError as error:
        raise UsageError(f"{runner.name} cannot be started: {error.strerror}") from None
    with contextlib.ExitStack() as stack:
        stack.callback(worker.end)
        request = {
            "do": "begin",
            "cpus": list(runner.cpus),
            "threads": runner.threads,
            "settings": runner.settings,
        }
        try:
            answer = worker.ask(request, _BEGIN_LIMIT)
        except WorkerLost as lost:
            raise HostError(
                f"{runner.name}: its Python {lost}",
                "`torchsmith verify` of it tells more; Python 3.8 or later is needed.",
            ) from None
        if problem := _problem(runner.name, answer):
            raise problem
        stack.pop_all()
        return worker, msgspec.convert(answer["facts"], Facts)


def _problem(name: str, answer: Mapping[str, object]) -> TorchsmithError | None:
    if "refused" in answer:
        return UsageError(
            f"{name}: torch does not take {answer['refused']}", "Leave that setting out."
        )
    if answer.get("absent"):
        return UsageError(
            f"{name}: there is no torch in it", "`pip install torch` into it, or name another."
        )
    if "broken" in answer:
        return HostError(
            f"{name}: its torch cannot be imported: {answer['broken']}",
            "`torchsmith verify` of it, and `torchsmith diagnose`, say why.",
        )
    if "facts" not in answer:
        return HostError(
            f"{name}: its worker answered {dict(answer)}", "Run it again with --debug."
        )
    return None


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be compared, and how. Zero means: as the suite or the machine has it."""

    sides: tuple[Side, ...]
    suite: str = "quick"
    device: str = "cpu"
    groups: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    threads: int = 0
    rounds: int = 0
    seed: int = 1
    control: bool = True
    seconds: float = 0.0
    python: str = ""


def compare(request: Request, progress: Progress, say: Say) -> Result:
    """Measure, then judge. Ctrl-C ends the measuring, and what there is is judged."""
    effort = EFFORTS[request.suite]
    if request.rounds:
        effort = replace(effort, rounds=request.rounds, lives=min(effort.lives, request.rounds))
    devices = ("cpu", "cuda") if request.device == "both" else (request.device,)
    cases = choose(request.suite, devices, request.groups, request.skip)
    cpus = pick_cpus(request.threads)
    if request.threads > len(cpus):
        raise UsageError(
            f"{request.threads} threads need as many processors, and there are {len(cpus)}",
            "Ask for fewer with --threads.",
        )
    runners = prepare(request.sides, cpus, say, python=request.python, gpu="cuda" in devices)
    first = request.sides[0].name
    names = [side.name for side in request.sides]
    if request.control:
        runners.append(replace(runners[0], name=CONTROL))
    running = Comparison(runners, cases, effort, request.seed)
    running.begin()
    if "cuda" in devices and (blind := [n for n in names if not running.facts[n].gpu]):
        running.close()
        raise HostError(f"{blind[0]}: its torch sees no GPU", "Compare on the CPU: --device cpu.")
    load = os.getloadavg()[0]
    began = time.monotonic()
    running.measure(progress, began + request.seconds if request.seconds else None)
    seconds = time.monotonic() - began
    measured = tuple(record.measured() for record in running.records)
    if not any(case.times or case.missing or case.failed for case in measured):
        raise HostError(f"nothing was measured: {running.stopped}", "Give it more time.")
    sides = tuple(
        Contender(side.name, side.target, side.environ, side.settings, running.facts[side.name])
        for side in request.sides
    )
    compared, groups, noise = judge(measured, first, names[1:])
    return Result(
        made=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        torchsmith=__version__,
        seconds=round(seconds, 1),
        stopped=running.stopped,
        method=Method(
            suite=request.suite,
            rounds=effort.rounds,
            lives=effort.lives,
            block=effort.block,
            blocks=effort.blocks,
            seed=request.seed,
            threads=len(cpus),
            cpus=cpus,
            control=request.control,
            alpha=ALPHA,
        ),
        machine=Machine(
            cpu=read_cpu_name(Programs(os.environ)) or platform.processor(),
            cores=os.cpu_count() or 1,
            platform=f"{platform.system()}-{platform.machine()}",
            load=(round(load, 2), round(os.getloadavg()[0], 2)),
        ),
        sides=sides,
        cases=measured,
        compared=compared,
        groups=groups,
        noise=noise,
        reasons=reasons(sides, groups),
    )


def prepare(
    sides: Sequence[Side], cpus: tuple[int, ...], say: Say, *, python: str, gpu: bool
) -> list[Runner]:
    """Find out how each side is started, and with how many threads."""
    found = []
    for side in sides:
        threads = side.environ.get("OMP_NUM_THREADS", "")
        asked = int(threads) if threads.isdigit() and int(threads) else 0
        start = launcher(side, say, python=python, gpu=gpu, first=sides[0])
        found.append(Runner(side.name, start, side.settings, cpus, asked or len(cpus)))
    return found
