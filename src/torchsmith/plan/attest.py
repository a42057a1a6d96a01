"""The step that writes down what artifacts are made of, and signs how they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.plan.models import Cost, Step, Task, as_json, digest
from torchsmith.resolve.models import Resolution, SourceChoice

if TYPE_CHECKING:
    from torchsmith.recipe.models import Recipe

# Raise it when the documents say more: older ones are then written again.
FORM = 2
# The runner passes a `History` in this variable: what it knows and the plan cannot.
HISTORY = "TORCHSMITH_HISTORY"
# And in this one, to a step that compiles a wheel: the `Attest` of that wheel alone.
INSIDE = "TORCHSMITH_BILL"

_ARTIFACTS = (".whl", ".conda", ".tar.bz2", ".tar.gz", ".zip")
# Keys about what happens to a result: they change nothing in it.
_AFTERWARDS = {"description", "image", "publish", "job"}
# Reasons are for people; where an installed torch lies is true of one machine only.
_LEFT_OUT = ("choices", "cautions", "installed", "patches", "vendored")


class Origin(Struct, frozen=True, omit_defaults=True):
    """A source something was built from: what was asked for, and the tree that was brought.

    `folder` is one of the recipe's own folder, which no `source` describes. `commit` is the one
    that the tree is held against while it is brought, where git's own folder does not come along.
    """

    project: str
    tree: str
    source: SourceChoice | None = None
    folder: str = ""
    commit: str = ""


class Change(Struct, frozen=True, omit_defaults=True):
    """A patch applied to a source, or with `lender` a file put into it out of another package.

    A patch is left out where the tree has the path `unless`, or has not `only_with`.
    """

    project: str
    name: str
    sha256: str
    why: str = ""
    lender: str = ""
    unless: str = ""
    only_with: str = ""


class Subject(Struct, frozen=True, omit_defaults=True):
    """One artifact, as a path of the work folder or a pattern for it.

    `step` is the one that made it, `env` what that was told; `trees` are those of its origins,
    `beside` the artifacts of the same plan that it was built against, `environments` the
    folders of the Pythons it was built with.
    """

    artifact: str
    project: str
    step: str
    env: tuple[tuple[str, str], ...] = ()
    trees: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()


class Attest(Struct, frozen=True):
    """What a plan knows of its artifacts; the rest is known only when they are there."""

    recipe: Mapping[str, object]
    variant: str
    resolution: Mapping[str, object]
    subjects: tuple[Subject, ...]
    origins: tuple[Origin, ...]
    changes: tuple[Change, ...]
    torch: str = ""
    form: int = FORM
    # Base images by the digests a lock holds them to.
    images: tuple[tuple[str, str], ...] = ()

    def unnamed(self) -> Attest:
        """The same without the names somebody gave the recipe and the variant."""
        recipe = {key: value for key, value in self.recipe.items() if key != "name"}
        resolution = {key: value for key, value in self.resolution.items() if key != "variant"}
        return replace(self, recipe=recipe, variant="", resolution=resolution)


class Made(Struct, frozen=True):
    """When a step was done, in which run, and with what network; times in seconds since 1970."""

    key: str = ""
    run: str = ""
    started: float | None = None
    ended: float | None = None
    network: str = ""


class History(Struct, frozen=True):
    """The run that attests, and what is known of the steps before."""

    run: str = ""
    steps: Mapping[str, Made] = {}


def attestations(artifact: str) -> tuple[str, str]:
    """Where the documents on an artifact lie: beside it."""
    return f"{artifact}.cdx.json", f"{artifact}.intoto.jsonl"


def is_attestation(step: Step) -> bool:
    """Whether a step's outputs are documents on artifacts, and none by themselves."""
    return step.task is not None and step.task.name == "attest"


def attest_step(recipe: Recipe, resolution: Resolution, steps: Mapping[str, Step]) -> Step | None:
    """One step for all artifacts that `steps` make for a variant; None where they make none."""
    variant = resolution.variant
    mine = [step for step in steps.values() if step.variant == variant]
    makers = [step for step in mine if _artifacts(step)]
    verified = [step.id for step in mine if step.kind == "verify"]
    subjects = tuple(subject for step in makers for subject in _subjects(step, steps))
    if not subjects:
        return None
    behind = {step.id: step for maker in makers for step in _behind(maker, steps)}
    fetches = [step for step in behind.values() if step.kind == "fetch"]
    means = [step.id for step in behind.values() if step.kind in ("fetch", "environment")]
    attest = Attest(
        recipe=recipe.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude=_AFTERWARDS
        ),
        variant=variant,
        resolution={
            name: value for name, value in as_json(resolution).items() if name not in _LEFT_OUT
        },
        subjects=subjects,
        origins=tuple(map(_origin, fetches)),
        changes=_changes(resolution, {step.project for step in fetches}),
        torch=resolution.version if resolution.use != "source" else "",
    )
    artifacts = [subject.artifact for subject in subjects]
    return Step(
        id=f"attest-{variant}",
        kind="package",
        title="Write what was built, and sign it",
        why="a bill of materials and signed provenance lie beside each artifact",
        variant=variant,
        needs=tuple(dict.fromkeys([*(step.id for step in makers), *verified, *means])),
        outputs=tuple(name for artifact in artifacts for name in attestations(artifact)),
        task=Task("attest", attest),
        cost=Cost(core_seconds=15, disk_mb=1, basis="reading what was made"),
    )


def about_wheel(step: Step, steps: Mapping[str, Step]) -> Attest | None:
    """What a wheel that a step compiles says of itself; None for any other step.

    Only what the step's key covers, so that one key is one wheel: of the trees, the one that it
    compiles is here to be read.
    """
    attesting = steps.get(f"attest-{step.variant}")
    plan = attesting.task.arguments if attesting is not None and attesting.task else None
    if step.kind != "compile" or not isinstance(plan, Attest):
        return None
    found = [item for item in plan.subjects if item.step == step.id and _is_wheel(item.artifact)]
    if not found:
        return None
    (subject,) = found
    compiled = next(
        other.outputs[0]
        for other in (steps[need] for need in step.needs)
        if other.kind in ("fetch", "patch", "configure") and other.project == step.project
    )
    origins = tuple(
        # What is lent a few files lies with others' sources: it is named, and not read.
        replace(origin, tree=compiled)
        if origin.project == step.project and not (origin.source and origin.source.files)
        else origin
        for origin in plan.origins
        if origin.tree in subject.trees
    )
    changes = tuple(
        replace(change, why="where it applies" if change.unless or change.only_with else "")
        for change in plan.changes
        if change.project == step.project
    )
    return Attest(
        recipe={},
        variant="",
        resolution={"compiler": plan.resolution.get("compiler")},
        subjects=(replace(subject, trees=(compiled,)),),
        origins=origins,
        changes=changes,
        torch=plan.torch,
    )


def _is_wheel(artifact: str) -> bool:
    return artifact.endswith(".whl")


def _artifacts(step: Step) -> list[str]:
    if step.kind not in ("compile", "package") or is_attestation(step):
        return []
    return [output for output in step.outputs if output.endswith(_ARTIFACTS)]


def _behind(step: Step, steps: Mapping[str, Step]) -> Iterator[Step]:
    """The steps a result comes from, up to artifacts of other projects, which speak themselves."""
    seen = {step.id}
    open_ = [step]
    while open_:
        for need in open_.pop().needs:
            if need in seen:
                continue
            seen.add(need)
            other = steps[need]
            yield other
            if not (_artifacts(other) and other.project != step.project):
                open_.append(other)


def _subjects(step: Step, steps: Mapping[str, Step]) -> Iterator[Subject]:
    behind = list(_behind(step, steps))
    trees = sorted({other.outputs[0] for other in behind if other.kind == "fetch"})
    # What packs a build again changes nothing in it: it was compiled as it was.
    compiled = [
        other for other in behind if other.kind == "compile" and other.project == step.project
    ]
    env = step.env if step.kind == "compile" or not compiled else compiled[0].env
    environments = tuple(other.outputs[0] for other in behind if other.kind == "environment")
    beside = tuple(
        artifact
        for other in behind
        if other.project != step.project
        for artifact in _artifacts(other)
    )
    for artifact in _artifacts(step):
        yield Subject(artifact, step.project, step.id, env, tuple(trees), beside, environments)


def _origin(fetch: Step) -> Origin:
    folder = "" if fetch.source is not None or not fetch.reads else fetch.reads[0]
    return Origin(fetch.project, fetch.outputs[0], fetch.source, folder)


def _changes(resolution: Resolution, projects: set[str]) -> tuple[Change, ...]:
    patches = [
        Change(
            patch.project,
            patch.name,
            digest(patch.content),
            patch.why,
            unless=patch.unless,
            only_with=patch.only_with,
        )
        for patch in resolution.patches
        if patch.project in projects
    ]
    lent = [
        Change("torch", item.path, item.sha256, lender=f"{item.lender.package} {item.lender.ref}")
        for item in resolution.vendored
        if "torch" in projects
    ]
    return (*patches, *lent)
