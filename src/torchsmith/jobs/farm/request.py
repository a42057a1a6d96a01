"""What the jobs of a farm read, copied to where all hosts see it; and the job of each variant.

    farm/NAME-DIGEST/recipe.toml …    the recipe, and what it reads of its folder
    farm/NAME-DIGEST/VARIANT/1/       what the first attempt at a variant left

The digest is that of everything copied and of how the builds are called. So the same command finds
the same farm again, and an edit in between is another one: no job sees half of a change.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from torchsmith.engine.disk import room
from torchsmith.engine.lockfile import lock_file
from torchsmith.engine.store import Store
from torchsmith.engine.trees import remove
from torchsmith.engine.work import plain_name
from torchsmith.errors import UsageError
from torchsmith.jobs.farm.attempt import ENDED, EVENTS, MESSAGES, NODE, RECIPE, VARIANTS
from torchsmith.jobs.models import Job, resolve
from torchsmith.plan.lock import RECORD
from torchsmith.plan.models import Plan
from torchsmith.recipe import job as written
from torchsmith.recipe.load import LoadedRecipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.sources.tree import path_hash

LOCK = lock_file(Path(RECIPE)).name


@dataclass(frozen=True)
class Wanted:
    """What is to be built: the recipe's text, its files, what it `reads` of `project`, options."""

    plan: str
    recipe: str
    project: Path
    variants: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def wanted(plan: Plan, loaded: LoadedRecipe, recipe: str, options: Sequence[str]) -> Wanted:
    """What the jobs of a plan need; `recipe` is the text of the recipe they are to read."""
    reads = sorted({name for step in plan.steps for name in step.reads})
    for name in reads:
        if ".." in PurePosixPath(name).parts:
            raise UsageError(
                f"the recipe reads {name}, which is not in its folder",
                "Move it there: what a farm builds from is copied to the store first.",
            )
    for variant in expand(loaded.recipe):
        environment = variant.recipe.torch.environment
        if environment and not Path(environment).is_absolute():
            raise UsageError(
                f"the recipe uses the torch of {environment}, beside it",
                "Name the environment by its absolute path: jobs read a copy of the recipe.",
            )
    return Wanted(
        plan=plan.name,
        recipe=recipe,
        project=loaded.project,
        variants=tuple(item.variant for item in _apart(plan.variants)),
        files={**loaded.files, **({LOCK: plan.files[RECORD]} if RECORD in plan.files else {})},
        reads=tuple(reads),
        options=tuple(options),
    )


def _apart(resolutions: Sequence[Resolution]) -> list[Resolution]:
    """The variants, those that differ only in their Python far from each other.

    They share all of torch but its bindings: built later, it is in the compiler cache
    (`benchmarks/farm.py`).
    """
    pythons = list(dict.fromkeys(item.python for item in resolutions))
    return sorted(resolutions, key=lambda item: pythons.index(item.python))


def _digest(what: Wanted) -> str:
    read = {name: path_hash(what.project / name) for name in what.reads}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in what.files.items()}
    subject = [what.recipe, read, files, list(what.options)]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()


def farm_folder(store: Store, what: Wanted) -> Path:
    """Where the farm of these wishes is, whether it was begun or not."""
    return store.root / "farm" / f"{plain_name(what.plan)}-{_digest(what)[:12]}"


def snapshot(store: Store, what: Wanted) -> Path:
    """Copy what the jobs read, once; it appears whole."""
    folder = farm_folder(store, what)
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with room(store.root):
        partial.mkdir(parents=True)
        try:
            (partial / RECIPE).write_text(what.recipe, encoding="utf-8")
            for name, content in what.files.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                (partial / name).write_bytes(content)
            for name in what.reads:
                # What is named absolutely (an installed torch) is where it is on every host.
                if not PurePosixPath(name).is_absolute():
                    _copy(what.project / name, partial / name)
            partial.rename(folder)
        except BaseException as error:
            remove(partial)
            # Another one of the same command was quicker, with the same files.
            if not (isinstance(error, OSError) and folder.exists()):
                raise
    return folder


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


# A C++ file of PyTorch takes up to this much to compile.
_MB_A_COMPILER = 2500
# As Slurm and Kubernetes count.
_MB = 1 << 20
_CPUS = 4
ROLE = "main"


@dataclass(frozen=True)
class Resources:
    """What each variant's job gets; `python` starts torchsmith, `claim` holds the store."""

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
    """A name every target takes, and Kubernetes only once: each attempt has its own."""
    plain = re.sub(r"[^a-z0-9]+", "-", variant.lower()).strip("-0123456789")[:40].strip("-")
    mark = hashlib.sha256(f"{farm}/{variant}/{number}".encode()).hexdigest()[:8]
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
    """The job of one attempt.

    It leaves its events and its end in files, for whoever comes later.
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
        f"{shlex.join(words)} >{place}/{EVENTS} 2>{place}/{MESSAGES} || code=$?",
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
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"no job can be made of {variant}: {key}: {message}") from None
