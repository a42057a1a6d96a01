"""What the jobs of a farm read, copied to where all hosts see it.

    farm/NAME-DIGEST/recipe.toml …    the recipe, and what it reads of its folder
    farm/NAME-DIGEST/VARIANT/1/       what the first attempt at a variant left

The digest is that of everything copied and of how the builds are called. So the same command finds
the same farm again, and an edit in between is another one: no job sees half of a change.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from torchsmith.engine.disk import room
from torchsmith.engine.lockfile import lock_file
from torchsmith.engine.store import Store
from torchsmith.engine.trees import remove
from torchsmith.engine.work import plain_name
from torchsmith.errors import UsageError
from torchsmith.plan.lock import RECORD
from torchsmith.plan.models import Plan
from torchsmith.recipe.load import LoadedRecipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.sources.tree import tree_hash

RECIPE = "recipe.toml"
LOCK = lock_file(Path(RECIPE)).name


@dataclass(frozen=True)
class Wanted:
    """What is to be built: the recipe as text, its files, and the words that go with it.

    `reads` are the paths of `project` that the steps read.
    """

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
    """In the order they are best built: those that differ only in their Python far from each other.

    All of torch but its bindings is the same for them. Built at the same time each would compile
    it; built later, it is in the compiler cache (`benchmarks/farm.py` says how much that is).
    """
    pythons = list(dict.fromkeys(item.python for item in resolutions))
    return sorted(resolutions, key=lambda item: pythons.index(item.python))


def _digest(what: Wanted) -> str:
    read = {name: _hash(what.project / name) for name in what.reads}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in what.files.items()}
    subject = [what.recipe, read, files, list(what.options)]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    return tree_hash(path) if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


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
