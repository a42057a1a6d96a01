"""`torchsmith build --on`: the variants of a matrix as jobs of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchsmith.cli import show_build
from torchsmith.cli.diagnose import known_of_log
from torchsmith.cli.output import counted, duration, print_requests
from torchsmith.errors import HostError, UsageError

if TYPE_CHECKING:
    from torchsmith.engine.events import Event
    from torchsmith.engine.store import Store
    from torchsmith.jobs.farm import events
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe


class Cluster(NamedTuple):
    """Where the jobs go, and what each gets; None: what the plan needs."""

    engine: str
    partition: str
    time_limit: str
    image: str
    claim: str
    detach: bool
    cpus: int | None
    memory: int | None


def check_built(plan: Plan, pending: Collection[str]) -> None:
    """Refuse to ship from here if the nodes built the variants differently."""

    for step in plan.steps:
        if step.id in pending and step.kind in ("compile", "package"):
            raise HostError(
                f"the nodes built the variants differently from this machine: {step.title}",
                "Compilers or Python differ. Ship from a node: run `torchsmith build` there with "
                "the same store.",
            )


def run(
    plan: Plan,
    loaded: LoadedRecipe,
    store: Store,
    cluster: Cluster,
    words: Sequence[str],
    overrides: dict[str, object],
    *,
    dry_run: bool,
    json: bool,
    quiet: bool,
) -> bool:
    """Build every variant on the cluster; whether all of them are built."""
    import sys

    from torchsmith.engine.journal import share
    from torchsmith.jobs.clients import client_for, render
    from torchsmith.jobs.farm.farm import Farm
    from torchsmith.jobs.farm.request import (
        Resources,
        cpus_and_memory,
        farm_folder,
        snapshot,
        variant_jobs,
        wanted,
    )
    from torchsmith.jobs.submissions import Submissions
    from torchsmith.recipe.compose import compose

    if cluster.engine == "kubernetes" and not (cluster.image and cluster.claim):
        raise UsageError(
            "--on kubernetes needs --image and --claim",
            "The image has torchsmith and compilers in it; the claim is a volume that every pod "
            f"mounts at {store.root}.",
        )
    path = Path(loaded.path)
    text = path.read_text(encoding="utf-8-sig") if path.is_file() else compose(overrides)
    what = wanted(plan, loaded, text, words)
    resources = Resources(
        *cpus_and_memory(plan, cluster.cpus, cluster.memory),
        # The Python of the image; without an image ours, since the nodes see the same folders.
        python="python3" if cluster.image else sys.executable,
        queue=cluster.partition,
        time_limit=cluster.time_limit,
        image=cluster.image,
        claim=cluster.claim,
    )
    # What the cluster cannot give is refused before anything is written.
    jobs = variant_jobs(store.root, farm_folder(store, what), what, resources)
    if dry_run:
        print_requests(render(jobs, cluster.engine).files, cluster.engine, as_json=json)
        return False
    client = client_for(cluster.engine)
    store = share(store)
    with show_build.display(json=json, quiet=quiet, lines=_Lines, live=_Live) as shown:
        farm = Farm(
            store=store,
            folder=snapshot(store, what),
            what=what,
            resources=resources,
            client=client,
            submissions=Submissions(store.root),
            on_event=shown.event,
        )
        result = farm.run(detach=cluster.detach)
    if not json:
        for paths in result.artifacts.values():
            for artifact in paths:
                print(artifact)
    return not result.left


class _Lines(show_build.Lines):
    """A line for each thing that happens to a variant."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._seen: dict[str, tuple[str, str]] = {}

    def event(self, event: Event) -> None:
        from torchsmith.engine.events import Waiting
        from torchsmith.jobs.farm import events

        match event:
            case events.VariantFailed():
                self.failed(event)
            case events.VariantLost():
                again = "; it is submitted again and goes on" if event.again else ""
                self.line(f"!  {event.variant}: its job was lost ({event.reason}){again}")
            case Waiting():
                self.line(f"!  {event.message}")
            case _ if self.quiet:
                return
            case events.FarmStarted():
                count = counted(len(event.variants), "variant")
                self.line(
                    f"{count} on {event.engine}, {event.done} of them built before; "
                    "Ctrl-C leaves them to themselves, the same command finds them"
                )
            case events.VariantSubmitted():
                tried = f", attempt {event.attempt}" if event.attempt > 1 else ""
                self.line(f"   {event.variant}: job {event.job}{tried}")
            case events.VariantMoved():
                self.moved(event)
            case events.VariantBuilt() if event.before:
                self.line(f"=  {event.variant} (built before)")
            case events.VariantBuilt():
                where = f" on {event.node}" if event.node else ""
                self.line(
                    f"ok {event.variant}{where} ({duration(event.seconds)}, "
                    f"{counted(event.checks, 'check')} passed)"
                )
            case events.FarmFinished() if event.status == "left":
                count = counted(len(event.left), "job")
                self.line(f"{count} still running; the same command finds them")
            case events.FarmFinished() if event.status == "done":
                self.line(f"done in {duration(event.seconds)}")

    def moved(self, event: events.VariantMoved) -> None:
        # A log has no use for the count of files.
        now = (event.state, event.step.partition(" [")[0])
        if self._seen.get(event.variant) != now:
            self._seen[event.variant] = now
            self.line(f"   {event.variant}: {_where(event)}")

    def failed(self, event: events.VariantFailed) -> None:
        on = f" on {event.node}" if event.node else ""
        self.line(f"x  {event.variant}{on}: {event.reason}")
        for text in event.excerpt:
            self.line(f"   {text}")
        if event.log:
            self.line(f"   the whole log: {event.log}")
        for text in known_of_log(Path(event.log), event.excerpt):
            self.line(f"   {text}")


def _where(event: events.VariantMoved) -> str:
    """What a variant does, and where."""
    parts = (event.state, f"on {event.node}" if event.node else "", event.step)
    return " ".join(part for part in parts[:2] if part) + (f": {parts[2]}" if parts[2] else "")


class _Live(show_build.OnTerminal, _Lines):
    """The same, with a live line for each variant that is under way."""

    def moved(self, event: events.VariantMoved) -> None:
        # What only waits would fill the terminal.
        if event.state == "running":
            self.begin(event.variant, event.variant)
            self._progress.update(self._tasks[event.variant], now=_where(event))

    def event(self, event: Event) -> None:
        from torchsmith.jobs.farm import events

        match event:
            case events.VariantBuilt() | events.VariantFailed() | events.VariantLost():
                self.end(event.variant)
        super().event(event)
