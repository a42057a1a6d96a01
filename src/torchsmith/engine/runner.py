"""Running a plan, and telling beforehand what a run would do.

Results in the store are not made again; a stopped compilation goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import replace as with_fields
from pathlib import Path

from torchsmith.engine import events
from torchsmith.engine.disk import room
from torchsmith.engine.events import StepExpectation
from torchsmith.engine.execute import Executor, origins, usable_entry
from torchsmith.engine.expected import Known, expectation, known_of, share_left
from torchsmith.engine.journal import Journal, StepStatus, past_journal
from torchsmith.engine.places import Containers
from torchsmith.engine.process import Guard, Stop
from torchsmith.engine.recorder import Recorder
from torchsmith.engine.schedule import (
    acts_outside,
    choose,
    closures,
    final_steps,
    keeps_nothing,
    may_share_time,
    readings,
    steps_to_run,
)
from torchsmith.engine.shell import inherited_environment
from torchsmith.engine.store import Store
from torchsmith.engine.view import Reach
from torchsmith.engine.work import WorkFolder, plain_name
from torchsmith.errors import HostError, StoreError, UsageError
from torchsmith.host.limits import read_cores
from torchsmith.plan.attest import Attest
from torchsmith.plan.expects import Expects
from torchsmith.plan.models import Plan, Step

_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run: the status of each step, and where the results are."""

    run: str
    work: Path
    steps: Mapping[str, StepStatus]
    artifacts: Mapping[str, tuple[Path, ...]]
    seconds: float


def default_work(store: Store, plan: Plan) -> Path:
    """Where a plan runs by default: in the store's folder, not in anybody's source tree."""
    return store.root / "work" / plain_name(plan.name)


def run_plan(
    plan: Plan,
    store: Store,
    journal: Journal,
    *,
    work: Path | None = None,
    only: Sequence[str] | None = None,
    on_event: events.OnEvent = lambda _: None,
    environment: Mapping[str, str] | None = None,
    fresh: bool = False,
    recipe: str = "",
    host: str = "",
    stop: Stop | None = None,
    cores: int | None = None,
    containers: Containers | None = None,
    reach: Reach | None = None,
) -> RunResult:
    """Run the steps of a plan whose results are missing.

    `environment` is used as it is; by default it is the caller's, without variables that would
    change a build unnoticed. `fresh` compiles in new trees. `recipe` and `host` go into the
    journal, `reach` is what steps share. After StepFailed, DiskFullError or InterruptedRunError the
    same call goes on.
    """
    steps = choose(plan, only)
    base = inherited_environment() if environment is None else dict(environment)
    folder = WorkFolder(work or default_work(store, plan), store.lock)
    stop = Stop() if stop is None else stop
    secrets = frozenset(name for step in plan.steps for name in step.secrets)
    recorder = Recorder(journal, journal.begin(plan.name, recipe, host), on_event)
    executor = Executor(
        store.reporting(recorder.warn),
        folder,
        recorder,
        base,
        secrets,
        stop,
        fresh=fresh,
        fetches=origins(steps),
        steps={step.id: step for step in plan.steps},
        containers=containers,
        reach=with_fields(reach or Reach(), hidden=(store.root,)),
    )
    run = _Run(plan, steps, only, executor, recorder, base, cores or read_cores())
    if store.pulse is not None:
        store.pulse.on_lost = run.give_way
    began = time.monotonic()
    with (
        recorder.until_end(executor.redactor.text, lambda: tuple(map(str, run.all_artifacts))),
        stop.on_signals(),
        run.in_work_folder(),
    ):
        run.go()
    seconds = time.monotonic() - began
    return RunResult(recorder.run, folder.path, recorder.statuses, run.artifacts, seconds)


class _Run:
    def __init__(
        self,
        plan: Plan,
        steps: list[Step],
        only: Sequence[str] | None,
        executor: Executor,
        recorder: Recorder,
        base: Mapping[str, str],
        cores: int,
    ) -> None:
        self.plan, self.steps, self.only, self.cores, self.base = plan, steps, only, cores, base
        self.by_id = {step.id: step for step in steps}
        self.reads, self.needs = readings(steps), closures(steps)
        self.finals = final_steps(steps, only)
        self.executor, self.recorder = executor, recorder
        self.store, self.work = executor.store, executor.work
        self.artifacts: dict[str, tuple[Path, ...]] = {}

    @property
    def all_artifacts(self) -> list[Path]:
        """The results of every step."""
        return [path for group in self.artifacts.values() for path in group]

    @contextlib.contextmanager
    def in_work_folder(self) -> Iterator[None]:
        """One run at a time in a work folder."""
        with room(self.work.path):
            self.executor.wait(self.work.lock, None)
        guard = self.executor.guard = Guard(self.work.lock.descriptor)
        try:
            yield
        finally:
            guard.close()
            self.work.lock.release()

    def give_way(self, lock: Path) -> None:
        """Stop: another host took us for dead, and two hosts must not write into one tree."""
        self.recorder.warn(f"another host has taken over {lock}, so this run stops")
        self.executor.stop.request()

    def go(self) -> None:
        """Run every step in its turn."""
        present = {step.id: self.executor.entry(step) is not None for step in self.steps}
        chosen = steps_to_run(self.steps, self.reads, self.finals, lambda step: present[step.id])
        self._check_secrets(chosen)
        if chosen and shutil.which("bash", path=self.base.get("PATH")) is None:
            raise HostError("steps are run by bash, which is not on PATH", "Install bash.")
        order = tuple(step.id for step in self.steps if step.id in chosen)
        self.recorder.emit(
            events.RunStarted(
                run=self.recorder.run,
                plan=self.plan.name,
                work=str(self.work.path),
                total=len(self.steps),
                to_run=order,
                steps=tuple(
                    events.PlannedStep(
                        step=step.id,
                        title=step.title,
                        kind=step.kind,
                        needs=step.needs,
                        place=step.place.system,
                    )
                    for step in self.steps
                ),
            )
        )
        self._report_expectations(chosen)
        self.work.write_files(self.plan.files)
        queue = list(self.steps)
        while queue:
            self.executor.heed_stop()
            step = queue.pop(0)
            if step.id in self.recorder.statuses:
                continue
            if step.id in chosen:
                beside = self._beside(step, queue, chosen)
                queue = [other for other in queue if other not in beside]
                self._run_group([step, *beside])
                self._keep_ready(step, *beside)
            elif present[step.id]:
                self.recorder.cached(step)
                self._keep_ready(step)
            else:
                self.recorder.note(step, "skipped")
                self.recorder.emit(events.StepSkipped(step=step.id, title=step.title))
        for step in self.steps:
            roots = self.work.placed_roots(step, untouched=False) if step.id in self.finals else ()
            # A report lies beside its wheel, and is no result by itself.
            about = isinstance(step.arguments, Expects | Attest)
            if roots and (not about or step.id in (self.only or ())):
                self.artifacts[step.id] = tuple(self.work.path / root for root in roots)

    def _report_expectations(self, chosen: frozenset[str]) -> None:
        """Report what will run and how long it is expected to take, before it begins."""
        expected: list[events.StepExpectation] = []
        for step in self.steps:
            if step.id in chosen:
                known = self.recorder.earlier(self.plan.name, step)
                share = share_left(known.same) if self.executor.resumes(step) else 1.0
                expected.append(expectation(step, self.cores, known, share))
        self.executor.expected = {item.step: item.seconds for item in expected}
        self.recorder.emit(
            events.RunExpected(
                run=self.recorder.run,
                cores=self.cores,
                seconds=sum(item.seconds for item in expected),
                steps=tuple(expected),
            )
        )

    def _keep_ready(self, *steps: Step) -> None:
        for step in steps:
            if step.id in self.finals:
                self._provide(step)

    def _check_secrets(self, chosen: frozenset[str]) -> None:
        """Refuse a run whose password is missing now, not after hours of compiling."""
        for step in self.steps:
            for name in step.secrets:
                if step.id in chosen and not self.base.get(name):
                    raise UsageError(
                        f"{step.title} needs the variable {name}, which is not set",
                        f"Set {name} in the environment; its value is not written down anywhere.",
                    )

    def _beside(self, step: Step, queue: list[Step], chosen: frozenset[str]) -> list[Step]:
        """The steps that may run at the same time as this one."""
        pending = {step.id, *(other.id for other in queue if other.id in chosen)}
        group = [step]
        for other in queue:
            ready = other.id in chosen and not self.needs[other.id] & pending
            if ready and may_share_time(other, group):
                group.append(other)
        return group[1:]

    def _run_group(self, group: list[Step]) -> None:
        for step in group:
            self._provide_for(step)
        if len(group) == 1:
            self.executor.execute(group[0])
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            pending = [pool.submit(self.executor.execute, step) for step in group]
        # All have ended: good results are kept, even if others failed.
        for future in pending:
            future.result()

    def _provide_for(self, step: Step) -> None:
        """Provide everything that a step reads."""
        resumes = self.executor.resumes(step)
        for name in self.reads[step.id]:
            self._provide(self.by_id[name], untouched=not resumes)

    def _provide(self, step: Step, *, untouched: bool = True) -> None:
        """Put a step's outputs into the work folder, from the store or by running it again."""
        if not step.outputs or acts_outside(step) or keeps_nothing(step):
            return
        if self.work.placed_roots(step, untouched=untouched) is not None:
            return
        entry = self.executor.entry(step)
        if entry is not None:
            self.work.forget_placed(step)
            roots = self.store.restore(entry, self.work.path, step.variant)
            if roots is not None:
                self.work.mark_placed(step, roots)
                return
        self._provide_for(step)
        self.executor.execute(step)
        if self.work.placed_roots(step) is None:
            # Another process made it while this one waited.
            self._provide(step)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The steps of a run: those `stored`, those `expected` to run, and others nobody needs."""

    steps: tuple[Step, ...]
    stored: frozenset[str]
    expected: Mapping[str, StepExpectation]
    cores: int

    @property
    def seconds(self) -> float:
        """The expected time of the run."""
        return sum(item.seconds for item in self.expected.values())


def outlook(
    plan: Plan,
    store: Store,
    *,
    project: Path,
    work: Path | None = None,
    only: Sequence[str] | None = None,
    cores: int | None = None,
    fresh: bool = False,
) -> Outlook:
    """What `build` with the same arguments would run."""
    steps = choose(plan, only)
    folder = WorkFolder(work or default_work(store, plan), store.lock)
    stored = frozenset(
        step.id
        for step in steps
        if usable_entry(step, store, folder.path, str(project.resolve())) is not None
    )
    chosen = steps_to_run(
        steps, readings(steps), final_steps(steps, only), lambda step: step.id in stored
    )
    cores = cores or read_cores()
    try:
        journal = past_journal(store)
    except StoreError:
        journal = None
    expected: dict[str, StepExpectation] = {}
    for step in steps:
        if step.id in chosen:
            known = known_of(journal, plan.name, step) if journal is not None else Known()
            resumes = step.kind == "compile" and not fresh and folder.was_started(step)
            share = share_left(known.same) if resumes else 1.0
            expected[step.id] = expectation(step, cores, known, share)
    if journal is not None:
        journal.close()
    return Outlook(tuple(steps), stored, expected, cores)
