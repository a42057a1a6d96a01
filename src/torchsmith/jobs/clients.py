"""The targets that jobs can go to: the client of each, and its rendering of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from torchsmith.errors import UsageError
from torchsmith.jobs import compose, kubernetes, local, openpai, slurm
from torchsmith.jobs.launch import unfit_images
from torchsmith.jobs.models import Job, Rendering

if TYPE_CHECKING:
    from torchsmith.jobs.client import Client


class Target(NamedTuple):
    """How a target takes jobs: their rendering, and the client that submits them, if there is one.

    The client is named only: nobody loads the libraries of a target they do not use.
    """

    render: Callable[[Job], Rendering]
    client: str = ""


TARGETS: Mapping[str, Target] = {
    "local": Target(local.render, "local:Local"),
    "podman": Target(partial(local.render, container="podman"), "local:Podman"),
    "docker": Target(partial(local.render, container="docker"), "local:Docker"),
    "slurm": Target(slurm.render, "slurm:Slurm"),
    "kubernetes": Target(kubernetes.render, "kubernetes:Kubernetes"),
    "kubeflow": Target(kubernetes.render_pytorch, "kubernetes:Kubeflow"),
    "kubeflow-trainer": Target(kubernetes.render_trainer, "kubernetes:KubeflowTrainer"),
    "openpai": Target(openpai.render, "openpai:OpenPai"),
    "openpai-v1": Target(openpai.render_v1, "openpai:OpenPaiV1"),
    "compose": Target(compose.render),
}
_WITH_CLIENT = tuple(name for name, target in TARGETS.items() if target.client)


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
        f'Add --to {"|".join(_WITH_CLIENT)}, or the line to = "local" to the job, or set '
        "TORCHSMITH_JOBS_TO.",
    )


def client_for(engine: str, place: str = "") -> Client:
    """The client of a target; `place` is which one of its kind, by default the one set up."""
    if engine not in _WITH_CLIENT:
        raise UsageError(
            f"jobs cannot be submitted to {engine!r}", f"Known are: {', '.join(_WITH_CLIENT)}."
        )
    module, _, name = TARGETS[engine].client.partition(":")
    found = import_module(f"torchsmith.jobs.targets.{module}")
    return cast("Client", getattr(found, name)(place))


def render(jobs: Sequence[Job], engine: str) -> Rendering:
    """The native request of each job for one target."""
    if engine not in TARGETS:
        raise UsageError(f"{engine!r} is not an engine", f"Known are: {', '.join(TARGETS)}.")
    made = [TARGETS[engine].render(job) for job in jobs]
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
