"""A job as Kubernetes' own objects: an Indexed Job for each role, and a Service to meet at."""

from __future__ import annotations

import re

from torchsmith.errors import UsageError
from torchsmith.jobs import yaml_text
from torchsmith.jobs.launch import (
    Rendezvous,
    commands_for,
    environment,
    kept_out,
    needs_image,
    started,
)
from torchsmith.jobs.models import Job, Mount, Rendering, TaskRole

Table = dict[str, object]
PORT = 29500
# A pod is called after its Job, with a number behind it, and its name is a host name.
_LONGEST = 56


def render(jobs: tuple[Job, ...]) -> Rendering:
    """One manifest for each job."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        needs_image(job, "Kubernetes")
        files[f"{job.name}.yaml"] = yaml_text.write(*_objects(job)).encode()
        notes += [f"{job.name}: {note}" for note in pod_notes(job)]
        for role in job.roles:
            if role.min_succeeded not in (None, -1, role.tasks) or (role.min_failed or 1) != 1:
                notes.append(f"{job.name}: role {role.name}: min_… needs Kubernetes 1.33")
    return Rendering(files, tuple(notes))


def _objects(job: Job) -> list[Table]:
    names = _names(job)
    objects: list[Table] = []
    if job.distributed and job.nodes > 1:
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata(job, job.name),
                "spec": {
                    # Headless: each pod has a name of its own, also before it is ready.
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": labels(job),
                    "ports": [{"name": "rendezvous", "port": PORT}],
                },
            }
        )
    first = names[job.roles[0].name]
    for role in job.roles:
        meet = Rendezvous(f"{first}-0.{job.name}", str(PORT), "JOB_COMPLETION_INDEX")
        commands = started(job, role, commands_for(job, role, "Kubernetes"), meet)
        pod = pod_spec(job, role, commands, names[role.name])
        if job.distributed and job.nodes > 1:
            pod["subdomain"] = job.name
        objects.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": metadata(job, names[role.name]),
                "spec": {
                    "completionMode": "Indexed",
                    "completions": role.tasks,
                    "parallelism": role.tasks,
                    **_policy(job, role),
                    "template": {
                        "metadata": {"labels": labels(job, role)},
                        "spec": pod,
                    },
                },
            }
        )
    return objects


def _policy(job: Job, role: TaskRole) -> Table:
    # In a distributed run one failure fails them all, and each of them counts.
    again = job.retries * (role.tasks if job.distributed else 1)
    policy: Table = {"backoffLimit": again}
    many = role.min_failed is not None and role.min_failed != 1
    if role.retries or many:
        policy = {"backoffLimitPerIndex": role.retries}
        if role.min_failed is not None:
            bearable = role.tasks if role.min_failed == -1 else role.min_failed - 1
            policy["maxFailedIndexes"] = bearable
    if role.min_succeeded not in (None, -1, role.tasks):
        policy["successPolicy"] = {"rules": [{"succeededCount": role.min_succeeded}]}
    if job.seconds is not None:
        policy["activeDeadlineSeconds"] = job.seconds
    return policy


def _names(job: Job) -> dict[str, str]:
    """What the Job of each role is called."""
    check_name(job)
    if len(job.roles) == 1:
        return {job.roles[0].name: job.name}
    names = {
        role.name: f"{job.name}-{role.name.lower().strip('_').replace('_', '-')}"
        for role in job.roles
    }
    for role, name in names.items():
        if list(names.values()).count(name) > 1 or len(name) > _LONGEST or name.endswith("-"):
            raise UsageError(
                f"job {job.name}: role {role} would be called {name}, which Kubernetes refuses "
                "or another role has",
                "Give the role another name: short, told apart without case and _.",
            )
    return names


def check_name(job: Job) -> None:
    """Refuse a name that no object there may have."""
    if len(job.name) <= _LONGEST and re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", job.name):
        return
    better = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-0123456789")[:_LONGEST]
    raise UsageError(
        f"Kubernetes refuses the name {job.name}: it takes at most {_LONGEST} lower-case letters, "
        "digits and '-', a letter first",
        f"Rename it, or add --set name={better.rstrip('-') or 'job'}.",
    )


def labels(job: Job, role: TaskRole | None = None) -> Table:
    """What the objects of a job are found by."""
    named: Table = {
        "app.kubernetes.io/name": job.name,
        "app.kubernetes.io/managed-by": "torchsmith",
    }
    return {**named, "app.kubernetes.io/component": role.name.strip("_")} if role else named


def metadata(job: Job, name: str) -> Table:
    """The head of an object."""
    queue = {"kueue.x-k8s.io/queue-name": job.queue} if job.queue else {}
    space = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    return {"name": name, **space, "labels": {**labels(job), **queue}}


def pod_spec(job: Job, role: TaskRole, commands: tuple[str, ...], name: str) -> Table:
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
    container: Table = {
        "name": name,
        "image": role.image,
        "command": ["/bin/sh", "-ec", _plain("\n".join(commands))],
        **({"env": env} if env else {}),
        "resources": {"requests": dict(limits), "limits": limits},
    }
    ports = [
        {"name": f"port-{port.number + index}", "containerPort": port.number + index}
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


def pod_notes(job: Job) -> list[str]:
    """What pods have no word for."""
    notes = kept_out(job, "kubernetes")
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
