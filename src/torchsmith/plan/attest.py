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
# In this variable the runner passes a `History`: what it knows and the plan cannot know.
HISTORY = "TORCHSMITH_HISTORY"
# In this one, to a step that compiles a wheel, it passes the `Attest` of that wheel alone.
INSIDE = "TORCHSMITH_BILL"

_ARTIFACTS = (".whl", ".conda", ".tar.bz2", ".tar.gz", ".zip")
# Keys of a recipe that say what happens to a result afterwards.
_AFTERWARDS = {"description", "image", "publish", "job"}
# Reasons are for people; the place of an installed torch is true of one machine only.
_LEFT_OUT = ("choices", "cautions", "installed", "patches", "vendored")


class Origin(Struct, frozen=True, omit_defaults=True):
    """A source of a build: what the plan asks for, and the tree that was fetched.

    `folder` is a path in the recipe's own folder, which no `source` describes. `commit` is what the
    tree was checked against when it was fetched, if git's own folder does not come along.
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

    `step` made it, under the variables `env`. `trees` are those of its origins, `beside` the
    artifacts of the same plan that it was built against, `environments` the folders of the Pythons
    it was built with.
    """

    artifact: str
    project: str
    step: str
    env: tuple[tuple[str, str], ...] = ()
    trees: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()


class Attest(Struct, frozen=True):
    """What a plan knows of its artifacts; the rest is known only when they exist."""

    recipe: Mapping[str, object]
    variant: str
    resolution: Mapping[str, object]
    subjects: tuple[Subject, ...]
    origins: tuple[Origin, ...]
    changes: tuple[Change, ...]
    torch: str = ""
    form: int = FORM
    # Base images, with the digests that a lock pins them to.
    images: tuple[tuple[str, str], ...] = ()

    def unnamed(self) -> Attest:
        """The same without the names somebody gave the recipe and the variant."""
        recipe = {key: value for key, value in self.recipe.items() if key != "name"}
        resolution = {key: value for key, value in self.resolution.items() if key != "variant"}
        return replace(self, recipe=recipe, variant="", resolution=resolution)


class Made(Struct, frozen=True):
    """When a step was done, in which run, and what it could reach; times in seconds since 1970."""

    key: str = ""
    run: str = ""
    started: float | None = None
    ended: float | None = None
    network: str = ""
    files: str = ""


class History(Struct, frozen=True):
    """The run that attests, and what the runner knows of the steps before."""

    run: str = ""
    steps: Mapping[str, Made] = {}


def attestations(artifact: str) -> tuple[str, str]:
    """Where the documents on an artifact lie: beside it."""
    return f"{artifact}.cdx.json", f"{artifact}.intoto.jsonl"


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
    """The bill of materials inside the wheel that a step compiles; None for any other step.

    It holds only what the step's key covers, so that one key means one wheel. Of the trees only the
    compiled one can be read then.
    """
    attesting = steps.get(f"attest-{step.variant}")
    plan = attesting.arguments if attesting is not None else None
    if step.kind != "compile" or not isinstance(plan, Attest):
        return None
    mine = (item for item in plan.subjects if item.step == step.id)
    subject = next((item for item in mine if item.artifact.endswith(".whl")), None)
    if subject is None:
        return None
    compiled = next(
        other.outputs[0]
        for other in (steps[need] for need in step.needs)
        if other.kind in ("fetch", "patch", "configure") and other.project == step.project
    )
    origins = tuple(
        # A package that lends a few files lies among other sources: it is named, not read.
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


def _artifacts(step: Step) -> list[str]:
    if step.kind not in ("compile", "package") or isinstance(step.arguments, Attest):
        return []
    return [output for output in step.outputs if output.endswith(_ARTIFACTS)]


def _behind(step: Step, steps: Mapping[str, Step]) -> Iterator[Step]:
    """The steps a result comes from, up to other projects' artifacts: they have own documents."""
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
    # Packing a build again does not change how it was compiled.
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
