"""A job as a PyTorchJob of Kubeflow's training operator."""

from __future__ import annotations

from torchsmith.errors import UsageError
from torchsmith.jobs import yaml_text
from torchsmith.jobs.kubernetes import (
    Table,
    check_name,
    labels,
    metadata,
    pod_notes,
    pod_spec,
)
from torchsmith.jobs.launch import Rendezvous, commands_for, needs_image, started
from torchsmith.jobs.models import Job, Rendering

# The operator's own names; it looks for a container of that one.
_CONTAINER = "pytorch"
_MEET = Rendezvous('"$MASTER_ADDR"', '"$MASTER_PORT"', "RANK")


def render(jobs: tuple[Job, ...]) -> Rendering:
    """One manifest for each job."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        check_name(job)
        needs_image(job, "Kubeflow")
        files[f"{job.name}.yaml"] = yaml_text.write(_object(job)).encode()
        notes += [f"{job.name}: {note}" for note in pod_notes(job)]
    return Rendering(files, tuple(notes))


def _object(job: Job) -> Table:
    if len(job.roles) != 1:
        raise UsageError(
            f"job {job.name}: a PyTorchJob has one kind of worker, and this has {len(job.roles)} "
            "roles",
            "Render it for kubernetes.",
        )
    (role,) = job.roles
    if role.tasks > 1 and not job.distributed:
        raise UsageError(
            f"job {job.name}: the tasks of a PyTorchJob train together, and this job is not "
            "distributed",
            "Add distributed = true, or render it for kubernetes.",
        )
    commands = started(job, role, commands_for(job, role, "Kubeflow"), _MEET)
    template: Table = {
        "metadata": {"labels": labels(job, role)},
        "spec": {
            key: value
            for key, value in pod_spec(job, role, commands, _CONTAINER).items()
            # The operator's to set, from the replica's own.
            if key != "restartPolicy"
        },
    }
    restart = "OnFailure" if job.retries else "Never"
    replicas: Table = {"Master": {"replicas": 1, "restartPolicy": restart, "template": template}}
    if role.tasks > 1:
        replicas["Worker"] = {
            "replicas": role.tasks - 1,
            "restartPolicy": restart,
            "template": template,
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(job, job.name),
        "spec": {
            "nprocPerNode": str(role.processes),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "backoffLimit": job.retries,
                **({"activeDeadlineSeconds": job.seconds} if job.seconds is not None else {}),
            },
            "pytorchReplicaSpecs": replicas,
        },
    }
