"""A job as an sbatch script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchsmith.errors import UsageError
from torchsmith.jobs.launch import (
    STRICT,
    Rendezvous,
    environment,
    environment_lines,
    exports,
    heredoc,
    left_out,
    only_folders,
    pai_notes,
    secret_lines,
    task_lines,
    unmounted,
    wants_pai,
)
from torchsmith.jobs.models import Job, Mount, Rendering, TaskRole, rendering

# Whether a job ran, and how it and its tasks ended, once Slurm has forgotten it. A job that is
# started again begins with a clean record; its output goes on. See `record`.
_RECORD = """\
mkdir -p "$record"
rm -f "$record"/*.exit "$record/ended"
echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID} $(date +%s)" >"$record/.started"
mv "$record/.started" "$record/started"
ended() {
  echo "$1 $(date +%s)" >"$record/.ended"
  mv "$record/.ended" "$record/ended"
}
trap 'ended "$?"' EXIT
""".splitlines()
_TASK = """\
# shellcheck disable=SC2016
task='code=0; bash -c "$1" || code=$?; echo "$code" >"$0-$SLURM_PROCID.exit"; exit "$code"'
""".splitlines()
# Steps end the job as OpenPAI's roles do: with the first role that has as many failed tasks as it
# bears, or as many that succeeded as are enough. Who is still at it then is ended.
_WATCH = """\
many() { # ROLE PATTERN: how many of its tasks ended so
  local count=0 file
  # A folder that was written to is read again, also where it is of another machine.
  : >"$record/.look"
  for file in "$record/$1"-*.exit; do
    [ -e "$file" ] && grep -q "$2" "$file" && count=$((count + 1))
  done
  echo "$count"
}
over=""
while [ -z "$over" ]; do
  sleep 1
  over=yes
  for index in "${!steps[@]}"; do
    role=${roles[index]}
    well=$(many "$role" '^0$')
    badly=$(many "$role" '[1-9]')
    code=${codes[index]:-}
    if [ -z "$code" ] && ! kill -0 "${steps[index]}" 2>/dev/null; then
      code=0
      wait "${steps[index]}" || code=$?
      codes[index]=$code
    fi
    case $code in
      "") over="" ;;
      0) well=${tasks[index]} ;;
      # Whoever told no end was killed.
      *) badly=$((tasks[index] - well)) ;;
    esac
    if [ "${fails_at[index]}" -gt 0 ] && [ "$badly" -ge "${fails_at[index]}" ]; then
      status=$(cat "$record/$role"-*.exit 2>/dev/null | grep -m 1 '[1-9]' || echo "${code:-1}")
      over=yes
      break
    fi
    if [ "${wins_at[index]}" -gt 0 ] && [ "$well" -ge "${wins_at[index]}" ]; then
      over=yes
      break
    fi
  done
done
kill "${steps[@]}" 2>/dev/null || true
wait || true
""".splitlines()

_MEET = Rendezvous('"$MASTER_ADDR"', '"$MASTER_PORT"', "SLURM_PROCID")


def render(job: Job) -> Rendering:
    """An sbatch script."""
    return rendering(job, "sbatch", script(job), _notes(job))


def script(job: Job, record: str = "") -> str:
    """The script of one job; in `record`, a folder all nodes see, it keeps output and ends."""
    only_folders(job, "Slurm")
    if job.slurm.array and len(job.roles) > 1:
        raise UsageError(
            f"job {job.name}: Slurm has no arrays of jobs with several roles",
            "Leave out slurm.array, or give the job one role.",
        )
    bound = [
        f"{_place(mount)}:{mount.at}" + (":ro" if mount.read_only else "") for mount in job.mounts
    ]
    lines = ["#!/bin/bash", *_directives(job), "", "set -euo pipefail"]
    watched = _watched(job)
    if record or watched:
        bound += ["$record:$record"]
    if record:
        lines += [f"record={shlex.quote(record)}${{SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}}"]
        lines += [*_RECORD, *_TASK]
    elif watched:
        lines += [
            "# Each task tells its end in this folder, which all nodes have to see.",
            'record="$SLURM_SUBMIT_DIR/.$SLURM_JOB_NAME-$SLURM_JOB_ID"',
            'mkdir -p "$record"',
            'rm -f "$record"/*.exit',
            "trap 'rm -rf \"$record\"' EXIT",
            *_TASK,
        ]
    if job.slurm.modules:
        lines.append(f"module load {shlex.join(job.slurm.modules)}")
    lines += secret_lines(job)
    lines += environment_lines(job)
    lines += [f'mkdir -p "{_place(mount)}"' for mount in job.mounts if not mount.read_only]
    if job.distributed and job.nodes > 1:
        first = "SLURM_JOB_NODELIST" + ("_HET_GROUP_0" if len(job.roles) > 1 else "")
        lines += [
            "# The processes meet on the first node; each job has a port of its own there.",
            f'MASTER_ADDR=$(scontrol show hostnames "${first}" | head -n 1)',
            "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            "export MASTER_ADDR MASTER_PORT",
        ]
    lines += _openpai(job)
    for role in job.roles:
        env = environment(job, role)
        # Without an image the folders are where they are; their alphabet needs no more quoting.
        places = {} if role.image else {mount.variable: _place(mount) for mount in job.mounts}
        settings = [f'export {name}="{place}"' for name, place in places.items()]
        settings += exports({name: value for name, value in env.items() if name not in places})
        lines_of_task = task_lines(
            job, role, "slurm", _MEET, _host, base=_PAI_PORT, settings=settings
        )
        text = "\n".join((f"set {STRICT}", *lines_of_task))
        lines += ["", *heredoc(f"role_{role.name}", text)]
    lines += ["", "status=0", *_steps(job, bound, record or watched)]
    if job.retries:
        # The bare number of an array's last task is that of the whole array.
        mine = "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.slurm.array else "$SLURM_JOB_ID"
        again = (
            f' && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.retries} ]' if job.retries > 0 else ""
        )
        lines += [f'if [ "$status" -ne 0 ]{again}; then', f'  scontrol requeue "{mine}"', "fi"]
    return "\n".join([*lines, 'exit "$status"', ""])


def _directives(job: Job) -> list[str]:
    options = [f"--job-name={job.name}"]
    if job.slurm.array:
        options += [f"--array={job.slurm.array}", "--output=%x-%A_%a.out"]
    else:
        options.append("--output=%x-%j.out")
    options.append("--requeue" if job.retries else "--no-requeue")
    lines = [f"#SBATCH {option}" for option in options]
    for index, role in enumerate(job.roles):
        lines += ["#SBATCH hetjob"] if index else []
        lines += [f"#SBATCH {option}" for option in _resources(job, role)]
    return lines


def _resources(job: Job, role: TaskRole) -> list[str]:
    slurm = job.slurm
    kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
    if job.distributed or role.tasks == 1:
        # torchrun starts the processes of a node: Slurm sees one task on each.
        options = [f"--nodes={role.tasks}", "--ntasks-per-node=1", f"--mem={role.memory_mb}M"]
        options += [f"--gres=gpu:{kind}{role.gpus}"] if role.gpus else []
    else:
        options = [f"--ntasks={role.tasks}", f"--mem-per-cpu={-(-role.memory_mb // role.cpus)}M"]
        options += [f"--gpus-per-task={kind}{role.gpus}"] if role.gpus else []
    options.append(f"--cpus-per-task={role.cpus}")
    if job.seconds is not None:
        options.append(f"--time={_time(job.seconds)}")
    named = (
        ("partition", job.queue),
        ("account", slurm.account),
        ("qos", slurm.qos),
        ("constraint", slurm.constraint),
    )
    return [*options, *(f"--{name}={value}" for name, value in named if value)]


def _time(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def _watched(job: Job) -> bool:
    """Whether the script has to count how its tasks end: a step alone would not end the job."""
    return (
        len(job.roles) > 1
        or job.roles[0].wins_at not in (None, job.roles[0].tasks)
        or (job.roles[0].fails_at or 1) > 1
    )


def _steps(job: Job, bound: list[str], recorded: str | bool) -> list[str]:
    """Start every role; one alone in the foreground, several side by side."""
    if not _watched(job):
        (role,) = job.roles
        forgiven = ["status=0"] if role.min_failed == -1 else []
        return [f"{_srun(job, role, bound, recorded)} || status=$?", *forgiven]
    several = len(job.roles) > 1
    lines = ["steps=() codes=()"]
    for index, role in enumerate(job.roles):
        group = f" --het-group={index}" if several else ""
        lines += [f"{_srun(job, role, bound, recorded, group)} &", 'steps+=("$!")']
    table: dict[str, Sequence[object]] = {
        "roles": [role.name for role in job.roles],
        "tasks": [role.tasks for role in job.roles],
        "fails_at": [role.fails_at or 0 for role in job.roles],
        "wins_at": [role.wins_at or 0 for role in job.roles],
    }
    lines += [f"{name}=({' '.join(map(str, row))})" for name, row in table.items()]
    return [*lines, *_WATCH]


_PAI_PORT = "PAI_FIRST_PORT"


def _host(role: TaskRole, index: int) -> str:
    """Where a task is: the script found it out before."""
    return f"$PAI_HOST_IP_{role.name}_{index}"


def _openpai(job: Job) -> list[str]:
    """Find out on which node each task will be, as OpenPAI tells its tasks."""
    if not wants_pai(job):
        return []
    lines = ["", f"export {_PAI_PORT}=$((10000 + SLURM_JOB_ID % 90 * 100))"]
    for index, role in enumerate(job.roles):
        group = f" --het-group={index}" if len(job.roles) > 1 else ""
        lines += [
            f'while read -r index host; do export "PAI_HOST_IP_{role.name}_${{index%:}}=$host"; '
            f"done < <(srun{group} --cpus-per-task={role.cpus} --label hostname)"
        ]
    return lines


def _srun(job: Job, role: TaskRole, bound: list[str], recorded: str | bool, group: str = "") -> str:
    """The step of a role; `told`: its tasks tell their ends, and write into the folder of these."""
    ends = job.distributed or role.min_failed in (None, 1)
    # Since Slurm 22.05 a step no longer inherits the job's CPUs per task.
    command = f"srun{group} --cpus-per-task={role.cpus} --kill-on-bad-exit={int(ends)}"
    if isinstance(recorded, str) and recorded:
        command += f' --open-mode=append --output="$record/{role.name}-%t.log"'
    if role.image and job.slurm.container == "pyxis":
        command += f" --container-image={shlex.quote(_enroot(role.image))}"
        mounts = ",".join(bound)
        command += f' --container-mounts="{mounts}"' if mounts else ""
    elif role.image:
        command += " apptainer exec" + (" --nv" if role.gpus else "")
        command += "".join(f' --bind "{item}"' for item in bound)
        command += f" {shlex.quote(f'docker://{role.image}')}"
    if recorded:
        return f'{command} sh -c "$task" "$record/{role.name}" "$role_{role.name}"'
    return f'{command} bash -c "$role_{role.name}"'


def _enroot(image: str) -> str:
    """The image as enroot writes it: a # behind the registry."""
    registry, slash, rest = image.partition("/")
    named = slash and ("." in registry or ":" in registry or registry == "localhost")
    return f"{registry}#{rest}" if named else image


def _place(mount: Mount) -> str:
    """Where a folder is on the nodes: one beside the job is where it was submitted."""
    beside = "" if mount.source.startswith("/") else "$SLURM_SUBMIT_DIR/"
    return f"{beside}{mount.source}"


def _notes(job: Job) -> list[str]:
    notes = left_out(job, "slurm")
    notes += pai_notes(job, names=True)
    notes += [] if all(role.image for role in job.roles) else unmounted(job)
    for role in job.roles:
        if role.image and job.slurm.container == "apptainer":
            notes.append(
                f"role {role.name}: apptainer starts it in the folder it is submitted from, not in "
                "the image's own"
            )
        if role.shm_asked:
            notes.append(f"role {role.name}: shared memory is the node's own /dev/shm under Slurm")
        notes += [
            f"role {role.name}: Slurm reserves no ports, so {port.name} is not opened"
            for port in role.ports
        ]
        if role.retries:
            notes.append(f"role {role.name}: retries: Slurm starts jobs again, not single tasks")
    return notes


def submission(jobs: Sequence[Job]) -> str:
    """The script that submits jobs in order, each once those before it succeeded."""
    known = {job.name: f"job_{index}" for index, job in enumerate(jobs)}
    lines = [
        "#!/bin/bash",
        "# Submits the jobs in order, each once those before it succeeded.",
        "set -euo pipefail",
        "",
    ]
    for job in in_order(jobs):
        before = ":".join(f"${{{known[name]}}}" for name in job.after)
        depends = f' --dependency="afterok:{before}"' if before else ""
        lines += [
            f"{known[job.name]}=$(sbatch --parsable{depends} {job.name}.sbatch)",
            f'echo "{job.name}: ${{{known[job.name]}}}"',
        ]
    return "\n".join([*lines, ""])


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each behind those it waits for."""
    left = {job.name: job for job in jobs}
    done: list[Job] = []
    for job in jobs:
        for name in job.after:
            if name not in left:
                raise UsageError(
                    f"job {job.name} comes after {name}, which is not rendered with it",
                    f"Rendered are: {', '.join(left)}.",
                )
    while left:
        ready = [job for job in left.values() if not left.keys() & set(job.after)]
        if not ready:
            raise UsageError(f"the jobs {', '.join(left)} wait for each other", "Mend `after`.")
        done += ready
        for job in ready:
            del left[job.name]
    return done
