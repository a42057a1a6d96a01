"""A whole comparison: from what a person asked for to the result."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torchsmith import __version__
from torchsmith.bench import parity
from torchsmith.bench.launch import Say, Side, launcher
from torchsmith.bench.measure import EFFORTS, Comparison, Progress, Runner, choose
from torchsmith.bench.parity import Parity
from torchsmith.bench.process import pick_cpus
from torchsmith.bench.reasons import reasons
from torchsmith.bench.result import Contender, Machine, Method, Result
from torchsmith.bench.statistics import ALPHA
from torchsmith.bench.verdicts import CONTROL, judge
from torchsmith.errors import HostError, UsageError


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
            cpu=_processor(),
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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
    return parity.compare(
        (runners[0], runners[1]), (first, second), pairs, progress, device=device, seed=seed
    )
