"""What a plan is made of."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

from msgspec import Struct, json
from msgspec.structs import replace

from torchsmith.plan.expects import Expects
from torchsmith.resolve.models import Resolution, SourceChoice

Kind = Literal[
    "base",
    "fetch",
    "patch",
    "environment",
    "configure",
    "compile",
    "package",
    "verify",
    "image",
    "publish",
    "job",
]


# These steps run after all fetching: they see what the plan names, and have no network unless
# their `network` says why.
_AFTER_FETCHING = frozenset({"patch", "configure", "compile", "package", "verify"})


class Cost(Struct, frozen=True):
    """What a step is expected to take: an estimate, its origin beside it.

    `apart_core_seconds` is its time if every file is compiled by itself, `uncached_core_seconds`
    if no cache keeps what another variant has compiled; 0 where that is not more.
    """

    core_seconds: float = 0.0
    apart_core_seconds: float = 0.0
    uncached_core_seconds: float = 0.0
    memory_mb: int = 0
    disk_mb: int = 0
    basis: str = ""


class Fetch(Struct, frozen=True, omit_defaults=True):
    """A source to fetch, the folder for it, and the version in its name.

    `tree` is the hash that a lock demands; `bundle` is a file with the source's archive.
    """

    source: SourceChoice
    into: str
    version: str = ""
    tree: str = ""
    bundle: str = ""


class Work(NamedTuple):
    """The module that does a kind of task, and the form of its results.

    Raise `form` when the module makes something else of the same arguments: older results are then
    made again.
    """

    module: str
    form: int = 1


TASKS: Mapping[str, Work] = {
    "attest": Work("torchsmith.package.attest"),
    "conda": Work("torchsmith.package.conda.pack"),
    "fetch": Work("torchsmith.sources.fetch"),
    "finish": Work("torchsmith.package.finish.finish"),
    "image": Work("torchsmith.images.build"),
    "libtorch": Work("torchsmith.package.libtorch"),
    "push": Work("torchsmith.images.transfer"),
    "pylock": Work("torchsmith.package.pylock"),
    "ship": Work("torchsmith.ship.publish"),
    "verify": Work("torchsmith.verify.verify"),
}


class Task(Struct, frozen=True):
    """A piece of work that torchsmith does itself: one of TASKS, and its arguments.

    The module runs in the work folder and reads the arguments, as JSON, from its standard input.
    """

    name: str
    arguments: Struct

    @property
    def module(self) -> str:
        """The module that does it."""
        return TASKS[self.name].module

    @property
    def text(self) -> str:
        """The arguments as JSON, the same text for the same arguments."""
        return json.encode(self.arguments, order="deterministic").decode()


class Place(Struct, frozen=True):
    """Where a step runs: on this machine, or in a container of an image the plan makes.

    `image` is the name of that image, `base` the step that makes it.
    """

    system: str = ""
    image: str = ""
    base: str = ""

    @property
    def inside(self) -> bool:
        """Whether it is a container."""
        return bool(self.image)


HERE = Place()


class Step(Struct, frozen=True):
    """One thing to do: one action, in one place.

    The action is `commands` or a `task`, never both. Commands are lines of POSIX shell, run in
    order in `folder` of the plan's work folder, whose absolute path is `$WORK`; `path` holds
    folders of it to put before PATH. `inputs` are files of the plan (patches, recipes) that the
    step reads; `reads` are paths of the recipe's own folder, whose absolute path is `$PROJECT`:
    the plan does not hold their content, so it is added to the key before the step runs. `needs`
    are the steps whose outputs it reads. In `env`, a value that starts with `@/` is a path in the
    work folder; an output that starts with `$PROJECT/` lies in the recipe's. `secrets` names
    variables that must be set when it runs and whose values appear nowhere. `pip` names what its
    commands ask pip for, to be downloaded before the network is gone. `network` is the reason why a
    step that would run offline may use the network.
    """

    id: str
    kind: Kind
    title: str
    why: str = ""
    project: str = ""
    variant: str = ""
    place: Place = HERE
    needs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    folder: str = "."
    commands: tuple[str, ...] = ()
    task: Task | None = None
    outputs: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    network: str = ""
    cost: Cost = Cost()
    details: tuple[tuple[str, str], ...] = ()
    key: str = ""

    def __post_init__(self) -> None:
        if self.commands and self.task is not None:
            raise ValueError(f"{self.id} has two actions: commands and a task")

    @property
    def offline(self) -> bool:
        """Whether it runs without a network."""
        return self.hermetic and not self.network

    @property
    def hermetic(self) -> bool:
        """Whether it sees only what the plan names."""
        return self.kind in _AFTER_FETCHING

    @property
    def arguments(self) -> Struct | None:
        """What its task is given; their type tells what the step does."""
        return self.task.arguments if self.task else None

    @property
    def source(self) -> SourceChoice | None:
        """The source that it fetches, if it does."""
        return self.arguments.source if isinstance(self.arguments, Fetch) else None

    @property
    def expects(self) -> Expects | None:
        """What it proves, if it does."""
        return self.arguments if isinstance(self.arguments, Expects) else None


class Plan(Struct, frozen=True, dict=True):
    """Everything that will be done, before any of it is done."""

    name: str
    variants: tuple[Resolution, ...]
    steps: tuple[Step, ...]
    files: Mapping[str, bytes] = {}

    def step(self, identity: str) -> Step:
        """Return the step of this id."""
        return next(step for step in self.steps if step.id == identity)

    def of(self, variant: str) -> tuple[Step, ...]:
        """The steps of one variant, shared ones included, in order."""
        return tuple(step for step in self.steps if step.variant in ("", variant))

    @property
    def core_seconds(self) -> float:
        """Expected work."""
        return sum(step.cost.core_seconds for step in self.steps)

    @cached_property
    def inside(self) -> frozenset[str]:
        """The variants that are built in containers."""
        return frozenset(step.variant for step in self.steps if step.place.inside) - {""}


def digest(content: bytes) -> str:
    """The hash that names content everywhere."""
    return hashlib.sha256(content).hexdigest()


def step_key(
    step: Step,
    keys: Mapping[str, str],
    files: Mapping[str, bytes],
    read: Mapping[str, str] | None = None,
) -> str:
    """The hash of everything that can change a step's output.

    `read` has the hash of each path of `reads`, once it is known. Titles, reasons, details,
    estimates and the variant's name do not change what is built and are left out: two variants that
    do the same share the result.
    """
    subject: dict[str, object] = {
        "kind": step.kind,
        "needs": sorted(keys[need] for need in step.needs),
        "inputs": {name: digest(files[name]) for name in step.inputs},
        "reads": [[name, (read or {}).get(name, "")] for name in step.reads],
        "env": [[name, _neutral(step, value)] for name, value in step.env],
        "path": _without_variant(step, step.path),
        "folder": _neutral(step, step.folder),
        "commands": _without_variant(step, step.commands),
        "outputs": _without_variant(step, step.outputs),
    }
    if step.place.inside:
        subject["place"] = step.place.image
    if step.network:
        # It may have downloaded anything.
        subject["network"] = True
    if step.task is not None:
        subject["task"] = [step.task.name, TASKS[step.task.name].form, _arguments(step)]
    return digest(json.encode(subject, order="sorted"))


def _arguments(step: Step) -> str:
    """A task's arguments without those that do not change its result."""
    assert step.task is not None
    unnamed = getattr(step.task.arguments, "unnamed", None)
    task = step.task if unnamed is None else Task(step.task.name, unnamed())
    text = _neutral(step, task.text)
    # Steps are named by their variant, too.
    return text.replace(f'-{step.variant}"', '-@"') if step.variant else text


def _without_variant(step: Step, texts: Iterable[str]) -> list[str]:
    return [_neutral(step, text) for text in texts]


def _neutral(step: Step, text: str) -> str:
    """The same text without the variant's name, which only appears in paths."""
    return renamed(text, step.variant, "@")


def renamed(text: str, variant: str, name: str) -> str:
    """A text in which the folders of a variant have another name."""
    if not variant or variant not in text:
        return text
    return re.sub(rf"\b({_HOMES})/{re.escape(variant)}(?![\w.])", rf"\1/{name}", text)


# Folders in the work folder that hold one folder for each variant.
_HOMES = "build|channel|conda|dist|image|jobs|verify"


def as_json(value: Any) -> Any:
    """Plain data for `json.dumps`: structs as tables, pairs as tables, bytes by hash."""
    if isinstance(value, Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return {"sha256": digest(value), "bytes": len(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(name): as_json(item) for name, item in value}
        return [as_json(item) for item in value]
    return value


_SHIPS = frozenset({"image", "publish", "job"})


def build_only(plan: Plan) -> Plan:
    """The plan without images, publishing and jobs."""
    steps = tuple(step for step in plan.steps if step.kind not in _SHIPS)
    return replace(plan, steps=steps)


def shipping(plan: Plan) -> tuple[str, ...]:
    """The ids of the steps that `build_only` leaves out."""
    return tuple(step.id for step in plan.steps if step.kind in _SHIPS)
