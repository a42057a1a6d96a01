"""Images as Apptainer definition files, for clusters that allow no podman or docker.

https://apptainer.org/docs/user/latest/definition_files.html
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchsmith.plan.render.instructions import apt_libraries, apt_words, comment
from torchsmith.plan.render.stages import (
    archive_commands,
    cpython_commands,
    cuda_commands,
    environment_commands,
    pins,
    python_packages,
    repository_setup,
    runtime_base,
    runtime_packages,
    uv_commands,
)
from torchsmith.plan.shell import one_command
from torchsmith.recipe.outcome import Image, Training
from torchsmith.resolve.models import Resolution

_WHEELS = "/opt/wheels"
# Not in /tmp: while an image is made, that is the building machine's own.
_CLIENT = "/opt/client"


def from_image(
    resolution: Resolution, name: str, training: Training | None, torchsmith: str
) -> str:
    """A definition that takes an unchanged image from its registry."""
    lines = _header(resolution, torchsmith, f"It takes the image {name} from its registry.")
    lines += ["Bootstrap: docker", f"From: {name}"]
    return _text([*lines, *_common(resolution, training)])


def from_wheels(
    resolution: Resolution, image: Image, training: Training | None, torchsmith: str
) -> str:
    """A definition that installs wheels from a folder beside it, for want of an image to take.

    A published torch comes from its index instead.
    """
    ours = resolution.use == "source" or bool(resolution.companions or resolution.extensions)
    beside = [path for client in image.client for path in client.files]
    beside += ["wheels/ (with the wheels built elsewhere)"] if ours else []
    note = f"Put beside this file first: {', '.join(beside)}." if beside else ""
    lines = _header(resolution, torchsmith, note)
    lines += ["Bootstrap: docker", f"From: {runtime_base(resolution)}"]
    files = [f"wheels {_WHEELS}"] if ours else []
    files += [f"{path} {_CLIENT}/" for client in image.client for path in client.files]
    if files:
        lines += ["", "%files", *_indented(files)]
    lines += ["", "%post", *_indented(_post(resolution, image, training, wheels=ours))]
    return _text([*lines, *_common(resolution, training, image, own_path=True)])


def _header(resolution: Resolution, torchsmith: str, beside: str) -> list[str]:
    return [
        *comment(
            f"{resolution.variant}: PyTorch {resolution.version} for Python {resolution.python}."
        ),
        f"# Written by torchsmith {torchsmith}; builds without it:",
        "#   apptainer build torch.sif FILE.def",
        f"#   apptainer exec {'--nv ' if resolution.cuda else ''}torch.sif python train.py",
        *(comment(beside) if beside else []),
        "# Inside you are yourself, in your own home. /dev/shm is the node's: no size is given.",
        "",
    ]


def _post(
    resolution: Resolution, image: Image, training: Training | None, *, wheels: bool
) -> list[str]:
    apt = [*runtime_packages(resolution), *image.apt, *(training.apt if training else ())]
    first, repositories = repository_setup(resolution)
    if first:
        repositories.insert(0, f"apt-get install --yes --no-install-recommends {' '.join(first)}")
    if repositories:
        repositories.append("apt-get update")
    links = cuda_commands(resolution) if first else []
    brought: list[str] = []
    if resolution.python_from == "uv":
        apt += ["curl", "unzip"]
        where = 'export UV_PYTHON_INSTALL_DIR=/opt/python PATH="/opt/uv:$PATH"'
        brought = [*uv_commands(resolution.platform), where]
    elif resolution.cpython is not None:
        apt += python_packages(resolution)
        brought = [
            *cpython_commands(resolution.python, resolution.cpython),
            'export PATH="/opt/python/bin:$PATH"',
        ]
    elif f"{resolution.python_package}-venv" not in apt:
        apt += [resolution.python_package, f"{resolution.python_package}-venv"]
    client = [one_command(line) for item in image.client for line in item.run]
    pip = [*image.pip, *(training.pip if training else ())]
    before, words = apt_words(apt, pins(resolution))
    install = "apt-get install --yes --no-install-recommends"
    return [
        "set -eu",
        "export DEBIAN_FRONTEND=noninteractive",
        *archive_commands(resolution),
        "apt-get update",
        *repositories,
        *before,
        f"{install} {' '.join(words)}",
        *apt_libraries(resolution.apt, install),
        *links,
        *brought,
        *environment_commands(resolution, f"{_WHEELS}/*.whl" if wheels else ""),
        *([f"/opt/venv/bin/python -m pip install {shlex.join(pip)}"] if pip else []),
        'export PATH="/opt/venv/bin:$PATH"',
        *([f"cd {_CLIENT}", *client, "cd /"] if client else []),
        *map(one_command, (*image.run, *(training.run if training else ()))),
        # There is only one layer: what is not removed here stays in the image.
        f"rm -rf {_WHEELS} {_CLIENT} /var/lib/apt/lists /root/.cache",
    ]


def _common(
    resolution: Resolution,
    training: Training | None,
    image: Image | None = None,
    *,
    own_path: bool = False,
) -> list[str]:
    variables: dict[str, str] = dict(image.env) if image else {}
    if training is not None:
        zone, locale = training.timezone, training.locale
        variables |= {"TZ": zone, "LANG": locale, "LC_ALL": locale, **training.env}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if own_path:
        exports.insert(0, 'export PATH="/opt/venv/bin:$PATH"')
    lines: list[str] = []
    if exports:
        lines += ["", "%environment", *_indented(exports)]
    lines += ["", "%labels"]
    lines += [f"    dev.torchsmith.torch {resolution.version}"]
    lines += [f"    dev.torchsmith.variant {resolution.variant}"]
    lines += ["", "%test", "    python -c 'import torch; print(torch.__version__)'"]
    return [*lines, "", "%runscript", '    exec python "$@"']


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
