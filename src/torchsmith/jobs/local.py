"""A job as a shell script that runs it on this machine: as processes, or in containers."""

from __future__ import annotations

import shlex

from torchsmith.jobs.launch import (
    STRICT,
    Rendezvous,
    end_of,
    environment,
    environment_lines,
    exports,
    gpus_before,
    left_out,
    needs_image,
    only_folders,
    pai_notes,
    secret_lines,
    task_lines,
    unmounted,
    wants_pai,
)
from torchsmith.jobs.models import Job, Rendering, TaskRole, rendering
from torchsmith.jobs.states import TIMED_OUT

# What every process of a job has in its environment, and hands on to those it starts.
JOB = "TORCHSMITH_JOB"
LABEL = "torchsmith.job"
_HERE = "127.0.0.1"
_MEET = Rendezvous(_HERE, '"$MASTER_PORT"', "TASK_INDEX")
_PAI_PORT = "PAI_FIRST_PORT"
_NONE = "''"
# A role that asks for nothing of its own.
_DEFAULTS = (1, 2048)


def render(job: Job, container: str = "") -> Rendering:
    """A script; with `container`, the name of a container tool, each task runs in one."""
    return rendering(job, "sh", script(job, container=container), _notes(job, container))


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
    if wants_pai(job):
        lines += [f"export {_PAI_PORT}=$((10000 + $$ % 90 * 100))"]
    # In a container a folder is where the job says; here it is where it lies.
    known = set() if container else {mount.variable for mount in job.mounts}
    for role in job.roles:
        env = environment(job, role)
        settings = exports({name: value for name, value in env.items() if name not in known})
        lines_of_task = task_lines(
            job, role, "local", _MEET, lambda *_: _HERE, base=_PAI_PORT, settings=settings
        )
        text = "\n".join((f"set {STRICT}", *lines_of_task))
        end = end_of(text)
        lines += ["", f"role_{role.name}=$(cat <<'{end}'", text, end, ")"]
    lines += ["", *_RUN, *([*_COUNTED, *_judge(job)] if job.counts else _TOLD), "", *_ALL]
    lines += ['  : >"$ends"', "  verdict="] if job.counts else []
    place = shlex.quote(record)
    lines += [f"  rm -f {place}/*.exit"] if record else []
    lines += ["  began=$(date +%s)"] if job.seconds else []
    lines += [*_tasks(job, record, container), *_WAIT]
    if job.seconds:
        # The code of a task that had to be killed when its time was up is that of any other's.
        lines += [
            f'    if [ "$code" -eq 137 ] && [ "$(($(date +%s) - began))" -ge {job.seconds} ]; then',
            f"      code={TIMED_OUT}",
            "    fi",
        ]
    lines += [f'    echo "$code" >{place}/"${{each#*:}}.exit"'] if record else []
    lines += [*(_VERDICT if job.counts else _SUM), "", *_again(job.retries), ""]
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
""".splitlines()
_TOLD = """\
# timeout, told to end before it knows its task, would not wait for the code of one that failed.
trap 'sleep 0.2; stop' USR1
# shellcheck disable=SC2016
task='text=$1 all=$2; shift 2
"$@" bash -c "$text" || { code=$?; trap "" TERM; kill -USR1 "$all" 2>/dev/null; exit "$code"; }'
""".splitlines()
# Where the end of a job depends on how many tasks ended how, each tells its end.
_COUNTED = """\
ends=$(mktemp)
trap 'rm -f "$ends"' EXIT
verdict=
""".splitlines()
_COUNTING = """\
trap 'sleep 0.2; judge' USR1
# shellcheck disable=SC2016
task='text=$1 all=$2 ends=$3 name=$4; shift 4; code=0
"$@" bash -c "$text" || code=$?
trap "" TERM; echo "$name:$code" >>"$ends"; kill -USR1 "$all" 2>/dev/null; exit "$code"'
many() { grep -c "$1" "$ends" || true; }
judge() {
  [ -z "$verdict" ] || return 0
""".splitlines()
_ALL = """\
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


# No number of ends decided: those that failed are borne, those that were ended are not.
_VERDICT = """\
    case "$verdict:$(many "^${each#*:}:"):$code" in
      :0:[1-9]*) status=$code ;;
    esac
  done
  judge
  [ -z "$verdict" ] || status=$verdict
  return "$status"
}""".splitlines()


def _judge(job: Job) -> list[str]:
    """Count the ends of each role's tasks; enough of them end all the others."""
    lines = list(_COUNTING)
    for role in job.roles:
        if role.fails_at is not None:
            lines += [
                f'  if [ "$(many "^{role.name}-[0-9]*:[1-9]")" -ge {role.fails_at} ]; then',
                f'    verdict=$(sed -n "s/^{role.name}-[0-9]*:\\([1-9][0-9]*\\)$/\\1/p" "$ends" | '
                f"sed -n {role.fails_at}p)",
                "    stop",
                "    return 0",
                "  fi",
            ]
        if role.wins_at is not None:
            lines += [
                f'  if [ "$(many "^{role.name}-[0-9]*:0\\$")" -ge {role.wins_at} ]; then',
                "    verdict=0",
                "    stop",
                "    return 0",
                "  fi",
            ]
    return [*lines, "}"]


def _again(retries: int) -> list[str]:
    if not retries:
        return ["all_tasks"]
    limit = [f'  [ "$attempt" -le {retries} ] || exit "$status"'] if retries > 0 else []
    of = f" of {retries}" if retries > 0 else ""
    return [
        "attempt=0",
        "until all_tasks; do",
        "  attempt=$((attempt + 1))",
        *limit,
        f'  echo "started again, $attempt{of}" >&2',
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
                variables.append(f"CUDA_VISIBLE_DEVICES={','.join(map(str, mine)) or _NONE}")
            name = f"{role.name}-{index}"
            kept = f" >>{shlex.quote(record)}/{name}.log 2>&1" if record else ""
            box = _box(job, role, container) if container else ""
            ends = f' "$ends" {name}' if job.counts else ""
            lines += [
                f"  {' '.join(variables)} timeout {limit} "
                f'sh -c "$task" task "$role_{role.name}" "$$"{ends}{box}{kept} &',
                f'  pids="$pids $!:{name}"',
            ]
    return lines


def _box(job: Job, role: TaskRole, container: str) -> str:
    """The words that start a container; secrets are named there, their values inherited."""
    names = ["TASK_INDEX", *(secret.variable for secret in job.secrets)]
    if job.nodes > 1:
        names += ["CUDA_VISIBLE_DEVICES"]
        names += ["MASTER_PORT"] if job.distributed else []
    names += [_PAI_PORT] if wants_pai(job) else []
    # As on a cluster, the image's own entry point starts nothing.
    options = ["--rm", "--init", "--entrypoint=", "--network=host", f"--cpus={role.cpus}"]
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
    notes = left_out(job, "local")
    notes += pai_notes(job, names=False)
    notes += [f"after {name}: run that script first" for name in job.after]
    notes += [f"queue {job.queue}: this machine has none"] if job.queue else []
    notes += [] if container else unmounted(job)
    for role in job.roles:
        if role.image and not container:
            notes.append(
                f"role {role.name}: {role.image} is not used, the torch on the PATH is; "
                "podman and docker run images here"
            )
        if role.shm_asked and not container:
            notes.append(f"role {role.name}: shared memory is this machine's own /dev/shm")
        if not container and (role.cpus, role.memory_mb) != _DEFAULTS:
            notes.append(f"role {role.name}: cpus and memory_mb are no limits for plain processes")
        if role.gpus and job.nodes == 1:
            notes.append(f"role {role.name}: gpus: the task sees all GPUs of this machine")
        notes += [
            f"role {role.name}: port {port.name} is not opened: the machine's own are there"
            for port in role.ports
        ]
        if role.retries:
            notes.append(f"role {role.name}: retries: tasks are not started again one by one")
    return notes
