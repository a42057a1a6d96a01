"""Which engines there are, and the rendering of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torchsmith.errors import UsageError
from torchsmith.jobs import compose, kubernetes, local, openpai, slurm
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job, Rendering

ENGINES: Mapping[str, Callable[[Job], Rendering]] = {
    "local": local.render,
    "podman": partial(local.render, container="podman"),
    "docker": partial(local.render, container="docker"),
    "slurm": slurm.render,
    "kubernetes": kubernetes.render,
    "kubeflow": kubernetes.render_pytorch,
    "kubeflow-trainer": kubernetes.render_trainer,
    "openpai": openpai.render,
    "openpai-v1": openpai.render_v1,
    "compose": compose.render,
}


def render(jobs: Sequence[Job], engine: str) -> Rendering:
    """The native request of each job for one engine."""
    if engine not in ENGINES:
        raise UsageError(f"{engine!r} is not an engine", f"Known are: {', '.join(ENGINES)}.")
    made = [ENGINES[engine](job) for job in jobs]
    files = {path: content for one in made for path, content in one.files.items()}
    notes = [note for one in made for note in one.notes]
    if engine == "slurm" and any(job.after for job in jobs):
        files["submit.sh"] = slurm.submission(jobs).encode()
    if engine != "local":
        notes += [f"{job.name}: {text}" for job in jobs for text in unfit_images(job)]
    return Rendering(files, tuple(notes))
