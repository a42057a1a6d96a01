"""A job for Kubeflow: a PyTorchJob of its training operator, or a TrainJob of its Trainer."""

from __future__ import annotations

from collections.abc import Callable

from torchsmith.errors import UsageError
from torchsmith.jobs import openpai_env, yaml_text
from torchsmith.jobs.kubernetes import (
    Table,
    fitted,
    labels,
    metadata,
    pod_notes,
    pod_spec,
    times,
)
from torchsmith.jobs.launch import Rendezvous, commands_for, needs_image, started
from torchsmith.jobs.models import Job, Rendering, TaskRole

# The operator's own names; it looks for a container of that one.
_CONTAINER = "pytorch"
_MEET = Rendezvous('"$MASTER_ADDR"', '"$MASTER_PORT"', "RANK")
# Trainer's: it says where to meet in torchrun's own variables, in the container of this name.
_NODE, _RUNTIME = "node", "torch-distributed"
_TRAINER_MEET = Rendezvous('"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"', "PET_NODE_RANK")
_TRAINER_INDEX = "JOB_COMPLETION_INDEX"


def render(jobs: tuple[Job, ...]) -> Rendering:
    """One PyTorchJob for each job."""
    return _rendered(jobs, "PyTorchJob", _pytorch_job)


def render_trainer(jobs: tuple[Job, ...]) -> Rendering:
    """One TrainJob (Kubeflow Trainer 2.2 or newer) for each job."""
    return _rendered(jobs, "TrainJob", _train_job)


def _rendered(
    jobs: tuple[Job, ...], kind: str, made: Callable[[Job, TaskRole], Table]
) -> Rendering:
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job, renamed in fitted(jobs):
        needs_image(job, "Kubeflow")
        files[f"{job.name}.yaml"] = yaml_text.write(made(job, _role(job, kind))).encode()
        notes += [f"{job.name}: {note}" for note in (*renamed, *pod_notes(job), *_notes(job, kind))]
    return Rendering(files, tuple(notes))


def _role(job: Job, kind: str) -> TaskRole:
    if len(job.roles) != 1:
        raise UsageError(
            f"job {job.name}: a {kind} has one kind of worker, and this has {len(job.roles)} roles",
            "Render it for kubernetes.",
        )
    (role,) = job.roles
    if role.tasks > 1 and not job.distributed:
        raise UsageError(
            f"job {job.name}: the tasks of a {kind} train together, and this job is not "
            "distributed",
            "Add distributed = true, or render it for kubernetes.",
        )
    return role


def _notes(job: Job, kind: str) -> list[str]:
    (role,) = job.roles
    notes: list[str] = []
    if role.retries:
        notes.append(f"role {role.name}: retries: a {kind} is started again as a whole")
    if role.min_failed is not None or role.min_succeeded is not None:
        notes.append(f"role {role.name}: a {kind} counts no tasks; min_… is left out")
    if kind == "TrainJob":
        notes += ["retries: a TrainJob is not started again"] if job.retries else []
        notes += [
            f"role {role.name}: port {port.name} is not opened: a TrainJob names none"
            for port in role.ports
            if port.number
        ]
    return notes


def _pytorch_job(job: Job, role: TaskRole) -> Table:
    def host(other: TaskRole, index: int) -> str:
        return f"{job.name}-worker-{index - 1}" if index else f"{job.name}-master-0"

    commands = started(job, role, commands_for(job, role, "Kubeflow"), _MEET)
    pai = openpai_env.lines(job, role, "RANK", host)
    template: Table = {
        "metadata": {"labels": labels(job, role)},
        "spec": {
            key: value
            for key, value in pod_spec(job, role, (*pai, *commands), _CONTAINER).items()
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
                "backoffLimit": times(job.retries),
                **({"activeDeadlineSeconds": job.seconds} if job.seconds is not None else {}),
            },
            "pytorchReplicaSpecs": replicas,
        },
    }


def _train_job(job: Job, role: TaskRole) -> Table:
    def host(other: TaskRole, index: int) -> str:
        return f"{job.name}-{_NODE}-0-{index}.{job.name}"

    commands = started(job, role, commands_for(job, role, "Kubeflow"), _TRAINER_MEET)
    pai = openpai_env.lines(job, role, _TRAINER_INDEX, host)
    pod = pod_spec(job, role, (*pai, *commands), _NODE)
    containers = pod["containers"]
    assert isinstance(containers, list)
    (container,) = containers
    mounted = {"volumeMounts": container["volumeMounts"]} if "volumeMounts" in container else {}
    # What a TrainJob has no word of its own for is laid over its runtime's pods.
    patch: Table = {
        **{key: pod[key] for key in ("nodeSelector", "volumes") if key in pod},
        **({"containers": [{"name": _NODE, **mounted}]} if mounted else {}),
    }
    template: Table = {
        "metadata": {"labels": labels(job, role)},
        **({"spec": patch} if patch else {}),
    }
    jobs = [{"name": _NODE, "template": {"spec": {"template": template}}}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, job.name),
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            **({"activeDeadlineSeconds": job.seconds} if job.seconds is not None else {}),
            "trainer": {
                "image": container["image"],
                "command": container["command"],
                **({"env": container["env"]} if "env" in container else {}),
                "numNodes": role.tasks,
                "numProcPerNode": role.processes,
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [
                {
                    "manager": "torchsmith",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
                }
            ],
        },
    }
