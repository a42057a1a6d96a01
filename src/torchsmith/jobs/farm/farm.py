"""The farm itself: one job for each variant, watched until all are built.

The target is asked where a job is, and the files in the store say how it ended: what a build says
of itself counts, whatever the target remembers. A job that is over and left no end was lost with
its machine, and is submitted again; what it had finished lies in the store, and its compilation
goes on in the folder it was in. A build that failed is not tried again: it would fail again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.engine.events import Event, Waiting
from torchsmith.engine.locks import Holder
from torchsmith.engine.process import Stop
from torchsmith.engine.store import Store
from torchsmith.errors import ClusterError, InterruptedRunError, ProofFailed, TorchsmithError
from torchsmith.jobs.client import Client, Listed, Status
from torchsmith.jobs.farm import events
from torchsmith.jobs.farm.attempt import Attempt, Failure
from torchsmith.jobs.farm.request import Resources, Wanted, attempt_folder, variant_job
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Submission, Submissions, look_up, submit

# How often one variant may lose its machine.
_ATTEMPTS = 3
# So long after a target calls a job over its last file may still be on its way through a
# network folder (NFS looks for changes again after up to a minute, by default after seconds).
_GRACE_S = 5.0
# So long the target may be away before we give up; its jobs go on without us.
_PATIENCE_S = 600.0
_EVERY = 1_000_000


class FarmFailed(TorchsmithError):  # noqa: N818 - the event, said as one
    """Some variants could not be built; each was told of when it failed."""

    def __init__(self, failed: Mapping[str, Failure], count: int) -> None:
        self.failed = dict(failed)
        self.exit_code = next(iter(failed.values())).exit_code
        names = ", ".join(failed)
        super().__init__(
            f"{len(failed)} of {count} variants failed: {names}",
            "What was built stays; run the same command again when the cause is mended.",
        )


@dataclass(frozen=True)
class FarmResult:
    """What a farm came to: the results of each variant, and the variants still under way."""

    artifacts: Mapping[str, tuple[Path, ...]]
    left: tuple[str, ...] = ()


@dataclass
class _Variant:
    name: str
    attempt: Attempt | None = None
    submission: Submission | None = None
    losses: int = 0
    over_since: float | None = None
    shown: tuple[str, str, str] = ("", "", "")


@dataclass
class Farm:
    """One matrix on one target. Whoever holds the farm's lock is the one who watches it."""

    store: Store
    folder: Path
    what: Wanted
    resources: Resources
    client: Client
    submissions: Submissions
    on_event: Callable[[Event], None] = lambda _: None
    poll: float = 2.0
    _built: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    _failed: dict[str, Failure] = field(default_factory=dict)
    _known: dict[Path, Submission] = field(default_factory=dict)
    _away_since: float | None = None

    def run(self, *, detach: bool = False, stop: Stop | None = None) -> FarmResult:
        """Submit what is not built and not under way, and wait for all; `detach` does not wait."""
        stop = stop or Stop()
        lock = self.store.lock(self.folder / ".lock")

        def wait(holder: Holder) -> None:
            # Its jobs are the same ones: nothing is lost by waiting.
            message = f"another torchsmith watches this farm, {holder}: waiting for it"
            self.on_event(Waiting(step="", pid=holder.pid, message=message))

        with stop.on_signals():
            if not lock.acquire(wait, lambda: stop.signal is not None):
                raise self._left(stop)
            try:
                return self._run(detach, stop)
            finally:
                lock.release()

    def _run(self, detach: bool, stop: Stop) -> FarmResult:
        began = time.monotonic()
        for item in self.submissions.all(_EVERY):
            if self.folder in item.intent.folder.parents:
                known = look_up(item, self.client, self.submissions)
                # What never reached its target is handed over again.
                if known.engine_id:
                    self._known[item.intent.folder] = known
        variants = [_Variant(name) for name in self.what.variants]
        open_ = [variant for variant in variants if not self._find(variant)]
        self.on_event(
            events.FarmStarted(
                farm=self.folder.name,
                engine=self.client.engine,
                folder=str(self.folder),
                variants=self.what.variants,
                done=len(variants) - len(open_),
            )
        )
        for variant in variants:
            if variant not in open_:
                self._tell_built(variant, before=True)
        for variant in open_:
            if variant.submission is None:
                self._submit(variant)
        while open_ and not detach:
            if stop.signal is not None:
                raise self._left(stop)
            open_ = self._look(open_)
            if open_:
                time.sleep(self.poll)
        left = tuple(variant.name for variant in open_)
        status = "left" if left else "failed" if self._failed else "done"
        self.on_event(
            events.FarmFinished(
                farm=self.folder.name,
                status=status,
                seconds=time.monotonic() - began,
                built=tuple(self._built),
                failed=tuple(self._failed),
                left=left,
            )
        )
        if self._failed:
            raise FarmFailed(self._failed, len(self.what.variants))
        return FarmResult(self._built, left)

    def _left(self, stop: Stop) -> InterruptedRunError:
        error = InterruptedRunError(stop.signal or 2)
        error.message = "stopped watching; the jobs continue"
        error.hint = (
            "Run the same command again to find them, or end them with `torchsmith job cancel`."
        )
        return error

    def _find(self, variant: _Variant) -> bool:
        """Find what became of a variant before we came; whether it is built."""
        tried = attempt_folder(self.folder, variant.name, 1).parent
        numbers = [int(path.name) for path in tried.glob("[0-9]*")]
        if not numbers:
            return False
        attempt = Attempt(tried / str(max(numbers)))
        variant.attempt = attempt
        if attempt.exit_code == 0:
            return self._prove(variant, attempt)
        # One that came to nothing is told of first; whoever asks again has mended something.
        if not attempt.reported:
            variant.submission = self._known.get(attempt.folder)
        return False

    def _submit(self, variant: _Variant) -> None:
        """Begin an attempt, or hand over one that was begun and never reached the target."""
        attempt = variant.attempt
        if attempt is None or attempt.exit_code is not None or attempt.folder in self._known:
            number = attempt.number + 1 if attempt else 1
            folder = attempt_folder(self.folder, variant.name, number)
            folder.mkdir(parents=True)
            variant.attempt = attempt = Attempt(folder)
        variant.over_since = None
        job = variant_job(
            self.store.root, self.folder, self.what, variant.name, attempt.number, self.resources
        )
        # From a folder of its own: by that its submission is found again.
        (made,) = submit([job], self.client, self.submissions, attempt.folder)
        self._known[attempt.folder] = variant.submission = made
        self.on_event(
            events.VariantSubmitted(
                variant=variant.name, job=made.engine_id, attempt=attempt.number
            )
        )

    def _look(self, open_: list[_Variant]) -> list[_Variant]:
        """Look after every variant once; those that are not over yet."""
        try:
            listed = {item.token: item for item in self.client.list()}
            self._away_since = None
        except ClusterError:
            # Its jobs run on while it restarts.
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > _PATIENCE_S:
                raise
            return open_
        return [variant for variant in open_ if self._goes_on(variant, listed)]

    def _goes_on(self, variant: _Variant, listed: Mapping[str, Listed]) -> bool:
        attempt, submission = variant.attempt, variant.submission
        assert attempt is not None
        assert submission is not None
        attempt.look()
        code = attempt.exit_code
        there = listed.get(submission.token)
        if code is not None and not attempt.stopped:
            if code == 0 and self._prove(variant, attempt):
                self._tell_built(variant, before=False)
            else:
                self._fail(variant, self._unproven(attempt) if code == 0 else attempt.why())
            self.submissions.seen(
                submission.id, Status(State.FAILED if code else State.SUCCEEDED, exit_code=code)
            )
            return False
        if there is not None and not there.state.over:
            self._tell_moved(variant, there.state)
            variant.over_since = None
            return True
        now = time.monotonic()
        variant.over_since = variant.over_since or now
        if now - variant.over_since < _GRACE_S:
            return True
        status = self.client.status(submission.submitted) or Status(State.LOST)
        if not status.state.over:
            return True
        self.submissions.seen(submission.id, status)
        return self._over(variant, attempt, status)

    def _over(self, variant: _Variant, attempt: Attempt, status: Status) -> bool:
        """A job is over and its build did not end by itself."""
        reason = status.reason or status.said or status.state.meaning
        ended = status.state in (State.CANCELLED, State.TIMEOUT) and status.said != "PREEMPTED"
        if ended:
            self._fail(
                variant,
                Failure(
                    f"its job: {status.state.meaning} ({reason})", (), "", ClusterError.exit_code
                ),
            )
            return False
        variant.losses += 1
        again = variant.losses < _ATTEMPTS
        self.on_event(
            events.VariantLost(
                variant=variant.name, attempt=attempt.number, reason=reason, again=again
            )
        )
        if again:
            self._submit(variant)
            return True
        why = attempt.why()
        self._fail(
            variant,
            Failure(
                f"its job was lost {variant.losses} times ({reason})",
                why.excerpt,
                why.log,
                ClusterError.exit_code,
            ),
        )
        return False

    def _prove(self, variant: _Variant, attempt: Attempt) -> bool:
        if attempt.proven() is None:
            return False
        self._built[variant.name] = attempt.artifacts
        return True

    def _unproven(self, attempt: Attempt) -> Failure:
        gone = [str(path) for path in attempt.artifacts if not path.exists()]
        reason = f"{gone[0]} is not there" if gone else "nothing proves its results"
        return Failure(reason, (), "", ProofFailed.exit_code)

    def _fail(self, variant: _Variant, failure: Failure) -> None:
        self._failed[variant.name] = failure
        if variant.attempt:
            variant.attempt.report()
        self.on_event(
            events.VariantFailed(
                variant=variant.name,
                node=variant.attempt.node if variant.attempt else "",
                reason=failure.reason,
                excerpt=failure.excerpt,
                log=failure.log,
                exit_code=failure.exit_code,
            )
        )

    def _tell_moved(self, variant: _Variant, state: State) -> None:
        attempt = variant.attempt
        assert attempt is not None
        now = (str(state), attempt.node, attempt.step)
        if now != variant.shown:
            variant.shown = now
            self.on_event(
                events.VariantMoved(variant=variant.name, state=now[0], node=now[1], step=now[2])
            )

    def _tell_built(self, variant: _Variant, *, before: bool) -> None:
        attempt = variant.attempt
        assert attempt is not None
        self.on_event(
            events.VariantBuilt(
                variant=variant.name,
                node=attempt.node,
                seconds=attempt.seconds,
                artifacts=tuple(map(str, attempt.artifacts)),
                checks=attempt.proven() or 0,
                before=before,
            )
        )
