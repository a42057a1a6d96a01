"""`torchsmith build --on`: the variants of a matrix as jobs of a cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torchsmith.cli.output import print_requests
from torchsmith.errors import HostError, UsageError

if TYPE_CHECKING:
    from torchsmith.engine.store import Store
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe


class Cluster(NamedTuple):
    """Where the jobs go, and what each gets; None: as the plan needs it."""

    engine: str
    partition: str
    time_limit: str
    image: str
    claim: str
    detach: bool
    cpus: int | None
    memory: int | None


def check(**given: object) -> None:
    """Refuse what only makes sense on this machine."""

    for name, value in given.items():
        if value:
            raise UsageError(
                f"--{name} does not go with --on", "A farm builds every variant, all of it."
            )


def check_built(plan: Plan, pending: Collection[str]) -> None:
    """Refuse to ship from here what the nodes built in another way."""

    for step in plan.steps:
        if step.id in pending and step.kind in ("compile", "package"):
            raise HostError(
                f"the nodes built the variants otherwise than this machine would: {step.title}",
                "Compilers or Python differ. Ship from a node: run `torchsmith build` there with "
                "the same store.",
            )


def run(
    plan: Plan,
    loaded: LoadedRecipe,
    store: Store,
    cluster: Cluster,
    words: Sequence[str],
    given: dict[str, object],
    *,
    dry_run: bool,
    json: bool,
    quiet: bool,
) -> bool:
    """Build every variant on the cluster; whether all of them are built."""
    import sys
    from pathlib import Path

    from torchsmith.cli.show_farm import display
    from torchsmith.engine.journals import share
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
    text = path.read_text(encoding="utf-8-sig") if path.is_file() else compose(given)
    what = wanted(plan, loaded, text, words)
    resources = Resources(
        *cpus_and_memory(plan, cluster.cpus, cluster.memory),
        # Of the cluster's image; where there is none, ours: the nodes see the same folders.
        python="python3" if cluster.image else sys.executable,
        queue=cluster.partition,
        time_limit=cluster.time_limit,
        image=cluster.image,
        claim=cluster.claim,
    )
    # Whatever cannot be asked for is refused before anything is written.
    jobs = variant_jobs(store.root, farm_folder(store, what), what, resources)
    if dry_run:
        print_requests(render(jobs, cluster.engine).files, cluster.engine, as_json=json)
        return False
    client = client_for(cluster.engine)
    store = share(store)
    with display(json=json, quiet=quiet) as shown:
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
