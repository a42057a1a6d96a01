"""Which engines there are, and the rendering of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torchsmith.errors import UsageError
from torchsmith.jobs import compose, kubeflow, kubernetes, local, openpai, slurm
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job, Rendering

ENGINES: Mapping[str, Callable[[tuple[Job, ...]], Rendering]] = {
    "local": local.render,
    "podman": partial(local.render, container="podman"),
    "docker": partial(local.render, container="docker"),
    "slurm": slurm.render,
    "kubernetes": kubernetes.render,
    "kubeflow": kubeflow.render,
    "kubeflow-trainer": kubeflow.render_trainer,
    "openpai": openpai.render,
    "openpai-v1": openpai.render_v1,
    "compose": compose.render,
}


def render(jobs: Sequence[Job], engine: str) -> Rendering:
    """The native request of each job for one engine."""
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is not an engine", f"Known are: {', '.join(ENGINES)}.")
    made = ENGINES[engine](tuple(jobs))
    if engine == "local":
        return made
    unfit = (f"{job.name}: {text}" for job in jobs for text in unfit_images(job))
    return replace(made, notes=(*made.notes, *unfit))
