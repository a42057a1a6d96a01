"""The targets that jobs can go to: the client of each, and its rendering of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

from torchsmith.errors import UsageError
from torchsmith.jobs import compose, kubernetes, local, openpai, slurm
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job, Rendering

if TYPE_CHECKING:
    from torchsmith.jobs.client import Client
    from torchsmith.jobs.models import Job


# Loaded when asked for: nobody pays for the libraries of a target they do not use.
_CLIENTS = {
    "local": "torchsmith.jobs.targets.local:Local",
    "podman": "torchsmith.jobs.targets.local:Podman",
    "docker": "torchsmith.jobs.targets.local:Docker",
    "slurm": "torchsmith.jobs.targets.slurm:Slurm",
    "kubernetes": "torchsmith.jobs.targets.kubernetes:Kubernetes",
    "kubeflow": "torchsmith.jobs.targets.kubernetes:Kubeflow",
    "kubeflow-trainer": "torchsmith.jobs.targets.kubernetes:KubeflowTrainer",
    "openpai": "torchsmith.jobs.targets.openpai:OpenPai",
    "openpai-v1": "torchsmith.jobs.targets.openpai:OpenPaiV1",
}
TARGETS = tuple(_CLIENTS)


def target_for(jobs: Sequence[Job], wanted: str, usual: str) -> str:
    """Where jobs go: where the command says, else their own line, else the usual place."""
    own = {job.to for job in jobs if job.to}
    if not wanted and len(own) > 1:
        raise UsageError(
            f"the jobs go to different engines: {', '.join(sorted(own))}",
            "Take one after the other with --name, or send them all somewhere with --to.",
        )
    if engine := wanted or next(iter(own), usual):
        return engine
    raise UsageError(
        "no target given: use --to",
        f'Add --to {"|".join(_CLIENTS)}, or the line to = "local" to the job, or set '
        "TORCHSMITH_JOBS_TO.",
    )


def client_for(engine: str, place: str = "") -> Client:
    """The client of a target; `place` is which one of its kind, by default the one set up."""
    if engine not in _CLIENTS:
        raise UsageError(
            f"jobs cannot be submitted to {engine!r}", f"Known are: {', '.join(_CLIENTS)}."
        )
    module, _, name = _CLIENTS[engine].partition(":")
    return cast("Client", getattr(import_module(module), name)(place))


RENDERINGS: Mapping[str, Callable[[Job], Rendering]] = {
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
    """The native request of each job for one target."""
    if engine not in RENDERINGS:
        raise UsageError(f"{engine!r} is not an engine", f"Known are: {', '.join(RENDERINGS)}.")
    made = [RENDERINGS[engine](job) for job in jobs]
    owners: dict[str, str] = {}
    for job, one in zip(jobs, made, strict=True):
        for path in one.files:
            if owners.setdefault(path, job.name) != job.name:
                raise UsageError(
                    f"the jobs {owners[path]} and {job.name} would both be called "
                    f"{path.partition('.')[0]} there",
                    f"Rename one of them, or render it alone: --name {job.name}.",
                )
    files = {path: content for one in made for path, content in one.files.items()}
    notes = [note for one in made for note in one.notes]
    if engine == "slurm" and any(job.after for job in jobs):
        files["submit.sh"] = slurm.submission(jobs).encode()
    if engine != "local":
        notes += [f"{job.name}: {text}" for job in jobs for text in unfit_images(job)]
    return Rendering(files, tuple(notes))
