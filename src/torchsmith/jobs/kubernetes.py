"""A job as objects of Kubernetes: its own Jobs and JobSets, or Kubeflow's PyTorchJob and TrainJob.

Its own are an Indexed Job for each role, and a Service to meet at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from torchsmith import yaml_text
from torchsmith.errors import UsageError
from torchsmith.jobs.launch import (
    BASH,
    Rendezvous,
    end_of,
    environment,
    left_out,
    needs_image,
    pai_notes,
    task_lines,
    wants_pai,
)
from torchsmith.jobs.models import Job, Mount, Rendering, TaskRole, rendering

Table = dict[str, object]
PORT = 29500
# A pod is called after its Job, with a number behind it, and its name is a host name.
_LONGEST = 56
# The operator's own names; it looks for a container of that one.
_CONTAINER = "pytorch"
_PYTORCH_MEET = Rendezvous('"$MASTER_ADDR"', '"$MASTER_PORT"', "RANK")
# Trainer's: it says where to meet in torchrun's own variables, in the container of this name.
_NODE, _RUNTIME = "node", "torch-distributed"
_TRAINER_MEET = Rendezvous('"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"', "PET_NODE_RANK")
_TRAINER_INDEX = "JOB_COMPLETION_INDEX"


def render(job: Job) -> Rendering:
    """A manifest of Kubernetes' own objects."""
    job, renamed = _fitted(job)
    needs_image(job, "Kubernetes")
    notes = (*renamed, *_pod_notes(job), *_end_notes(job))
    return rendering(job, "yaml", yaml_text.write(*_objects(job)), notes)


def render_pytorch(job: Job) -> Rendering:
    """A PyTorchJob of Kubeflow's training operator."""
    return _kubeflow(job, "PyTorchJob", _pytorch_job)


def render_trainer(job: Job) -> Rendering:
    """A TrainJob (Kubeflow Trainer 2.2 or newer)."""
    return _kubeflow(job, "TrainJob", _train_job)


def _kubeflow(job: Job, kind: str, made: Callable[[Job, TaskRole], Table]) -> Rendering:
    job, renamed = _fitted(job)
    needs_image(job, "Kubeflow")
    text = yaml_text.write(made(job, _one_role(job, kind)))
    notes = (*renamed, *_pod_notes(job), *_kubeflow_notes(job, kind))
    return rendering(job, "yaml", text, notes)


def _objects(job: Job) -> list[Table]:
    """A Job for each role; in a JobSet where the end of one role ends the others."""
    names = _names(job)
    made = {role.name: _job(job, role, names) for role in job.roles}
    if _tied(job):
        return [_job_set(job, made)]
    jobs: list[Table] = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(job, names[role]),
            "spec": spec,
        }
        for role, spec in made.items()
    ]
    return [_service(job), *jobs] if _meet(job) else jobs


def _tied(job: Job) -> bool:
    """Whether a role ends the others: Jobs know nothing of each other, a JobSet does."""
    return len(job.roles) > 1 and any(role.wins_at is not None for role in job.roles)


def _meet(job: Job) -> bool:
    """Whether tasks look for each other by name."""
    several = job.nodes > 1 and (job.distributed or wants_pai(job))
    return several or len(job.roles) > 1


def _service(job: Job) -> Table:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.name),
        "spec": {
            # Headless: each pod has a name of its own, also before it is ready.
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(job),
            **({"ports": [{"name": "rendezvous", "port": PORT}]} if job.distributed else {}),
        },
    }


def _job(job: Job, role: TaskRole, names: dict[str, str]) -> Table:
    """The Job of a role, without its head."""

    def host(other: TaskRole, index: int) -> str:
        # In a JobSet each role is its Job number 0.
        place = f"{job.name}-{_short(other)}-0" if _tied(job) else names[other.name]
        return f"{place}-{index}.{job.name}"

    meet = Rendezvous(host(job.roles[0], 0), str(PORT), "JOB_COMPLETION_INDEX")
    lines = task_lines(job, role, "Kubernetes", meet, host)
    pod = _pod_spec(job, role, lines, names[role.name])
    if _meet(job) and not _tied(job):
        pod["subdomain"] = job.name
    return {
        "completionMode": "Indexed",
        "completions": role.tasks,
        "parallelism": role.tasks,
        **_policy(job, role),
        "template": {"metadata": {"labels": _labels(job, role)}, "spec": pod},
    }


def _job_set(job: Job, made: dict[str, Table]) -> Table:
    """https://jobset.sigs.k8s.io: it is done when one of the roles that end it is."""
    enough = [_short(role) for role in job.roles if role.wins_at is not None]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, job.name),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "successPolicy": {"operator": "Any", "targetReplicatedJobs": enough},
            "failurePolicy": {"maxRestarts": _times(job.retries)},
            "replicatedJobs": [
                {
                    "name": _short(role),
                    "replicas": 1,
                    # The set itself starts all of them again.
                    "template": {
                        "spec": {**made[role.name], "backoffLimit": 0}
                        if "backoffLimit" in made[role.name]
                        else made[role.name]
                    },
                }
                for role in job.roles
            ],
        },
    }


def _times(retries: int) -> int:
    """How often something is started again; without end: the largest number there is."""
    return retries if retries >= 0 else 2**31 - 1


def _policy(job: Job, role: TaskRole) -> Table:
    # In a distributed run one failure fails them all, and each of them counts.
    again = min(_times(job.retries) * (role.tasks if job.distributed else 1), 2**31 - 1)
    policy: Table = {"backoffLimit": again}
    counted = role.fails_at is not None and role.fails_at > 1
    if role.retries or counted or (role.fails_at is None and role.wins_at is not None):
        policy = {"backoffLimitPerIndex": _times(role.retries)}
        if role.min_failed is not None:
            policy["maxFailedIndexes"] = role.tasks if role.fails_at is None else role.fails_at - 1
    if role.wins_at not in (None, role.tasks):
        policy["successPolicy"] = {"rules": [{"succeededCount": role.wins_at}]}
    if job.seconds is not None:
        policy["activeDeadlineSeconds"] = job.seconds
    return policy


def _end_notes(job: Job) -> list[str]:
    notes: list[str] = []
    if _tied(job):
        notes.append(
            "needs JobSet on the cluster (https://jobset.sigs.k8s.io), as one role's end ends the "
            "others"
        )
    elif len(job.roles) > 1:
        notes.append("a role that fails does not end the others: each is a Job of its own")
    for role in job.roles:
        if job.retries and not _tied(job) and "backoffLimit" not in _policy(job, role):
            notes.append(
                f"role {role.name}: retries of the job are left out: Kubernetes counts those of "
                "each task, or those of all, and here each task's"
            )
        if role.wins_at not in (None, role.tasks) or role.fails_at not in (None, 1):
            notes.append(f"role {role.name}: min_… needs Kubernetes 1.33")
        if role.fails_at is not None and role.fails_at > 1:
            notes.append(
                f"role {role.name}: min_failed: the other tasks go on when one fails; once all "
                "have ended, Kubernetes calls the Job failed"
            )
        if role.fails_at is None and role.wins_at is None:
            notes.append(
                f"role {role.name}: min_failed = -1: a task that fails ends as if it had succeeded"
            )
    return notes


def _short(role: TaskRole) -> str:
    """A role's name as Kubernetes takes it."""
    return role.name.lower().strip("_").replace("_", "-")


def _names(job: Job) -> dict[str, str]:
    """What the Job of each role is called."""
    if len(job.roles) == 1:
        return {job.roles[0].name: job.name}
    names = {role.name: f"{job.name}-{_short(role)}" for role in job.roles}
    for role, name in names.items():
        if list(names.values()).count(name) > 1 or len(name) > _LONGEST or name.endswith("-"):
            raise UsageError(
                f"job {job.name}: role {role} would be called {name}, which Kubernetes refuses "
                "or another role has",
                "Give the role another name: short, told apart without case and _.",
            )
    return names


def fit_name(name: str) -> str:
    """A job's name as objects there may be called: at most 56 of a-z, 0-9 and -, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")
    return plain[:_LONGEST].rstrip("-") or "job"


def _fitted(job: Job) -> tuple[Job, tuple[str, ...]]:
    """The job under a name Kubernetes takes, and what is to be said of that."""
    name = fit_name(job.name)
    renamed = (f"it is {job.name}, which Kubernetes does not take as a name",)
    return replace(job, name=name), renamed if name != job.name else ()


def _labels(job: Job, role: TaskRole | None = None) -> Table:
    """What the objects of a job are found by."""
    named: Table = {
        "app.kubernetes.io/name": job.name,
        "app.kubernetes.io/managed-by": "torchsmith",
    }
    return {**named, "app.kubernetes.io/component": role.name.strip("_")} if role else named


def _metadata(job: Job, name: str) -> Table:
    """The head of an object."""
    queue = {"kueue.x-k8s.io/queue-name": job.queue} if job.queue else {}
    space = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    return {"name": name, **space, "labels": {**_labels(job), **queue}}


def _pod_spec(job: Job, role: TaskRole, commands: tuple[str, ...], name: str) -> Table:
    """The pod of one task."""
    limits: Table = {"cpu": str(role.cpus), "memory": f"{role.memory_mb}Mi"}
    if role.gpus:
        limits[job.kubernetes.gpu_resource] = str(role.gpus)
    env: list[Table] = [
        {"name": variable, "value": _plain(value)}
        for variable, value in environment(job, role).items()
    ]
    env += [
        {
            "name": secret.variable,
            "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}},
        }
        for secret in job.secrets
    ]
    text = "\n".join(commands)
    if role.fails_at is None and role.wins_at is None:
        # Nobody asks how it ends, and a Job would.
        end = end_of(text)
        borne = 'echo "borne: it ended with $?" >&2'
        text = f"{BASH} /dev/fd/3 3<<'{end}' || {borne}\n{text}\n{end}"
    container: Table = {
        "name": name,
        "image": role.image,
        "command": [*BASH.split(), "-c", _plain(text)],
        **({"env": env} if env else {}),
        "resources": {"requests": dict(limits), "limits": limits},
    }
    ports = [
        {"name": _port_name(port.name, port.number + index), "containerPort": port.number + index}
        for port in role.ports
        if port.number
        for index in range(port.count)
    ]
    volumes: list[Table] = []
    mounted: list[Table] = []
    if role.shm_mb:
        shm = {"medium": "Memory", "sizeLimit": f"{role.shm_mb}Mi"}
        volumes.append({"name": "shm", "emptyDir": shm})
        mounted.append({"name": "shm", "mountPath": "/dev/shm"})
    for index, mount in enumerate(job.mounts):
        volume, inside = _volume(job, mount)
        volumes.append({"name": f"mount-{index}", **volume})
        mounted.append(
            {
                "name": f"mount-{index}",
                "mountPath": mount.at,
                **({"subPath": inside} if inside else {}),
                **({"readOnly": True} if mount.read_only else {}),
            }
        )
    container |= {"ports": ports} if ports else {}
    container |= {"volumeMounts": mounted} if mounted else {}
    selector = job.kubernetes.node_selector
    return {
        "restartPolicy": "Never",
        **({"nodeSelector": dict(selector)} if selector else {}),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
    }


def _port_name(label: str, number: int) -> str:
    # At most 15 characters, of which a number takes up to six.
    short = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:9].rstrip("-")
    return f"{short or 'port'}-{number}"


def _plain(text: str) -> str:
    # Kubernetes fills in $(NAME) itself, before any shell does.
    return text.replace("$(", "$$(")


def _volume(job: Job, mount: Mount) -> tuple[Table, str]:
    """The volume a mount comes from, and the folder in it."""
    if mount.source.startswith("claim:"):
        claim, _, inside = mount.source.removeprefix("claim:").partition("/")
        only = {"readOnly": True} if mount.read_only else {}
        return {"persistentVolumeClaim": {"claimName": claim, **only}}, inside
    if mount.source.startswith("nfs://"):
        server, _, path = mount.source.removeprefix("nfs://").partition("/")
        return {"nfs": {"server": server, "path": f"/{path}"}}, ""
    if mount.source.startswith("/"):
        return {"hostPath": {"path": mount.source}}, ""
    raise UsageError(
        f"job {job.name}: Kubernetes cannot mount {mount.source}, a folder beside the job",
        "Name a claim (claim:NAME), nfs://server/folder, or a folder of the nodes (/...).",
    )


def _pod_notes(job: Job) -> list[str]:
    """What pods have no word for."""
    notes = left_out(job, "kubernetes")
    notes += pai_notes(job, names=True)
    notes += [f"after {name}: Kubernetes starts every job at once" for name in job.after]
    for role in job.roles:
        notes += [
            f"role {role.name}: port {port.name} has no number and is not opened"
            for port in role.ports
            if not port.number
        ]
        if role.shm_mb and role.shm_mb >= role.memory_mb:
            notes.append(
                f"role {role.name}: shared memory counts as memory there, and {role.memory_mb} MB "
                f"is not more than its {role.shm_mb} MB"
            )
    return notes


def _one_role(job: Job, kind: str) -> TaskRole:
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


def _kubeflow_notes(job: Job, kind: str) -> list[str]:
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

    lines = task_lines(job, role, "Kubeflow", _PYTORCH_MEET, host)
    template: Table = {
        "metadata": {"labels": _labels(job, role)},
        "spec": {
            key: value
            for key, value in _pod_spec(job, role, lines, _CONTAINER).items()
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
        "metadata": _metadata(job, job.name),
        "spec": {
            "nprocPerNode": str(role.processes),
            "runPolicy": {
                "cleanPodPolicy": "None",
                "backoffLimit": _times(job.retries),
                **({"activeDeadlineSeconds": job.seconds} if job.seconds is not None else {}),
            },
            "pytorchReplicaSpecs": replicas,
        },
    }


def _train_job(job: Job, role: TaskRole) -> Table:
    def host(other: TaskRole, index: int) -> str:
        return f"{job.name}-{_NODE}-0-{index}.{job.name}"

    lines = task_lines(job, role, "Kubeflow", _TRAINER_MEET, host, index=_TRAINER_INDEX)
    pod = _pod_spec(job, role, lines, _NODE)
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
        "metadata": {"labels": _labels(job, role)},
        **({"spec": patch} if patch else {}),
    }
    jobs = [{"name": _NODE, "template": {"spec": {"template": template}}}]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(job, job.name),
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
