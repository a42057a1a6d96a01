"""Which engines there are, and the rendering of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torchsmith.errors import UsageError
from torchsmith.jobs import compose, kubeflow, kubernetes, local, openpai, slurm
from torchsmith.jobs.models import Job, Rendering

ENGINES: Mapping[str, Callable[[tuple[Job, ...]], Rendering]] = {
    "local": local.render,
    "podman": partial(local.render, container="podman"),
    "docker": partial(local.render, container="docker"),
    "slurm": slurm.render,
    "kubernetes": kubernetes.render,
    "kubeflow": kubeflow.render,
    "openpai": openpai.render,
    "openpai-v1": openpai.render_v1,
    "compose": compose.render,
}


def render(jobs: Sequence[Job], engine: str) -> Rendering:
    """The native request of each job for one engine."""
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is not an engine", f"Known are: {', '.join(ENGINES)}.")
    return ENGINES[engine](tuple(jobs))
