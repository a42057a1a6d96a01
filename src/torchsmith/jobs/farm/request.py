"""The job that builds one variant, for any engine."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from torchsmith.engine.work import plain_name
from torchsmith.errors import UsageError
from torchsmith.jobs.farm.attempt import ENDED, EVENTS, NODE, SAID, VARIANTS
from torchsmith.jobs.farm.snapshot import RECIPE, Wanted
from torchsmith.jobs.models import Job, resolve
from torchsmith.plan.models import Plan
from torchsmith.recipe import job as written

# A C++ file of PyTorch takes up to this much to compile.
_MB_A_COMPILER = 2500
# As Slurm and Kubernetes count.
_MB = 1 << 20
_CPUS = 4
ROLE = "main"


@dataclass(frozen=True)
class Resources:
    """What each variant's job gets, and where it runs.

    `python` starts torchsmith there. `claim` is a storage of the cluster that holds the store.
    """

    cpus: int
    memory_mb: int
    python: str
    queue: str = ""
    time_limit: str = ""
    image: str = ""
    claim: str = ""


def cpus_and_memory(plan: Plan, cpus: int | None, memory: int | None) -> tuple[int, int]:
    """The cores and megabytes of a job: as asked for, or what its hungriest step takes."""
    cores = cpus or _CPUS
    if memory is not None:
        return cores, max(1, memory // _MB)
    hungriest = max((step.cost.memory_mb for step in plan.steps), default=0)
    return cores, max(hungriest, cores * _MB_A_COMPILER)


def job_name(farm: str, variant: str, number: int) -> str:
    """A name every engine takes, and Kubernetes only once: each attempt has its own."""
    plain = re.sub(r"[^a-z0-9]+", "-", variant.lower()).strip("-0123456789")[:40].strip("-")
    mark = sha256(f"{farm}/{variant}/{number}".encode()).hexdigest()[:8]
    return f"{plain or 'variant'}-{mark}"


def attempt_folder(farm: Path, variant: str, number: int) -> Path:
    """Where an attempt at a variant leaves what it has to tell."""
    return farm / VARIANTS / plain_name(variant) / str(number)


def variant_jobs(store: Path, farm: Path, what: Wanted, resources: Resources) -> list[Job]:
    """The first job of every variant."""
    return [variant_job(store, farm, what, variant, 1, resources) for variant in what.variants]


def variant_job(
    store: Path, farm: Path, what: Wanted, variant: str, number: int, resources: Resources
) -> Job:
    """The job of one attempt at a variant.

    It leaves what happens and how it ended in files of its own, so that whoever comes back later
    knows it, whatever the engine has forgotten.
    """
    words = (
        *(resources.python, "-m", "torchsmith", "build", RECIPE, "--variant", variant),
        *("--build-only", "--json", "--store", str(store), "--jobs", str(resources.cpus)),
        *("--memory", f"{resources.memory_mb}M"),
        *what.options,
    )
    place = shlex.quote(str(attempt_folder(farm, variant, number)))
    lines = (
        f"cd {shlex.quote(str(farm))}",
        f"uname -n >{place}/{NODE}",
        "code=0",
        f"{shlex.join(words)} >{place}/{EVENTS} 2>{place}/{SAID} || code=$?",
        f'echo "$code" >{place}/.{ENDED}',
        f"mv {place}/.{ENDED} {place}/{ENDED}",
        'exit "$code"',
    )
    table: dict[str, object] = {
        "name": job_name(farm.name, variant, number),
        "role": [
            {
                "name": ROLE,
                "cpus": resources.cpus,
                "memory_mb": resources.memory_mb,
                "command": list(lines),
            }
        ],
        # A lost job is submitted again by the farm, which alone knows what was a build's own end.
        "retries": 0,
        "image": resources.image or None,
        "queue": resources.queue or None,
        "time_limit": resources.time_limit or None,
    }
    if resources.claim:
        claim = {"name": "store", "from": f"claim:{resources.claim}", "at": str(store)}
        table["output"] = [claim]
    try:
        return resolve(written.Job.model_validate(table))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"no job can be made of {variant}: {key}: {said}") from None
