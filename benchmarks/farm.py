"""What a matrix costs on a farm, simulated: hours, what is compiled twice, what the folder bears.

    python -m benchmarks.farm                          500 variants on 1 to 200 nodes
    python -m benchmarks.farm --nodes 50 --losses 0    one cluster, no node ever lost
    python -m benchmarks.farm --svg farm.svg           the same, drawn
    python -m benchmarks.farm --check STORE            a farm that was run, against a simulated one

A discrete-event simulation, the same for the same seed. Steps cost what they were measured to
(docs/scale.md): torch 2.6.0, minimal, no CUDA. Variants of one release and setting that differ in
their Python share all of a compilation but the bindings: what one of them has compiled the others
take from the compiler cache, if they come to it later; two that come to it at once both compile
it. The shared folder serves so many bytes and so many calls a second, in the order they come. A
lost node's variants are submitted again when its loss is noticed.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torchsmith.engine.journal import journal_of
from torchsmith.engine.store import Store

CHUNKS = 60


@dataclass(frozen=True)
class Phase:
    """One step of a variant: work of one core, or of all (`wide`), and files over the network.

    A `once` step is done by one variant for all of its release; the others wait for it, and only
    bring its result.
    """

    name: str
    core_seconds: float
    files: int = 0
    megabytes: float = 0.0
    wide: bool = False
    once: bool = False


# Measured on x86-64 (2 cores, gcc 12.2): CPU-seconds, files and megabytes of each step's result.
# What is read and written for it: a result is written to the work folder, read and written again
# for the store; what an earlier step made is read from the store and written.
TORCH = (
    Phase("fetch", 10, 3 * 15_764, 3 * 137, once=True),
    Phase("patch", 5, 3 * 15_764, 3 * 137, once=True),
    Phase("source", 4, 2 * 15_764, 2 * 137),
    Phase("environment", 17, 3 * 7_218, 3 * 170),
    Phase("configure", 28, 4 * 16_127, 4 * 152),
    Phase("compile", 6_930, 6 * 1_342, 900, wide=True),
    Phase("verify", 28, 3 * 20_486, 3 * 529),
    Phase("attest", 2, 10, 1),
)


@dataclass(frozen=True)
class Cluster:
    """Nodes, and the folder they share. What was not measured here is an assumption, named so."""

    nodes: int = 50
    cores: int = 16
    job_cores: int = 16
    # Assumed: a file server with 10 Gb/s that answers 20,000 calls a second.
    megabytes_s: float = 1_200.0
    calls_s: float = 20_000.0
    # Assumed: what one node alone gets: half a millisecond a call, 8 under way at once.
    node_megabytes_s: float = 400.0
    node_calls_s: float = 16_000.0
    # Assumed: opening, writing and closing a file.
    calls_a_file: float = 3.0
    # Measured: sbatch. Slurm's own default: a node is missed after 300 s.
    submit_s: float = 0.05
    noticed_s: float = 300.0
    # Assumed: one loss in so many hours of a node; 0: never, but for the first node, if told when.
    hours_to_loss: float = 2_000.0
    first_lost_s: float | None = None


@dataclass(frozen=True)
class Matrix:
    """Variants: every release with every setting (CPU, features, profile) and every Python."""

    releases: int = 5
    settings: int = 20
    pythons: int = 5
    phases: tuple[Phase, ...] = TORCH
    # Assumed: the bindings' share of a compilation; a found object's cost, of a compiled one's.
    bindings: float = 0.2
    found: float = 0.01
    # In the order the farm submits: those that share a compilation far from each other, or beside.
    apart: bool = True

    def variants(self) -> list[tuple[int, int, int]]:
        """Release, setting and Python of each variant, in the order of submission."""
        axes = (range(self.releases), range(self.settings), range(self.pythons))
        every = list(itertools.product(*axes))
        return sorted(every, key=lambda item: item[2]) if self.apart else every


@dataclass
class Outcome:
    """What a simulation came to."""

    hours: float = 0.0
    core_hours: float = 0.0
    capacity_hours: float = 0.0
    looked_up: int = 0
    found: int = 0
    twice_core_hours: float = 0.0
    terabytes: float = 0.0
    calls: float = 0.0
    copying_hours: float = 0.0
    losses: int = 0

    @property
    def hit_rate(self) -> float:
        """Of the lookups for what is shared, how many found it."""
        return self.found / self.looked_up if self.looked_up else 0.0


@dataclass
class _Run:
    number: int
    variant: tuple[int, int, int]
    phase: int = 0
    chunk: int = 0
    attempt: int = 0


@dataclass
class Simulation:
    """One farm, event by event."""

    matrix: Matrix
    cluster: Cluster
    seed: int = 1
    out: Outcome = field(default_factory=Outcome)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._now = 0.0
        self._count = itertools.count()
        self._events: list[tuple[float, int, str, int, int]] = []
        self._runs = [_Run(number, item) for number, item in enumerate(self.matrix.variants())]
        self._queue: list[int] = []
        slots = self.cluster.cores // self.cluster.job_cores
        self._free = dict.fromkeys(range(self.cluster.nodes), slots)
        self._where: dict[int, int] = {}
        # Until when the folder is busy with what it was asked for, in bytes and in calls.
        self._busy_until: dict[str, float] = {}
        # Of each compilation that variants share: the parts in the cache, and those under way.
        self._cache: dict[tuple[int, int], set[int]] = {}
        self._under_way: dict[tuple[int, int, int], int] = {}
        self._made: set[tuple[int, str]] = set()
        self._making: dict[tuple[int, str], list[int]] = {}

    def _later(self, seconds: float, what: str, subject: int, attempt: int = 0) -> None:
        event = (self._now + seconds, next(self._count), what, subject, attempt)
        heapq.heappush(self._events, event)

    def run(self) -> Outcome:
        """Until every variant is built."""
        for run in self._runs:
            self._later(run.number * self.cluster.submit_s, "submitted", run.number)
        if self.cluster.first_lost_s is not None:
            self._later(self.cluster.first_lost_s, "lost", 0)
        for node in self._free:
            self._lose_later(node)
        left = len(self._runs)
        while left:
            self._now, _, what, subject, attempt = heapq.heappop(self._events)
            if what == "lost":
                self._lose(subject)
            elif what == "back":
                self._free[subject] = self.cluster.cores // self.cluster.job_cores
            elif what == "submitted":
                self._queue.append(subject)
            elif self._runs[subject].attempt == attempt and self._step_over(self._runs[subject]):
                left -= 1
            self._start_jobs()
        self.out.hours = self._now / 3600
        self.out.capacity_hours = self.out.hours * self.cluster.nodes * self.cluster.cores
        return self.out

    def _start_jobs(self) -> None:
        for node, slots in self._free.items():
            while slots and self._queue:
                slots -= 1
                run = self._runs[self._queue.pop(0)]
                self._where[run.number] = node
                self._begin(run)
            self._free[node] = slots

    def _lose(self, node: int) -> None:
        """A node dies with its jobs; they go on elsewhere once somebody notices."""
        self.out.losses += 1
        self._free[node] = 0
        for number in [item for item, place in self._where.items() if place == node]:
            run = self._runs[number]
            run.attempt += 1
            self._leave(run)
            del self._where[number]
            self._later(self.cluster.noticed_s, "submitted", number)
        self._later(3600, "back", node)
        self._lose_later(node, after=3600)

    def _lose_later(self, node: int, after: float = 0.0) -> None:
        if hours := self.cluster.hours_to_loss:
            self._later(after + self._random.expovariate(1 / (hours * 3600)), "lost", node)

    def _leave(self, run: _Run) -> None:
        """What a lost job was doing is nobody's now."""
        phase = self.matrix.phases[run.phase]
        for waiting in self._making.pop((run.variant[0], phase.name), []):
            if waiting != run.number and waiting in self._where:
                self._begin(self._runs[waiting])

    def _begin(self, run: _Run) -> None:
        """Begin the step a variant is at."""
        phase = self.matrix.phases[run.phase]
        if phase.once:
            key = (run.variant[0], phase.name)
            if key in self._made:
                self._later(0, "over", run.number, run.attempt)
                return
            if key in self._making:
                self._making[key].append(run.number)
                return
            self._making[key] = []
        if phase.wide:
            self._compile(run, phase)
            return
        copying = self._copy_seconds(phase.files, phase.megabytes, queues=True)
        self.out.core_hours += phase.core_seconds / 3600
        self.out.copying_hours += copying / 3600
        self._later(max(copying, phase.core_seconds), "over", run.number, run.attempt)

    def _copy_seconds(self, files: float, megabytes: float, *, queues: bool) -> float:
        """How long files take over the network: as long as alone, or until those before are done.

        A compilation touches the folder now and then and does not queue; what it moves counts.
        """
        cluster = self.cluster
        calls = files * cluster.calls_a_file
        self.out.terabytes += megabytes / 1e6
        self.out.calls += calls
        seconds = 0.0
        for what, amount, alone, together in (
            ("bytes", megabytes, cluster.node_megabytes_s, cluster.megabytes_s),
            ("calls", calls, cluster.node_calls_s, cluster.calls_s),
        ):
            busy = max(self._busy_until.get(what, 0.0), self._now) + amount / together
            self._busy_until[what] = busy
            seconds = max(seconds, amount / alone, busy - self._now if queues else 0.0)
        return seconds

    def _compile(self, run: _Run, phase: Phase) -> None:
        """The next part of a compilation: found in the cache, or compiled."""
        matrix = self.matrix
        shared = run.chunk < CHUNKS * (1 - matrix.bindings)
        core_seconds = phase.core_seconds / CHUNKS
        if shared:
            subject = (run.variant[0], run.variant[1])
            self.out.looked_up += 1
            if run.chunk in self._cache.setdefault(subject, set()):
                self.out.found += 1
                core_seconds *= matrix.found
            elif self._under_way.get((*subject, run.chunk)):
                self.out.twice_core_hours += core_seconds / 3600
            self._under_way[(*subject, run.chunk)] = 1
        self.out.core_hours += core_seconds / 3600
        copying = self._copy_seconds(phase.files / CHUNKS, phase.megabytes / CHUNKS, queues=False)
        seconds = core_seconds / self.cluster.job_cores
        # No two nodes are quite as fast.
        seconds *= self._random.uniform(0.9, 1.1)
        self._later(max(copying, seconds), "over", run.number, run.attempt)

    def _step_over(self, run: _Run) -> bool:
        """A step is over, or a part of a compilation; whether the variant is built."""
        phase = self.matrix.phases[run.phase]
        if phase.wide:
            self._cache.setdefault(run.variant[:2], set()).add(run.chunk)
            run.chunk += 1
            if run.chunk < CHUNKS:
                self._begin(run)
                return False
        elif phase.once and (key := (run.variant[0], phase.name)) not in self._made:
            self._made.add(key)
            for waiting in self._making.pop(key, []):
                if waiting in self._where:
                    self._later(0, "over", waiting, self._runs[waiting].attempt)
        run.phase += 1
        if run.phase < len(self.matrix.phases):
            self._begin(run)
            return False
        self._free[self._where.pop(run.number)] += 1
        return True


def simulate(matrix: Matrix, cluster: Cluster, seed: int = 1) -> Outcome:
    """One farm."""
    return Simulation(matrix, cluster, seed).run()


def _print_table(matrix: Matrix, cluster: Cluster, nodes: Sequence[int], seed: int) -> None:
    count = len(matrix.variants())
    print(
        f"{count} variants: {matrix.releases} releases, {matrix.settings} settings, "
        f"{matrix.pythons} Pythons; nodes of {cluster.cores} cores, seed {seed}"
    )
    print(" nodes  order    hours  core-h   busy  found  twice  folder TB  calls/s  lost")
    for number in nodes:
        for apart in (False, True):
            made = simulate(replace(matrix, apart=apart), replace(cluster, nodes=number), seed)
            print(
                f"{number:>6}  {'apart' if apart else 'beside':<6} {made.hours:>7.1f} "
                f"{made.core_hours:>7,.0f} {made.core_hours / made.capacity_hours:>6.0%} "
                f"{made.hit_rate:>6.0%} {made.twice_core_hours:>6,.0f} {made.terabytes:>10.1f} "
                f"{made.calls / made.hours / 3600:>8,.0f} {made.losses:>5}"
            )


def check(store: Path, cluster: Cluster, seed: int) -> tuple[float, float]:
    """A farm that was run, and the same farm simulated from its steps' times: seconds of both."""
    journal = journal_of(Store(store))
    runs = journal.runs(100_000)
    steps = [step for run in runs for step in journal.steps(run.id)]
    done = [step for step in steps if step.status == "done" and step.started and step.ended]
    begun = min(run.started for run in runs)
    took = max(step.ended or 0.0 for step in done) - begun
    by_kind: dict[str, list[float]] = {}
    for step in done:
        kind = step.step.partition("-")[0]
        by_kind.setdefault(kind, []).append((step.ended or 0.0) - (step.started or 0.0))
    phases = tuple(
        Phase(kind, statistics.mean(times), wide=kind == "compile", once=kind == "fetch")
        for kind in ("fetch", "environment", "compile", "verify", "attest")
        if (times := by_kind.get(kind))
    )
    variants = len({step.step for step in done if step.step.startswith("compile-")})
    matrix = Matrix(releases=1, settings=variants, pythons=1, phases=phases)
    made = simulate(matrix, cluster, seed)
    return took, made.hours * 3600


# What is drawn: a name, its colour, and how it differs from the usual.
_LINES = (
    ("side by side those that share a compilation", "#c0392b", False, 1),
    ("far from each other, as the farm submits them", "#2471a3", True, 1),
    ("the same, with a folder that answers five times as fast", "#1e8449", True, 5),
)
_NODES = (2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)


def draw(matrix: Matrix, cluster: Cluster, seed: int) -> str:
    """Hours against nodes, as a small SVG."""
    width, height, left, foot, most = 760, 340, 60, 280, 16.0

    def x(nodes: int) -> float:
        return left + (width - left - 30) * nodes / _NODES[-1]

    def y(hours: float) -> float:
        return foot - (foot - 40) * min(hours, most) / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<path d="M{left},30 V{foot} H{width - 20}" fill="none" stroke="#888"/>',
        f'<text x="12" y="22">hours for {len(matrix.variants())} variants</text>',
        f'<text x="{width - 20}" y="{foot + 40}" text-anchor="end">nodes of {cluster.cores} '
        "cores</text>",
    ]
    parts += [
        f'<text x="{x(nodes):.0f}" y="{foot + 18}" text-anchor="middle">{nodes}</text>'
        for nodes in range(10, 110, 10)
    ]
    parts += [
        f'<text x="{left - 8}" y="{y(hours) + 4:.0f}" text-anchor="end">{hours}</text>'
        for hours in range(0, 20, 4)
    ]
    for row, (label, colour, apart, faster) in enumerate(_LINES):
        points = []
        for nodes in _NODES:
            here = replace(cluster, nodes=nodes, calls_s=cluster.calls_s * faster)
            made = simulate(replace(matrix, apart=apart), here, seed)
            points.append(f"{x(nodes):.0f},{y(made.hours):.0f}")
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
            'stroke-width="2"/>'
        )
        parts.append(f'<text x="330" y="{60 + 22 * row}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Simulate, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 10, 25, 50, 100, 200])
    parser.add_argument("--cores", type=int, default=16, help="of a node")
    parser.add_argument("--job-cores", type=int, help="of a job; default: all of a node")
    parser.add_argument("--calls", type=float, default=20_000, help="the folder answers a second")
    parser.add_argument("--megabytes", type=float, default=1_200, help="it moves a second")
    parser.add_argument("--losses", type=float, default=2_000, help="node hours to a loss; 0: none")
    parser.add_argument("--compile", type=float, default=6_930, help="core-seconds; CUDA: 107000")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--check", type=Path, metavar="STORE")
    parser.add_argument("--lost", type=float, metavar="S", help="the first node is lost then")
    parser.add_argument("--noticed", type=float, default=300, metavar="S", help="its loss is seen")
    given = parser.parse_args()
    cluster = Cluster(
        cores=given.cores,
        job_cores=given.job_cores or given.cores,
        calls_s=given.calls,
        megabytes_s=given.megabytes,
        hours_to_loss=given.losses,
        first_lost_s=given.lost,
        noticed_s=given.noticed,
    )
    phases = tuple(
        replace(phase, core_seconds=given.compile) if phase.wide else phase for phase in TORCH
    )
    if given.check:
        here = replace(cluster, nodes=given.nodes[0], hours_to_loss=0)
        took, expected = check(given.check, here, given.seed)
        print(json.dumps({"took": round(took, 1), "simulated": round(expected, 1)}))
    elif given.svg:
        given.svg.write_text(draw(Matrix(phases=phases), cluster, given.seed), encoding="utf-8")
    else:
        _print_table(Matrix(phases=phases), cluster, given.nodes, given.seed)


if __name__ == "__main__":
    main()
