"""Running a build that is not ours within the memory there is: `torchsmith guard`.

The command runs as it is, in its own folder; what it needs to be held to the memory is in its
environment and in the store. It is a run like others: its log, its timeline and its end are kept.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from torchsmith.engine import events
from torchsmith.engine.build import each_of, memory_book, with_cache_report
from torchsmith.engine.compile_log import CompileLog, JobLog
from torchsmith.engine.disk import room
from torchsmith.engine.failure import describe_exit, explain_log
from torchsmith.engine.journal import journal_of
from torchsmith.engine.process import Guard, Outcome, Stop, run_script
from torchsmith.engine.recorder import Recorder
from torchsmith.engine.store import Store
from torchsmith.errors import HostError, InterruptedRunError, StepFailed, UsageError
from torchsmith.host.limits import read_cores
from torchsmith.plan.models import Step
from torchsmith.redact import Redactor
from torchsmith.secret_names import is_secret_name
from torchsmith.toolchain.cache import CompilerCache, compiler_cache
from torchsmith.toolchain.governor import Governor
from torchsmith.toolchain.governor_events import Event as MemoryEvent
from torchsmith.toolchain.preload import compiler_hook
from torchsmith.toolchain.stray_compiles import StrayCompiles

# Its first line waits for leave to start: see `step_script`.
_SCRIPT = 'read -r _ && exec "$@" </dev/null'
_STEP = "command"
_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Guarded:
    """The limits of a command, and the variables it gets beside its own."""

    cores: int
    memory: int
    cached: bool
    environment: Mapping[str, str]


def guard(
    command: Sequence[str],
    store: Store,
    *,
    jobs: int | None = None,
    memory: int | None = None,
    on_event: events.OnEvent = lambda _: None,
    on_memory: Callable[[MemoryEvent], None] = lambda _: None,
) -> None:
    """Run a command, its compilers held to a memory budget; StepFailed has its exit code."""
    if shutil.which(command[0]) is None:
        missing = UsageError(f"{command[0]}: there is no such command", "Check its name, and PATH.")
        missing.exit_code = _NOT_FOUND
        raise missing
    store.ensure_ours()
    redactor = Redactor(value for name, value in os.environ.items() if is_secret_name(name))
    title = redactor.text(shlex.join(command))
    step = Step(id=_STEP, kind="compile", title=title)
    logs = store.root / "logs"
    stop = Stop()
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(closing(journal_of(store)))
        run = journal.begin(f"guard: {title}")
        folder = logs / run
        with room(folder):
            folder.mkdir(parents=True, exist_ok=True)
        cache = _cache(store, folder)
        compiles = stack.enter_context(closing(CompileLog(logs, jobs or read_cores())))
        listener = each_of(compiles.heed, with_cache_report(cache, on_event), JobLog(logs).heed)
        recorder = Recorder(journal, run, listener)
        with (
            recorder.until_end(redactor.text),
            stop.on_signals(),
            _governed(store, cache, jobs, memory, each_of(compiles.add, on_memory)) as guarded,
        ):
            recorder.emit(
                events.RunStarted(
                    run=run, plan=title, work=str(Path.cwd()), total=1, to_run=(_STEP,)
                )
            )
            _run(command, step, folder, guarded, recorder, redactor, stop)


def preview(store: Store, jobs: int | None = None, memory: int | None = None) -> Guarded:
    """The limits and variables that a command would get."""
    with (
        tempfile.TemporaryDirectory() as place,
        _governed(store, _cache(store, Path(place)), jobs, memory) as guarded,
    ):
        return guarded


def _cache(store: Store, folder: Path) -> CompilerCache:
    # pip unpacks what it builds into a new temporary folder each time.
    base = Path(tempfile.gettempdir()).resolve()
    return compiler_cache(store.root, folder, shared=store.shared, base=base)


@contextlib.contextmanager
def _governed(
    store: Store,
    cache: CompilerCache,
    jobs: int | None,
    memory: int | None,
    listener: Callable[[MemoryEvent], None] = lambda _: None,
) -> Iterator[Guarded]:
    hook = compiler_hook(store.root, *cache.command)
    if not hook:
        raise HostError(
            "compilers cannot be made to wait: no C compiler here makes a library that loads",
            "Install gcc and the C library's headers (Debian: gcc libc6-dev).",
        )
    cores = jobs or read_cores()
    with (
        memory_book(store, "guard") as book,
        Governor(
            budget=memory, cores=cores, book=book, roots=[Path.cwd()], listener=listener
        ) as governor,
    ):
        variables = governor.environment()
        own = {
            "TORCHSMITH_GOVERNOR": variables["TORCHSMITH_GOVERNOR"],
            "TORCHSMITH_CORES": str(cores),
            **hook,
            **(cache.environment or {}),
            # Lines come when they are written, not when a buffer is full.
            "PYTHONUNBUFFERED": "1",
        }
        if not os.environ.get("MAKEFLAGS"):
            # For ninja alone: a person who starts make without -j means one job at a time.
            own |= dict.fromkeys(["MAKEFLAGS", "TORCHSMITH_NINJA_ONLY"], variables["MAKEFLAGS"])
        if not os.environ.get("MAX_JOBS"):
            # Some projects guess a number from the memory, and guess low.
            own["MAX_JOBS"] = str(cores)
        yield Guarded(cores, governor.budget, bool(cache.command), own)


def _run(
    command: Sequence[str],
    step: Step,
    folder: Path,
    guarded: Guarded,
    recorder: Recorder,
    redactor: Redactor,
    stop: Stop,
) -> None:
    log = folder / f"{_STEP}.log"
    recorder.started(step, log)
    progress = events.Progress(_STEP)

    def on_line(text: str) -> None:
        recorder.emit(events.StepLine(step=_STEP, text=text))
        if (made := progress.read(text)) is not None:
            recorder.emit(made)

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    guard = Guard(descriptor)
    try:
        with StrayCompiles(os.getpid()) as stray:
            outcome = run_script(
                ["sh", "-c", _SCRIPT, "sh", *command],
                Path.cwd(),
                {**os.environ, **guarded.environment},
                log,
                redactor=redactor,
                on_line=on_line,
                stop=stop,
                guard=guard,
            )
    finally:
        guard.close()
        os.close(descriptor)
    if found := stray.found:
        recorder.warn(_stray_warning(found, redactor))
    if outcome.stopped:
        recorder.interrupted(step, log, outcome)
        assert stop.signal is not None
        raise InterruptedRunError(stop.signal)
    if outcome.status:
        raise _failure(step, outcome, log, recorder)
    recorder.finished(step, log, outcome)


def _stray_warning(found: Sequence[str], redactor: Redactor) -> str:
    count, were = ("1 compile", "was") if len(found) == 1 else (f"{len(found)} compiles", "were")
    first = redactor.text(found[0])
    return (
        f"{count} {were} started past the guard, and did not wait for memory: "
        f"{first[:160]}{'…' if len(first) > 160 else ''}"
    )


def _failure(step: Step, outcome: Outcome, log: Path, recorder: Recorder) -> StepFailed:
    reason = describe_exit(outcome.status)
    failure = StepFailed(step.id, step.title, reason, explain_log(log), str(log))
    failure.exit_code = outcome.status if outcome.status > 0 else 128 - outcome.status
    failure.hint = "Mend the cause, then run the same command again."
    return recorder.failed(step, failure, outcome)
