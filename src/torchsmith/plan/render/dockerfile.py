"""A plan as a multi-stage Dockerfile that plain `docker build` or `podman build` understands.

    toolchain -> sources -> environment -> build-torch -> build-vision … -> verified -> wheels
    toolchain -> install -> shared -> runtime, train-NAME

No heredocs and no `# syntax` line: both need a newer podman or docker than many people have.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from torchsmith.plan.conda import CondaSpec
from torchsmith.plan.images import wheels_image
from torchsmith.plan.models import Plan, Step, digest, renamed
from torchsmith.plan.packages import Finishing
from torchsmith.plan.render.instructions import (
    CCACHE_MOUNT,
    PIP_MOUNTS,
    SECRETS_FOLDER,
    apt_install,
    arg,
    comment,
    copy,
    env,
    healthcheck,
    label,
    run,
    secret_exports,
    secret_mounts,
    sentences,
)
from torchsmith.plan.render.stages import (
    absent_cuda,
    base_stage,
    environment_commands,
    foundation_stage,
    runtime_base,
    runtime_stage,
    train_stage,
)
from torchsmith.plan.render.twins import twin
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image
from torchsmith.resolve.models import Resolution

WORK = "/opt/torchsmith"
# Labels: where an image holds wheels, and which image holds those that are installed in this one.
WHEELS_LABEL = "dev.torchsmith.wheels"
# The shared memory that `torchsmith run` gives an image without its recipe.
SHM_LABEL = "dev.torchsmith.shm-size"
WHEELS_IMAGE_LABEL = "dev.torchsmith.wheels-image"
PROJECT = f"{WORK}/project"
_BUILD_KINDS = ("fetch", "patch", "environment", "configure", "compile", "verify")


def _exports(step: Step) -> list[str]:
    lines = []
    if step.path:
        folders = ":".join(f"{WORK}/{folder}" for folder in step.path)
        lines.append(f'export PATH="{folders}:$PATH"')
    for name, value in step.env:
        absolute = f"{WORK}/{value[2:]}" if value.startswith("@/") else value
        lines.append(f"export {name}={shlex.quote(absolute)}")
    if step.kind == "compile":
        lines.append('export MAX_JOBS="${MAX_JOBS:-$(nproc)}"')
    return lines


def _step(
    step: Step, mounts: Iterable[str] = (), resolution: Resolution | None = None
) -> list[str]:
    lines = ["", *comment(sentences(step.title, step.why))]
    lines += [copy(name, name) for name in step.inputs]
    for path in step.reads:
        there = path if path.startswith("/") else f"{PROJECT}/{path}"
        lines.append(copy(path.lstrip("/"), there))
    plain = twin(step, resolution)
    lines += [copy(name, name) for name in plain.files]
    return lines + run([*_exports(step), *plain.commands], mounts)


def _builds(steps: Sequence[Step]) -> list[str]:
    """The stages that compile, one for each project, each based on the one before."""
    lines = ["", "# ---- sources: fetched and patched once, shared by everything below"]
    lines.append("FROM toolchain AS sources")
    for step in steps:
        if step.kind in ("fetch", "patch"):
            lines += _step(step)
    lines += ["", "# ---- the build itself", "FROM sources AS environment"]
    stage = "environment"
    for step in steps:
        if step.kind == "environment":
            lines += _step(step, PIP_MOUNTS)
        elif step.kind in ("configure", "compile"):
            name = "build-" + re.sub(r"[\W_]", "-", step.project.lower())
            if name != stage:
                lines += ["", f"FROM {stage} AS {name}", arg("MAX_JOBS")]
                stage = name
            lines += _step(step, [*PIP_MOUNTS, CCACHE_MOUNT])
    lines += ["", "# ---- verified: nothing below exists unless this passes"]
    lines.append(f"FROM {stage} AS verified")
    for step in steps:
        if step.kind in ("package", "verify"):
            lines += _step(step, PIP_MOUNTS)
    return lines


def _wheels(steps: Sequence[Step], *, inside: bool) -> list[str]:
    finished = any(isinstance(step.arguments, Finishing) for step in steps)
    folder = "dist/out/finished" if finished else "dist/out"
    return [
        "",
        "# ---- wheels: nothing else; `docker build --target wheels --output wheels .` takes",
        "# them out, as `torchsmith image wheels` does of any image made of them",
        "FROM scratch AS wheels",
        f"COPY --from=verified {WORK}/{folder}/*.whl /" if inside else "COPY wheels/*.whl /",
        label({WHEELS_LABEL: "/"}),
    ]


# A program in one file that installs others from conda-forge.
_MICROMAMBA = "docker.io/mambaorg/micromamba:2.0.5"


def _channel(resolution: Resolution, steps: Sequence[Step]) -> list[str]:
    """The same build as conda packages, in a channel."""
    packing = [step for step in steps if isinstance(step.arguments, CondaSpec)]
    if not packing:
        return []
    lines = [
        "",
        "# ---- channel: conda packages; `docker build --target channel --output channel .`",
        "FROM verified AS conda",
        f"COPY --from={_MICROMAMBA} /bin/micromamba /usr/local/bin/micromamba",
        *run(
            [
                "micromamba create --yes --quiet --prefix /opt/rattler-build "
                "--channel conda-forge patch rattler-build"
            ]
        ),
        "ENV PATH=/opt/rattler-build/bin:$PATH",
    ]
    for step in packing:
        lines += _step(step, resolution=resolution)
    folder = f"channel/{resolution.variant}"
    return [*lines, "", "FROM scratch AS channel", f"COPY --from=conda {WORK}/{folder} /"]


def _install(resolution: Resolution, image: Image, *, wheels: bool) -> list[str]:
    """A virtual environment, made in a stage with compilers and copied into one without."""
    lines = ["", "# ---- install: a virtual environment with torch, to be copied as it is"]
    lines.append("FROM toolchain AS install")
    if wheels:
        lines.append("COPY --from=wheels / /wheels/")
    install = environment_commands(resolution, "/wheels/*.whl" if wheels else "")
    return lines + run(install, PIP_MOUNTS)


def _labels(recipe: Recipe, resolution: Resolution, torchsmith: str, wheels: str) -> dict[str, str]:
    """Where an image comes from; no date, so that the same recipe gives the same image."""
    cuda = resolution.cuda
    # Without what happens afterwards: a job or an upload does not change the image.
    recipe_text = recipe.model_dump_json(exclude={"description", "job", "name", "publish"})
    # If pip chooses the wheel, its index decides which CUDA that has.
    chosen = resolution.use == "source" or cuda is not None or resolution.wheel_index
    return {
        "org.opencontainers.image.title": f"PyTorch {resolution.version}",
        "org.opencontainers.image.version": resolution.version,
        "org.opencontainers.image.source": resolution.source.url,
        "org.opencontainers.image.revision": resolution.source.commit,
        "org.opencontainers.image.base.name": runtime_base(resolution),
        "dev.torchsmith.version": torchsmith,
        "dev.torchsmith.recipe": recipe.name,
        "dev.torchsmith.recipe-sha256": digest(recipe_text.encode()),
        "dev.torchsmith.variant": resolution.variant,
        "dev.torchsmith.torch": resolution.version,
        "dev.torchsmith.python": resolution.python,
        **({"dev.torchsmith.cuda": cuda.version if cuda else "none"} if chosen else {}),
        "dev.torchsmith.archs": cuda.arch_list if cuda else "",
        SHM_LABEL: (recipe.image or Image()).shm_size,
        WHEELS_IMAGE_LABEL: wheels,
    }


def _shared(resolution: Resolution, image: Image) -> list[str]:
    """What every image of a recipe has; what changes most often comes last."""
    lines = ["", "# ---- shared: torch and what it needs to run, no compilers"]
    lines += runtime_stage(resolution)
    if resolution.python_from != "system":
        lines.append("COPY --from=toolchain /opt/python /opt/python")
    lines += ["COPY --from=install /opt/venv /opt/venv", "ENV PATH=/opt/venv/bin:$PATH"]
    if image.apt:
        lines += apt_install(image.apt)
    if image.env:
        lines.append(env(image.env))
    if not absent_cuda(resolution):
        # Fail here if torch misses a library; a board's CUDA comes only when the image runs.
        lines += run(["python -c 'import torch'"])
    exports, mounts = secret_exports(image.secrets), secret_mounts(image.secrets)
    if image.pip:
        lines += run([*exports, f"pip install {shlex.join(image.pip)}"], [*PIP_MOUNTS, *mounts])
    for client in image.client:
        lines += ["", "# A vendor's own client, installed the vendor's way."]
        lines += [copy(name, "/tmp/client/") for name in client.files]
        lines += [
            "WORKDIR /tmp/client",
            *run([*exports, *client.run, "rm -rf /tmp/client"], mounts),
        ]
    if image.client:
        lines.append("WORKDIR /")
    if image.run:
        lines += run([*exports, *image.run], mounts)
    if image.healthcheck is not None:
        lines.append(healthcheck(image.healthcheck))
    return [
        *lines,
        "# DataLoader workers pass tensors through /dev/shm: "
        f"run with --shm-size={image.shm_size}.",
        'CMD ["python"]',
    ]


def render_base(image: Image, resolution: Resolution) -> str:
    """The Dockerfile of a base image of the recipe's own."""
    foundation = image.foundation
    assert foundation is not None
    lines = [f"# The base image {foundation.name}.", *_PRAGMA]
    lines += foundation_stage(foundation, resolution)
    if foundation.env:
        lines.append(env(foundation.env))
    if foundation.apt:
        lines += apt_install(foundation.apt)
    if foundation.run:
        lines += run(foundation.run)
    return "\n".join(lines) + "\n"


# hadolint reads these; the reasons are ours.
_PRAGMA = (
    "# Package versions are the distribution's and the recipe's (DL3008, DL3013); a build step",
    "# moves between folders and pipes as the plan says (DL3003, DL4006); pip's cache is a mount",
    "# (DL3042); one RUN a step keeps the layers a later change can reuse (DL3059); a user's name",
    "# is in the image's own passwd (DL3066).",
    "# hadolint global ignore=DL3003,DL3008,DL3013,DL3042,DL3059,DL3066,DL4006",
)


def render_dockerfile(
    recipe: Recipe,
    resolution: Resolution,
    steps: Sequence[Step],
    torchsmith: str,
    *,
    only: bool = True,
    inside: bool = True,
) -> str:
    """Write one variant as a Dockerfile. The same plan gives the same bytes.

    With `only` the recipe has no other variant, and names of images leave it out. Unless it builds
    `inside`, it copies wheels built elsewhere.
    """
    image = recipe.image or Image()
    mine = [step for step in steps if _reaches(step, resolution)]
    compiled = any(step.kind == "compile" for step in mine)
    inside = inside and compiled
    lines = [
        *comment(
            f"{resolution.variant}: PyTorch {resolution.version} for Python {resolution.python}."
        ),
        f"# Written by torchsmith {torchsmith}; builds without it:",
        "#   docker build --target runtime --tag NAME .      (or podman build)",
        f"#   docker run --shm-size={image.shm_size} NAME",
        "#   behind a proxy or a mirror: --secret id=pip.conf,src=FILE for pip's settings; if it",
        f"#   names a `cert`, {SECRETS_FOLDER}/certificates, and --secret id=certificates,src=FILE",
        *(f"#   --secret id={name},env={name} for the build" for name in image.secrets),
        *(comment(f"{absent_cuda(resolution)}.") if inside and absent_cuda(resolution) else ()),
        *_beside(mine if inside else [], image, wheels=compiled and not inside),
        "#",
        *_PRAGMA,
    ]
    what = "compilers and Python's headers" if inside else "a Python that can install"
    lines += ["", f"# ---- toolchain: {what}; none of it reaches the runtime"]
    lines += base_stage(resolution, compilers=inside, name="toolchain")
    lines += [f"WORKDIR {WORK}", env({"WORK": WORK, "PROJECT": PROJECT})]
    if inside:
        # Folders with the name of a variant would give the same build other layers.
        built = [*_builds(mine), *_channel(resolution, steps)]
        lines += [renamed(line, resolution.variant, "out") for line in built]
    if compiled:
        lines += _wheels(mine, inside=inside)
    lines += _install(resolution, image, wheels=compiled)
    lines += _shared(resolution, image)
    wheels = wheels_image(image, resolution.variant, only=only) if compiled else ""
    # Labels come last in each image: they change with every recipe, but change no layer.
    labels = label(_labels(recipe, resolution, torchsmith, wheels))
    lines += ["", "# ---- runtime: the plain image", "FROM shared AS runtime", labels]
    for training in image.train:
        lines += [*train_stage(training, image.secrets), labels]
    return "\n".join(lines) + "\n"


def _beside(steps: Sequence[Step], image: Image, *, wheels: bool) -> list[str]:
    """List what a person has to put beside the Dockerfile: a plan has none of their files."""
    paths = [path.lstrip("/") for step in steps for path in step.reads]
    paths += [path for client in image.client for path in client.files]
    paths += ["wheels/ (with the wheels built elsewhere)"] if wheels else []
    if not paths:
        return []
    return comment(f"Put beside this file first: {', '.join(dict.fromkeys(paths))}.")


def _reaches(step: Step, resolution: Resolution) -> bool:
    built = step.kind in _BUILD_KINDS or isinstance(step.arguments, Finishing)
    return built and step.variant in ("", resolution.variant)


def dockerfile_context(plan: Plan, recipe: Recipe, torchsmith: str) -> dict[str, bytes]:
    """The Dockerfile(s) of a plan with the files they copy."""
    files: dict[str, bytes] = {}
    for resolution in plan.variants:
        top = f"{resolution.variant}/" if len(plan.variants) > 1 else ""
        steps = plan.of(resolution.variant)
        inside = recipe.image is None or recipe.image.build == "inside"
        text = render_dockerfile(recipe, resolution, steps, torchsmith, only=not top, inside=inside)
        files[f"{top}Dockerfile"] = text.encode()
        if recipe.image is not None and recipe.image.foundation is not None:
            files[f"{top}Dockerfile.base"] = render_base(recipe.image, resolution).encode()
        for step in steps:
            if _reaches(step, resolution):
                for name in step.inputs:
                    files[f"{top}{name}"] = plan.files[name]
            elif inside and isinstance(step.arguments, CondaSpec):
                for name, content in twin(step, resolution).files.items():
                    text = renamed(content.decode(), resolution.variant, "out")
                    files[top + renamed(name, resolution.variant, "out")] = text.encode()
    return files
