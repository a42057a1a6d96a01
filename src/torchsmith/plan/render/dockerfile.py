"""A plan as a multi-stage Dockerfile that plain `docker build` or `podman build` understands.

    base -> toolchain -> sources -> torch -> vision … -> wheels -> runtime -> train-NAME

No heredocs and no `# syntax` line: both need an engine newer than many people run.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence

from torchsmith.facts.ranges import release
from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Image, Training
from torchsmith.resolve.models import Resolution

WORK = "/opt/torchsmith"
_APT_MOUNTS = (
    "--mount=type=cache,target=/var/cache/apt,sharing=locked",
    "--mount=type=cache,target=/var/lib/apt/lists,sharing=locked",
)
_PIP_MOUNT = "--mount=type=cache,target=/root/.cache/pip"
_CCACHE_MOUNT = "--mount=type=cache,target=/root/.cache/ccache"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 96, break_long_words=False)]


def _run(commands: Sequence[str], mounts: Iterable[str] = ()) -> list[str]:
    """One RUN, one command a line; the first failure ends it."""
    lines = ["set -eu", *commands]
    head = " ".join(["RUN", *mounts])
    body = "; \\\n    ".join(lines)
    return [f"{head} {body}"]


def _apt(packages: Iterable[str]) -> list[str]:
    names = sorted(dict.fromkeys(packages))
    install = "apt-get install --yes --no-install-recommends \\\n        " + " \\\n        ".join(
        names
    )
    return _run(["export DEBIAN_FRONTEND=noninteractive", "apt-get update", install], _APT_MOUNTS)


def _env_value(value: str) -> str:
    return f"{WORK}/{value[2:]}" if value.startswith("@/") else value


def _exports(step: Step) -> list[str]:
    lines = []
    if step.path:
        folders = ":".join(f"{WORK}/{folder}" for folder in step.path)
        lines.append(f'export PATH="{folders}:$PATH"')
    lines += [f"export {name}={shlex.quote(_env_value(value))}" for name, value in step.env]
    return lines


def _step(step: Step, mounts: Iterable[str] = ()) -> list[str]:
    lines = ["", *_comment(f"{step.title}." + (f" {step.why}." if step.why else ""))]
    lines += [f"COPY {name} {name}" for name in step.inputs]
    return lines + _run([*_exports(step), *step.commands], mounts)


def _build_packages(resolution: Resolution) -> list[str]:
    compiler = resolution.compiler
    packages = ["ca-certificates", "curl", "git", "make", "patch", *resolution.apt]
    if compiler.kind == "gcc":
        packages += [compiler.cc.rsplit("/", 1)[-1], compiler.cxx.rsplit("/", 1)[-1]]
    else:
        packages.append(compiler.cc.rsplit("/", 1)[-1])
    if release(resolution.python) < (3, 7):
        packages.append("cmake")
    if resolution.python_from == "system":
        packages += ["python3-dev", "python3-pip", "python3-venv"]
    if any(item.name == "vision" for item in resolution.companions):
        packages += ["libjpeg-dev", "libpng-dev", "zlib1g-dev"]
    if resolution.source.kind == "debian":
        packages += ["debian-archive-keyring", "dpkg-dev"]
    if resolution.feature("mpi") in ("on", "system"):
        packages.append("libopenmpi-dev")
    packages.append("libopenblas-dev")
    return packages


def _toolchain(resolution: Resolution) -> list[str]:
    lines = ["", "# ---- toolchain: compilers and Python's headers; none of it reaches the runtime"]
    lines += [f"FROM {resolution.base_image} AS toolchain", f"WORKDIR {WORK}", f"ENV WORK={WORK}"]
    lines += _apt(_build_packages(resolution))
    if resolution.python_from == "uv":
        lines += [
            "# The distribution has another Python: uv brings this one, in a folder that can be copied.",
            "ENV UV_PYTHON_INSTALL_DIR=/opt/python PATH=/opt/uv:$PATH",
            *_run(
                [
                    "curl --fail --silent --show-error --location --output /tmp/uv.sh "
                    "https://astral.sh/uv/install.sh",
                    "UV_INSTALL_DIR=/opt/uv UV_NO_MODIFY_PATH=1 sh /tmp/uv.sh",
                    "rm /tmp/uv.sh",
                ]
            ),
        ]
    else:
        lines += _run(
            [
                f"command -v python{resolution.python} || ln -s /usr/bin/python3 "
                f"/usr/local/bin/python{resolution.python}"
            ]
        )
    return lines


def _builds(steps: Sequence[Step]) -> list[str]:
    """Everything that is compiled, one stage a project, each on the one before it."""
    lines: list[str] = []
    lines += ["", "# ---- sources: fetched and patched once, shared by everything below"]
    lines.append("FROM toolchain AS sources")
    for step in steps:
        if step.kind in ("fetch", "patch"):
            lines += _step(step)
    lines += ["", "# ---- the build itself", "FROM sources AS environment"]
    for step in steps:
        if step.kind == "environment":
            lines += _step(step, [_PIP_MOUNT])
    stage = "environment"
    seen: set[str] = set()
    for step in steps:
        if step.kind in ("configure", "compile"):
            if step.project not in seen:
                seen.add(step.project)
                lines += ["", f"FROM {stage} AS build-{_stage_name(step.project)}"]
                lines += ["ARG MAX_JOBS=", "ENV MAX_JOBS=$MAX_JOBS"]
                stage = f"build-{_stage_name(step.project)}"
            lines += _step(step, [_PIP_MOUNT, _CCACHE_MOUNT])
    lines += ["", f"FROM {stage} AS verified"]
    for step in steps:
        if step.kind == "verify":
            lines += _step(step, [_PIP_MOUNT])
    return lines


def _stage_name(project: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in project.lower())


def _wheels(variant: str) -> list[str]:
    return [
        "",
        "# ---- wheels: `docker build --target wheels --output wheels .` takes them out",
        "FROM scratch AS wheels",
        f"COPY --from=verified {WORK}/dist/{variant}/ /",
    ]


def _runtime_base(resolution: Resolution) -> str:
    return resolution.base_image.replace("-devel-", "-runtime-")


def _runtime_packages(resolution: Resolution) -> list[str]:
    packages = ["ca-certificates", "libgomp1", "libopenblas0", "tzdata"]
    if resolution.system in ("ubuntu-16.04", "ubuntu-18.04", "debian-10"):
        packages[packages.index("libopenblas0")] = "libopenblas-base"
    if resolution.python_from == "system":
        packages += ["python3", "python3-venv"]
    if any(item.name == "vision" for item in resolution.companions):
        packages += ["libjpeg-turbo8" if "ubuntu" in resolution.system else "libjpeg62-turbo"]
        packages += ["libpng12-0" if resolution.system == "ubuntu-16.04" else "libpng16-16"]
    return packages


def _labels(resolution: Resolution, torchsmith: str) -> list[str]:
    cuda = resolution.cuda
    labels = {
        "org.opencontainers.image.title": f"PyTorch {resolution.version}",
        "org.opencontainers.image.version": resolution.version,
        "org.opencontainers.image.source": resolution.source.url,
        "org.opencontainers.image.revision": resolution.source.commit,
        "dev.torchsmith.version": torchsmith,
        "dev.torchsmith.variant": resolution.variant,
        "dev.torchsmith.python": resolution.python,
        "dev.torchsmith.cuda": cuda.version if cuda else "none",
        "dev.torchsmith.archs": cuda.arch_list if cuda else "",
    }
    pairs = [f'{name}="{value}"' for name, value in labels.items() if value]
    return ["LABEL " + " \\\n      ".join(pairs)]


def _runtime(resolution: Resolution, image: Image, torchsmith: str) -> list[str]:
    from_source = resolution.use == "source" or resolution.companions or resolution.extensions
    lines = ["", "# ---- runtime: torch and what it needs to run, no compilers"]
    lines.append(f"FROM {_runtime_base(resolution)} AS runtime")
    lines += _labels(resolution, torchsmith)
    lines += _apt([*_runtime_packages(resolution), *image.apt])
    if resolution.python_from == "uv":
        lines.append("COPY --from=toolchain /opt/python /opt/python")
    if from_source:
        lines.append("COPY --from=install /opt/venv /opt/venv")
    else:
        pins = [f"torch=={resolution.torch}", *image.pip]
        lines += _run(
            [
                "python3 -m venv /opt/venv",
                "/opt/venv/bin/pip install " + " ".join(map(shlex.quote, pins)),
            ],
            [_PIP_MOUNT],
        )
    lines.append("ENV PATH=/opt/venv/bin:$PATH")
    lines += [f"ENV {name}={shlex.quote(value)}" for name, value in image.env.items()]
    if from_source and image.pip:
        lines += _run(["pip install " + " ".join(map(shlex.quote, image.pip))], [_PIP_MOUNT])
    for client in image.client:
        lines += ["", "# A vendor's own client, installed the vendor's way."]
        lines += [f"COPY {name} /tmp/client/" for name in client.files]
        lines += ["WORKDIR /tmp/client", *_run([*client.run, "cd /", "rm -rf /tmp/client"])]
    if image.client:
        lines.append("WORKDIR /")
    if image.run:
        lines += _run(image.run)
    shm = image.shm_size
    lines += [
        f"# DataLoader workers pass tensors through /dev/shm: run with --shm-size={shm}.",
        'CMD ["python3"]' if resolution.python_from == "system" else 'CMD ["python"]',
    ]
    return lines


def _install(resolution: Resolution, image: Image) -> list[str]:
    """A virtual environment with the wheels, made where compilers are, copied where none are."""
    make = (
        f"python{resolution.python} -m venv /opt/venv"
        if resolution.python_from == "system"
        else f"uv venv --seed --python {resolution.python} /opt/venv"
    )
    lines = ["", "FROM toolchain AS install"]
    if image.build == "wheels":
        lines.append("COPY wheels/ /wheels/")
    else:
        lines.append("COPY --from=wheels / /wheels/")
    if resolution.use == "wheel":
        install = f"/opt/venv/bin/pip install torch=={resolution.torch} /wheels/*.whl"
    else:
        install = "/opt/venv/bin/pip install /wheels/*.whl"
    return lines + _run([make, install], [_PIP_MOUNT])


def _train(training: Training) -> list[str]:
    uid = "1000" if training.uid == "caller" else str(training.uid)
    gid = "1000" if training.gid == "caller" else str(training.gid)
    groups = "".join(f" --groups {group}" for group in training.groups)
    lines = ["", f"# ---- {training.name}: the image {training.user} works in"]
    lines += [f"FROM runtime AS train-{training.name}", f"ARG UID={uid}", f"ARG GID={gid}"]
    lines.append(f"ENV TZ={training.timezone} LANG={training.locale} LC_ALL={training.locale}")
    if training.apt:
        lines += _apt(training.apt)
    lines += _run(
        [
            'ln -sfn "/usr/share/zoneinfo/$TZ" /etc/localtime',
            'echo "$TZ" > /etc/timezone',
            *(f"getent group {group} || groupadd {group}" for group in training.groups),
            f'getent group "$GID" || groupadd --gid "$GID" {training.user}',
            f'useradd --uid "$UID" --gid "$GID" --create-home --shell {training.shell}{groups} '
            f"{training.user}",
            f"mkdir -p {training.workdir}",
            f'chown "$UID:$GID" {training.workdir} /opt/venv',
        ]
    )
    if training.pip:
        packages = " ".join(map(shlex.quote, training.pip))
        lines += _run([f"pip install {packages}"], [_PIP_MOUNT])
    if training.conda:
        packages = " ".join(map(shlex.quote, training.conda))
        lines += _run(
            [
                "command -v conda || { echo 'train.conda needs a base image with conda' >&2; exit 1; }",
                f"conda install --yes {packages}",
            ]
        )
    if training.run:
        lines += _run(training.run)
    lines += [f"ENV {name}={shlex.quote(value)}" for name, value in training.env.items()]
    lines += [f"USER {training.user}", f"WORKDIR {training.workdir}", f'CMD ["{training.shell}"]']
    return lines


def render_base(image: Image) -> str:
    """The Dockerfile of a base image of the recipe's own."""
    foundation = image.foundation
    assert foundation is not None
    lines = [f"# The base image {foundation.name}.", f"FROM {foundation.start}"]
    lines += [f"ENV {name}={shlex.quote(value)}" for name, value in foundation.env.items()]
    if foundation.apt:
        lines += _apt(foundation.apt)
    if foundation.run:
        lines += _run(foundation.run)
    return "\n".join(lines) + "\n"


def render_dockerfile(
    recipe: Recipe, resolution: Resolution, steps: Sequence[Step], torchsmith: str
) -> str:
    """Write one variant as a Dockerfile. The same plan gives the same bytes."""
    image = recipe.image or Image()
    mine = [step for step in steps if step.kind in _BUILD_KINDS and _reaches(step, resolution)]
    compiled = any(step.kind == "compile" for step in mine)
    lines = [
        *_comment(
            f"{resolution.variant}: PyTorch {resolution.version} for Python {resolution.python}."
        ),
        f"# Written by torchsmith {torchsmith}; builds without it:",
        "#   docker build --target runtime --tag NAME .      (or podman build)",
        f"#   docker run --shm-size={image.shm_size} NAME",
    ]
    if compiled:
        lines += _toolchain(resolution)
        if image.build == "inside":
            lines += _builds(mine)
            lines += _wheels(resolution.variant)
        lines += _install(resolution, image)
    lines += _runtime(resolution, image, torchsmith)
    for training in image.train:
        lines += _train(training)
    return "\n".join(lines) + "\n"


_BUILD_KINDS = ("fetch", "patch", "environment", "configure", "compile", "verify")


def _reaches(step: Step, resolution: Resolution) -> bool:
    return step.project != "magma" and step.variant in ("", resolution.variant)


def dockerfile_context(plan: Plan, recipe: Recipe, torchsmith: str) -> dict[str, bytes]:
    """The Dockerfile(s) of a plan with the files they copy."""
    files: dict[str, bytes] = {}
    for resolution in plan.variants:
        top = f"{resolution.variant}/" if len(plan.variants) > 1 else ""
        steps = plan.of(resolution.variant)
        text = render_dockerfile(recipe, resolution, steps, torchsmith)
        files[f"{top}Dockerfile"] = text.encode()
        if recipe.image is not None and recipe.image.foundation is not None:
            files[f"{top}Dockerfile.base"] = render_base(recipe.image).encode()
        for step in steps:
            if step.kind in _BUILD_KINDS and _reaches(step, resolution):
                for name in step.inputs:
                    files[f"{top}{name}"] = plan.files[name]
    return files
