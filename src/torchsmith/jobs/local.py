"""A job as a shell script that runs it on this machine."""

from __future__ import annotations

from torchsmith.errors import UsageError
from torchsmith.jobs.launch import (
    Rendezvous,
    commands_for,
    environment,
    exports,
    gpus_before,
    kept_out,
    started,
)
from torchsmith.jobs.models import Job, Rendering
from torchsmith.jobs.shell import environment_lines, secret_lines

_MEET = Rendezvous("127.0.0.1", '"$MASTER_PORT"', "TASK_INDEX")


def render(jobs: tuple[Job, ...]) -> Rendering:
    """One script for each job."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        files[f"{job.name}.sh"] = _script(job).encode()
        notes += [f"{job.name}: {note}" for note in _notes(job)]
    return Rendering(files, tuple(notes))


def _script(job: Job) -> str:
    for mount in job.mounts:
        if ":" in mount.source:
            raise UsageError(
                f"job {job.name}: this machine has folders, not {mount.source}",
                "Name the folder: from = '/...'.",
            )
    lines = ["#!/bin/sh", f"# Runs {job.name} on this machine.", "set -eu"]
    lines += secret_lines(job)
    lines += environment_lines(job)
    # A folder that is mounted elsewhere is used where it is; commands may change the folder.
    for mount in job.mounts:
        lines += [f'mkdir -p "{mount.source}"'] if not mount.read_only else []
        lines += [f'{mount.variable}=$(realpath "{mount.source}")', f"export {mount.variable}"]
    if job.distributed and job.nodes > 1:
        lines += ["export MASTER_PORT=$((20000 + $$ % 20000))"]
    known = {mount.variable for mount in job.mounts}
    for role in job.roles:
        env = environment(job, role)
        told = exports({name: value for name, value in env.items() if name not in known})
        commands = started(job, role, commands_for(job, role, "local"), _MEET)
        text = "\n".join(("set -e", *told, *commands))
        lines += ["", f"role_{role.name}=$(cat <<'{_end(text)}'", text, _end(text), ")"]
    return (
        "\n".join([*lines, "", *_RUN, *_tasks(job), *_FINISH, ""])
        .replace("@LIMIT@", str(job.seconds or 0))
        .replace("@RETRIES@", str(job.retries))
    )


def _end(text: str) -> str:
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


# timeout puts a task into a process group of its own and ends all of it; 0 means no limit.
_RUN = """\
pids=
stop() {
  for pid in $pids; do kill "$pid" 2>/dev/null || true; done
}
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM

all_tasks() {
  pids=""
  status=0""".splitlines()
_FINISH = """\
  for pid in $pids; do
    wait "$pid" || { status=$?; stop; }
  done
  return "$status"
}

attempt=0
code=0
until all_tasks; do
  code=$status
  attempt=$((attempt + 1))
  [ "$attempt" -le @RETRIES@ ] || exit "$code"
  echo "started again, $attempt of @RETRIES@" >&2
done""".splitlines()


def _tasks(job: Job) -> list[str]:
    lines: list[str] = []
    for role in job.roles:
        for index in range(role.tasks):
            variables = [f"TASK_INDEX={index}"]
            if job.nodes > 1:
                first = gpus_before(job, role, index)
                mine = range(first, first + role.gpus)
                variables.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, mine))}")
            lines += [
                f'  {" ".join(variables)} timeout @LIMIT@ sh -c "$role_{role.name}" &',
                '  pids="$pids $!"',
            ]
    return lines


def _notes(job: Job) -> list[str]:
    notes = kept_out(job, "local")
    notes += [f"after {name}: run that script first" for name in job.after]
    for role in job.roles:
        if role.image:
            notes.append(
                f"role {role.name}: {role.image} is not used, the torch on the PATH is; "
                "compose runs images here"
            )
        if role.shm_asked:
            notes.append(f"role {role.name}: shared memory is this machine's own /dev/shm")
        if role.retries or role.min_failed is not None or role.min_succeeded is not None:
            notes.append(f"role {role.name}: tasks are not counted or started again one by one")
    return notes
