"""Running one step: its commands, its proof, its date, and storing what it made."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import torchsmith.toolchain
from torchsmith.checks import Check
from torchsmith.engine import events
from torchsmith.engine.disk import disk_full, room, write_whole
from torchsmith.engine.failure import describe_exit, explain_log, ran_out_of_room
from torchsmith.engine.lockfile import changed_bytes
from torchsmith.engine.locks import Holder, Lock
from torchsmith.engine.made_images import made_image, pushed_images
from torchsmith.engine.places import Containers, Vessel, explain_start, in_container
from torchsmith.engine.process import GRACE_S, Guard, Outcome, Stop, run_script
from torchsmith.engine.recorder import Recorder
from torchsmith.engine.schedule import acts_outside, closures, keeps_nothing
from torchsmith.engine.shell import OWN_HOME, own_home, step_environment, step_script
from torchsmith.engine.store import OUTPUTS, Entry, MissingOutputError, Store, find_outputs, place
from torchsmith.engine.view import Degree, Reach, command, degree, write_view
from torchsmith.engine.work import WorkFolder, plain_name
from torchsmith.errors import DiskFullError, HostError, InterruptedRunError, ProofFailed, StepFailed
from torchsmith.owners import read_plain
from torchsmith.package.keys import keys_folder
from torchsmith.plan.attest import (
    HISTORY,
    INSIDE,
    Attest,
    History,
    Made,
    about_wheel,
)
from torchsmith.plan.lock import is_lock
from torchsmith.plan.models import Step
from torchsmith.redact import Redactor
from torchsmith.sources.download import DOWNLOADS
from torchsmith.sources.tree import EARLIEST, source_date
from torchsmith.temporary import make_temporary, remove_temporary
from torchsmith.toolchain.build_paths import Knows, understands
from torchsmith.toolchain.governor import KEPT_BY_CMAKE
from torchsmith.verify.report import from_json


@dataclass(frozen=True, slots=True)
class Proof:
    """A report with checks that failed, one line for each."""

    report: Path
    failed: tuple[str, ...]


def read_proof(step: Step, work: Path) -> Proof | None:
    """The report of a step that proves something, if it says that something does not hold."""
    for name in find_outputs(step, work, must=False):
        if not name.endswith(".json"):
            continue
        try:
            made = from_json((work / name).read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None
        failed = tuple(map(_failed_check, made.failed))
        return Proof(work / name, failed) if failed else None
    return None


def _failed_check(check: Check) -> str:
    wanted = f", wanted: {check.wanted}" if check.wanted else ""
    found = check.found or check.detail.strip().rpartition("\n")[2]
    return f"{check.group}, {check.name}: {found}{wanted}"


def origins(steps: Sequence[Step]) -> dict[str, Step]:
    """The fetch that brought what each step compiles; `steps` are ordered."""
    needs = closures(steps)
    found: dict[str, Step] = {}
    for step in steps:
        for other in steps:
            brought = other.kind == "fetch" and other.project == step.project
            if step.kind == "compile" and brought and other.id in needs[step.id]:
                found[step.id] = other
    return found


def build_date(step: Step, fetches: Mapping[str, Step], store: Store, work: WorkFolder) -> int:
    """Seconds since 1970 for SOURCE_DATE_EPOCH.

    Read off the source once and kept by its key: the tree may be gone when the compilation goes on.
    """
    fetch = fetches.get(step.id)
    if fetch is None:
        return EARLIEST
    note = store.root / "dates" / fetch.key
    with contextlib.suppress(OSError, ValueError):
        return int(read_plain(note, 100))
    entry = store.get(fetch.key, work.path, fetch.variant)
    if entry is None or not entry.outputs:
        return EARLIEST
    date = source_date(entry.folder / OUTPUTS / entry.outputs[0])
    with room(store.root):
        write_whole(note, str(date).encode())
    return date


# The first line of such a step's log: it explains downloads that failed.
NO_NETWORK = "this step has no network: what it needs was fetched before it"

# A container tool that is stopped may have to finish a layer before it can clean up.
_IMAGE_GRACE_S = 60.0


def _image_store_full() -> DiskFullError:
    error = DiskFullError("the container tool's store")
    error.hint = (
        "`podman system df` (or docker's) lists what fills it, `podman system prune` removes what "
        "no image needs; then run the same command again."
    )
    return error


@contextlib.contextmanager
def _own_temporary(step: Step, env: dict[str, str]) -> Iterator[None]:
    """Give a step that is hermetic or runs a project's own code a temporary folder of its own.

    Not in the work folder, whose name may be too long for sockets.
    """
    if step.place.inside or not (step.hermetic or step.kind == "environment"):
        yield
        return
    with room(Path(tempfile.gettempdir())):
        folder = make_temporary("step")
    env["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        remove_temporary(folder)


def usable_entry(step: Step, store: Store, work: Path, project: str) -> Entry | None:
    """The result of a step, if it is there and can be used here."""
    if keeps_nothing(step):
        return None
    entry = store.get(step.key, work, step.variant)
    if entry is None or not acts_outside(step):
        return entry
    # What it made elsewhere may be gone.
    made = (work / output.replace("$PROJECT", project, 1) for output in step.outputs)
    return entry if all(path.exists() for path in made) else None


@dataclass
class Executor:
    """Runs the steps of one run, each when it is told to."""

    store: Store
    work: WorkFolder
    recorder: Recorder
    base: Mapping[str, str]
    secrets: frozenset[str]
    stop: Stop
    fresh: bool
    fetches: Mapping[str, Step]
    steps: Mapping[str, Step]
    containers: Containers | None = None
    guard: Guard | None = None
    reach: Reach = field(default_factory=Reach)
    # Seconds, by step.
    expected: dict[str, float] = field(default_factory=dict)
    _warned: bool = False

    def __post_init__(self) -> None:
        self.redactor = Redactor(self.base.get(name, "") for name in self.secrets)
        self._logs = self.store.root / "logs" / self.recorder.run

    def entry(self, step: Step) -> Entry | None:
        """The result of a step, if it is there and can be used here."""
        return usable_entry(step, self.store, self.work.path, self.base.get("PROJECT", ""))

    def resumes(self, step: Step) -> bool:
        """Whether a compilation goes on in the tree it was stopped in."""
        return step.kind == "compile" and not self.fresh and self.work.was_started(step)

    def wait(self, lock: Lock, step: Step | None) -> None:
        """Wait for what another torchsmith holds."""

        def tell(holder: Holder) -> None:
            if step is not None:
                self.recorder.note(step, "waiting")
            message = f"waiting for another torchsmith, {holder}"
            name = step.id if step else ""
            self.recorder.emit(events.Waiting(step=name, pid=holder.pid, message=message))

        if not lock.acquire(tell, lambda: self.stop.signal is not None):
            self.heed_stop()

    def heed_stop(self) -> None:
        """End here if that was asked for."""
        if self.stop.signal is not None:
            raise InterruptedRunError(self.stop.signal)

    def execute(self, step: Step) -> None:
        """Run a step, unless another process does so first."""
        self.heed_stop()
        own = place(self.work.path, step.variant)
        known = self.store.is_bound(step.key)
        if not self._take_turn(step, own if known else ""):
            # Only now is it known that a result of others is of no use here.
            self._take_turn(step, own)

    def _take_turn(self, step: Step, where: str) -> bool:
        """Run a step unless another process does; return whether it is settled.

        A result that works anywhere is waited for. One that works only in its place (an
        environment) is made in each place, perhaps by several processes at once.
        """
        lock = self.store.key_lock(step.key, where)
        with room(self.store.root):
            self.wait(lock, step)
        try:
            if self.entry(step) is not None:
                self.recorder.cached(step)
                return True
            if not where and self.store.is_bound(step.key):
                return False
            self._run_step(step)
            return True
        finally:
            lock.release()

    def _run_step(self, step: Step) -> None:
        outside = acts_outside(step) or keeps_nothing(step)
        resume = self.resumes(step)
        if not outside:
            self.work.clear(step, trees=not resume)
        if resume:
            self.work.clear_staging(step)
        log = self._logs / f"{plain_name(step.id)}.log"
        with room(self._logs):
            self._logs.mkdir(parents=True, exist_ok=True)
        self.work.mark_started(step)
        network, files = self._reached(step)
        self.recorder.started(step, log, resumed=resume, network=network, files=files)
        outcome = self._run_commands(step, log, resume=resume)
        if outcome.status != 0:
            self._end_badly(step, outcome, log)
        size = 0
        if not keeps_nothing(step):
            try:
                entry = self.store.put(step.key, step, self.work.path, external=outside)
            except MissingOutputError as missing:
                raise self._failure(step, f"it made no {missing}", log, outcome) from missing
            size = entry.bytes
            if not outside:
                self.work.mark_placed(step, entry.outputs)
        self.work.mark_finished(step)
        if (image := made_image(step, self.work.path)) is not None:
            self.recorder.emit(
                events.ImageBuilt(
                    step=step.id,
                    name=image.name,
                    id=image.id,
                    digest=image.digest,
                    engine=image.engine,
                )
            )
        for pushed in pushed_images(step, self.work.path):
            self.recorder.emit(
                events.ImagePushed(step=step.id, name=pushed.name, digest=pushed.digest)
            )
        self.recorder.finished(step, log, outcome, size)

    def _reached(self, step: Step) -> tuple[str, str]:
        """The network and the files that a step has."""
        if not step.hermetic:
            return "open", "open"
        can = Degree(network=True, files=True) if step.place.inside else degree()
        lacking = [
            what
            for what, closed in (
                ("the network, so unexpected downloads go unnoticed", can.network),
                ("files that no plan names, so builds may read and change them", can.files),
            )
            if not closed
        ]
        if lacking and not self._warned:
            self._warned = True
            self.recorder.warn(
                f"programs cannot be cut off here from {' and from '.join(lacking)}; in a "
                "container, or as root, they can"
            )
        network = "none" if can.network else "not closed"
        return network if step.offline else "open", "declared" if can.files else "not closed"

    def _run_commands(self, step: Step, log: Path, *, resume: bool) -> Outcome:
        if not step.commands and step.task is None:
            # The plan's own files are written already.
            return Outcome(0, 0.0, 0.0, 0, stopped=False)
        assert self.guard is not None
        progress = events.Progress(step.id, expected=self.expected.get(step.id))

        def on_line(text: str) -> None:
            self.recorder.emit(events.StepLine(step=step.id, text=text))
            # A container tool counts its stages as ninja counts files.
            if step.kind != "image" and (made := progress.read(text)) is not None:
                self.recorder.emit(made)
            # A source that differs from the one asked for is reported, too.
            if step.kind == "fetch" and text.startswith("warning: "):
                message = f"{step.title}: {text.removeprefix('warning: ')}"
                self.recorder.emit(events.Warned(message=message))

        folder = self.work.path / step.folder
        folder.mkdir(parents=True, exist_ok=True)
        (self.work.path / OWN_HOME).mkdir(parents=True, exist_ok=True)
        compiles = step.kind == "compile"
        date = build_date(step, self.fetches, self.store, self.work) if compiles else None
        knows: Knows = understands
        base = {**self.base, DOWNLOADS: str(self.store.root / "downloads")}
        if step.place.inside:
            assert self.containers is not None
            base = dict(self.containers.environment)
            knows = self.containers.knows
        if step.kind in ("configure", "compile"):
            base = self._by_links(base, inside=step.place.inside)
        if isinstance(step.arguments, Attest):
            base = {**base, HISTORY: history(step, self.steps, self.recorder)}
        if (inside := about_wheel(step, self.steps)) is not None:
            base = {**base, INSIDE: msgspec.json.encode(inside).decode()}
        script = self.work.write_script(step, step_script(step))
        env = step_environment(
            step,
            self.work.path,
            base,
            self.secrets,
            resume=resume,
            fresh=self.fresh,
            date=date,
            knows=knows,
        )
        if self._reached(step)[0] == "none":
            with room(self._logs), log.open("a") as file:
                file.write(f"{NO_NETWORK}\n")
        with _own_temporary(step, env), self._vessel(step, script, folder, env) as vessel:
            return run_script(
                vessel.command if vessel else self._command(step, script, env),
                folder,
                vessel.environment if vessel else env,
                log,
                redactor=self.redactor,
                on_line=on_line,
                stop=self.stop,
                guard=self.guard,
                grace=_IMAGE_GRACE_S if keeps_nothing(step) else GRACE_S,
                vessel=vessel,
            )

    def _by_links(self, base: Mapping[str, str], *, inside: bool) -> dict[str, str]:
        """Variables by which CMake finds our programs, with names that stay as they are."""
        python, toolchain = Path(sys.executable), Path(torchsmith.toolchain.__file__).parent
        targets = (python, toolchain)
        if inside and self.containers is not None:
            targets = (self.containers.kit.python, self.containers.kit.package / "toolchain")
        links = self.work.link_tools(*targets, inside=inside)

        def renamed(value: str) -> str:
            words = value.replace(str(toolchain), str(links / "toolchain")).split(";")
            return ";".join(
                str(links / "python") if word == str(python) else word for word in words
            )

        return {
            name: renamed(value) if name in KEPT_BY_CMAKE else value for name, value in base.items()
        }

    def _command(self, step: Step, script: Path, env: dict[str, str]) -> list[str]:
        """The command line of a step on this machine."""
        words = ["bash", "-euo", "pipefail", str(script)]
        can = degree()
        if not (step.hermetic and (can.files or (can.network and step.offline))):
            return words
        reach = self.reach
        if can.files and not step.offline:
            env.update(own_home(self.work.path, env.get("HOME", "")))
        if isinstance(step.arguments, Attest):
            # The first signature makes the key.
            keys = keys_folder()
            keys.mkdir(mode=0o700, parents=True, exist_ok=True)
            env["XDG_DATA_HOME"] = str(keys.parent.parent)
            reach = replace(reach, writable=(*reach.writable, keys))
        view = script.with_suffix(".json")
        content = write_view(step, self.steps, self.work.path, Path(env["TMPDIR"]), env, reach, can)
        with room(self.work.path, len(content)):
            write_whole(view, content)
        return command(view, words)

    @contextlib.contextmanager
    def _vessel(
        self, step: Step, script: Path, folder: Path, env: Mapping[str, str]
    ) -> Iterator[Vessel | None]:
        """The container a step runs in, if it does not run on this machine itself."""
        if not step.place.inside:
            yield None
            return
        assert self.containers is not None
        image = made_image(self.steps[step.place.base], self.work.path)
        if image is None:
            raise HostError(
                f"the image {step.place.image} is gone", "Run the same command again: it is made."
            )
        own = self.work.path / ".torchsmith" / "containers" / plain_name(step.id)
        name = plain_name(step.id).lower()
        keys = keys_folder() if isinstance(step.arguments, Attest) else None
        project = Path(env["PROJECT"])
        with in_container(
            self.containers,
            image,
            script,
            folder,
            env,
            own,
            name=name,
            readable=[path for name in step.reads if (path := project / name).exists()],
            keys=keys,
            network=not step.offline,
        ) as vessel:
            yield vessel

    def _end_badly(self, step: Step, outcome: Outcome, log: Path) -> None:
        if outcome.stopped:
            self.recorder.interrupted(step, log, outcome)
            self.heed_stop()
        if step.expects is not None and (proof := read_proof(step, self.work.path)) is not None:
            disproved = ProofFailed(step.id, step.title, proof.failed, str(proof.report), str(log))
            raise self.recorder.failed(step, disproved, outcome)
        reason = describe_exit(outcome.status)
        unstarted = explain_start(outcome.status, log) if outcome.lost else ""
        if outcome.lost:
            ended = "its container was ended from outside, or by the kernel for want of memory"
            reason = unstarted or ended
        changed = changed_bytes(log) if any(map(is_lock, step.inputs)) else ""
        failure = self._failure(step, changed or reason, log, outcome)
        if changed:
            failure.hint = (
                "Find out who changed it. If the change is meant, run `torchsmith lock` again."
            )
        if unstarted:
            raise HostError(
                f"{step.title}: {unstarted}",
                f"Try it by hand: run --rm {step.place.image} true. "
                "Or build on this machine itself: --here.",
            ) from failure
        if ran_out_of_room(failure.excerpt) and keeps_nothing(step):
            raise _image_store_full() from failure
        if ran_out_of_room(failure.excerpt):
            needed = step.cost.disk_mb * 1_000_000 or None
            raise disk_full(self.work.path, needed) from failure
        raise failure

    def _failure(self, step: Step, reason: str, log: Path, outcome: Outcome) -> StepFailed:
        failure = StepFailed(step.id, step.title, reason, explain_log(log), str(log))
        return self.recorder.failed(step, failure, outcome)


def history(step: Step, steps: Mapping[str, Step], recorder: Recorder) -> str:
    """The steps a step needs: their keys, and when each was last done, as JSON."""
    made = {need: _made(steps[need], steps, recorder) for need in step.needs}
    return msgspec.json.encode(History(recorder.run, made)).decode()


def _made(step: Step, steps: Mapping[str, Step], recorder: Recorder) -> Made:
    done = recorder.done(step)
    if done is None:
        return Made(step.key)
    network, files = recorder.reached(done)
    if step.kind == "package":
        # What counts is what the compiles before it could reach.
        had = [_reached(item, recorder) for item in _compiled_for(step, steps)]
        network = _worst({network for network, _ in had}, "none")
        files = _worst({files for _, files in had}, "declared")
    return Made(step.key, done.run, done.started, done.ended, network, files)


def _worst(had: Set[str], best: str) -> str:
    return next((one for one in ("open", "", "not closed", best) if one in had), "")


def _reached(step: Step, recorder: Recorder) -> tuple[str, str]:
    done = recorder.done(step)
    return recorder.reached(done) if done is not None else ("", "")


def _compiled_for(step: Step, steps: Mapping[str, Step]) -> list[Step]:
    """The steps before one, directly or not, in which a project's own code was built."""
    found: dict[str, Step] = {}
    pending = list(step.needs)
    while pending:
        need = pending.pop()
        if need not in found:
            found[need] = steps[need]
            pending += steps[need].needs
    return [item for item in found.values() if item.kind in ("patch", "configure", "compile")]
