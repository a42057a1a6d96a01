"""A job as a shell script that runs it on this machine: as processes, or in containers."""

from __future__ import annotations

import shlex

from torchsmith.jobs.launch import (
    Rendezvous,
    commands_for,
    environment,
    exports,
    gpus_before,
    kept_out,
    needs_image,
    only_folders,
    started,
)
from torchsmith.jobs.models import Job, Rendering, TaskRole
from torchsmith.jobs.shell import end_of, environment_lines, secret_lines
from torchsmith.jobs.states import TIMED_OUT

# What every process of a job has in its environment, and hands on to those it starts.
JOB = "TORCHSMITH_JOB"
LABEL = "torchsmith.job"
_MEET = Rendezvous("127.0.0.1", '"$MASTER_PORT"', "TASK_INDEX")


def render(jobs: tuple[Job, ...], container: str = "") -> Rendering:
    """One script for each job; with the program of a container engine each task runs in one."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for job in jobs:
        files[f"{job.name}.sh"] = script(job, container=container).encode()
        notes += [f"{job.name}: {note}" for note in _notes(job, container)]
    return Rendering(files, tuple(notes))


def script(job: Job, record: str = "", container: str = "") -> str:
    """The script of one job; in the folder `record` it keeps the output and end of each task."""
    only_folders(job, "this machine")
    if container:
        needs_image(job, container)
    lines = ["#!/bin/sh", f"# Runs {job.name} on this machine.", "set -eu"]
    lines += secret_lines(job)
    lines += environment_lines(job)
    # A folder that is mounted elsewhere is used where it is; commands may change the folder.
    for mount in job.mounts:
        lines += [f'mkdir -p "{mount.source}"'] if not mount.read_only else []
        lines += [f'{mount.variable}=$(realpath "{mount.source}")', f"export {mount.variable}"]
    if job.distributed and job.nodes > 1:
        lines += ["export MASTER_PORT=$((20000 + $$ % 20000))"]
    # In a container a folder is where the job says; here it is where it lies.
    known = set() if container else {mount.variable for mount in job.mounts}
    for role in job.roles:
        env = environment(job, role)
        told = exports({name: value for name, value in env.items() if name not in known})
        commands = started(job, role, commands_for(job, role, "local"), _MEET)
        text = "\n".join(("set -e", *told, *commands))
        end = end_of(text)
        lines += ["", f"role_{role.name}=$(cat <<'{end}'", text, end, ")"]
    lines += ["", *_RUN]
    place = shlex.quote(record)
    lines += [f"  rm -f {place}/*.exit"] if record else []
    lines += ["  began=$(date +%s)"] if job.seconds else []
    lines += [*_tasks(job, record, container), *_WAIT]
    lines += _limit(job.seconds) if job.seconds else []
    lines += [f'    echo "$code" >{place}/"${{each#*:}}.exit"'] if record else []
    lines += [*_SUM, "", *_again(job.retries), ""]
    return "\n".join(lines)


# timeout puts a task into a process group of its own and ends all of it. A task that fails tells
# this script, which ends the others: no shell but bash can wait for whichever comes first.
_RUN = """\
pids=
stopping=
stop() {
  stopping=yes
  for one in $pids; do kill "${one%%:*}" 2>/dev/null || true; done
}
trap 'stop; exit 130' INT
trap 'stop; exit 143' TERM
# timeout, told to end before it knows its task, would not wait for the code of one that failed.
trap 'sleep 0.2; stop' USR1
# shellcheck disable=SC2016
task='text=$1 all=$2; shift 2
"$@" sh -c "$text" || { code=$?; trap "" TERM; kill -USR1 "$all" 2>/dev/null; exit "$code"; }'

all_tasks() {
  pids="" stopping=""
  status=0""".splitlines()
_WAIT = """\
  # One may have failed before the last began.
  [ -z "$stopping" ] || stop
  for each in $pids; do
    pid=${each%%:*}
    code=0
    wait "$pid" || code=$?
    # A signal ends the waiting, not the task, which may have ended meanwhile all the same.
    while [ "$code" -gt 128 ]; do
      running=yes again=0
      kill -0 "$pid" 2>/dev/null || running=no
      wait "$pid" 2>/dev/null || again=$?
      # 127: it was told before.
      [ "$again" -eq 127 ] || code=$again
      [ "$running" = yes ] || break
    done""".splitlines()
_SUM = """\
    # The first that failed says why; 143 are those that were ended for it.
    case "$status:$code" in
      0:* | 143:[1-9]*) status=$code ;;
    esac
  done
  return "$status"
}""".splitlines()


def _limit(seconds: int) -> list[str]:
    """The code of a task that had to be killed when its time was up is that of any other's."""
    return [
        f'    if [ "$code" -eq 137 ] && [ "$(($(date +%s) - began))" -ge {seconds} ]; then',
        f"      code={TIMED_OUT}",
        "    fi",
    ]


def _again(retries: int) -> list[str]:
    if not retries:
        return ["all_tasks"]
    return [
        "attempt=0",
        "until all_tasks; do",
        "  attempt=$((attempt + 1))",
        f'  [ "$attempt" -le {retries} ] || exit "$status"',
        f'  echo "started again, $attempt of {retries}" >&2',
        "done",
    ]


def _tasks(job: Job, record: str, container: str) -> list[str]:
    lines: list[str] = []
    # A task that does not listen is not waited for longer than this.
    limit = f"--kill-after=10 {job.seconds}" if job.seconds else "0"
    for role in job.roles:
        for index in range(role.tasks):
            variables = [f"TASK_INDEX={index}"]
            if job.nodes > 1:
                first = gpus_before(job, role, index)
                mine = range(first, first + role.gpus)
                variables.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, mine))}")
            name = f"{role.name}-{index}"
            kept = f" >>{shlex.quote(record)}/{name}.log 2>&1" if record else ""
            box = _box(job, role, container) if container else ""
            lines += [
                f"  {' '.join(variables)} timeout {limit} "
                f'sh -c "$task" task "$role_{role.name}" "$$"{box}{kept} &',
                f'  pids="$pids $!:{name}"',
            ]
    return lines


def _box(job: Job, role: TaskRole, container: str) -> str:
    """The words that start a container; secrets are named there, their values inherited."""
    names = ["TASK_INDEX", *(secret.variable for secret in job.secrets)]
    if job.nodes > 1:
        names += ["CUDA_VISIBLE_DEVICES"]
        names += ["MASTER_PORT"] if job.distributed else []
    options = ["--rm", "--init", "--network=host", f"--cpus={role.cpus}"]
    options += [f"--memory={role.memory_mb}m"]
    options += [f"--shm-size={role.shm_mb}m"] if role.shm_mb else []
    if role.gpus:
        options += ["--gpus=all" if container == "docker" else "--device=nvidia.com/gpu=all"]
    # By its token everything a job started is found again.
    options += [f'--env={JOB} --label="{LABEL}=${{{JOB}:-}}"']
    options += [f"--env={name}" for name in names]
    options += [
        f'--volume="${mount.variable}:{mount.at}{":ro" if mount.read_only else ""}"'
        for mount in job.mounts
    ]
    return f" {container} run {' '.join(options)} {shlex.quote(role.image)}"


def _notes(job: Job, container: str) -> list[str]:
    notes = kept_out(job, "local")
    notes += [f"after {name}: run that script first" for name in job.after]
    for role in job.roles:
        if role.image and not container:
            notes.append(
                f"role {role.name}: {role.image} is not used, the torch on the PATH is; "
                "podman and docker run images here"
            )
        if role.shm_asked and not container:
            notes.append(f"role {role.name}: shared memory is this machine's own /dev/shm")
        if role.retries or role.min_failed is not None or role.min_succeeded is not None:
            notes.append(f"role {role.name}: tasks are not counted or started again one by one")
    return notes
