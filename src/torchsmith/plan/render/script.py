"""A plan as one bash file that does the same with no torchsmith."""

from __future__ import annotations

import base64
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence

from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.instructions import comment, sentences
from torchsmith.plan.render.stages import build_packages
from torchsmith.plan.render.twins import twin
from torchsmith.plan.shell import in_project, in_work

_PREAMBLE = r"""
# Every step is a function in a subshell: what it exports and where it goes stays in it. $ORIGIN is
# the loader's word, not the shell's.
# shellcheck disable=SC2016,SC2030,SC2031
set -euo pipefail

usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
}

# Everything happens below this folder. A step that is done is not done again.
work() {
  WORK="${WORK:-$PWD/torchsmith-work}"
  PROJECT="${PROJECT:-$PWD}"
  mkdir -p "$WORK/done"
  WORK="$(cd "$WORK" && pwd)"
  PROJECT="$(cd "$PROJECT" && pwd)"
  export WORK PROJECT
}

# A C++ file of PyTorch takes up to 2.5 GB to compile: more jobs than memory end in "Killed".
jobs_that_fit() {
  local cores fit
  cores="$(nproc)"
  fit="$(awk '/^MemAvailable/ { print int($2 / 2500000) }' /proc/meminfo 2>/dev/null || true)"
  if [ -n "$fit" ] && [ "$fit" -lt "$cores" ]; then cores="$fit"; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}

# One number for the content of files and folders that are not part of this script.
content_of() {
  local path
  for path in "$@"; do
    if [ ! -e "$path" ]; then
      echo "there is no $path: PROJECT must be the folder the recipe lies in" >&2
      exit 1
    fi
    find "$path" -type f -print0 | sort -z | xargs -0 -r sha256sum
  done | sha256sum | cut -c 1-16
}

# What a step is made of: its own key, and the stamps of the steps it needs.
need() {
  if [ ! -e "$WORK/done/$1" ]; then
    echo "$id needs $1, which is not done: run that first, or all with no step named" >&2
    exit 1
  fi
  stamp="$stamp $(sha256sum < "$WORK/done/$1" | cut -c 1-16)"
}

run() {
  local title="$1"
  shift
  if [ -e "$WORK/done/$id" ] && [ "$(cat "$WORK/done/$id")" = "$stamp" ]; then
    echo "== $id: done before"
    return
  fi
  echo "== $id: $title"
  rm -f "$WORK/done/$id"
  if [ -z "$image" ]; then "step_$id"; else in_container "$@"; fi
  echo "$stamp" > "$WORK/done/$id"
}
"""
_IN_CONTAINER = r"""
# The image that a step runs in, and the step that makes it.
inside() {
  if [ -z "${HERE:-}" ]; then
    need "$1"
    image="$2"
  fi
}

# A step where it belongs: in a container that sees $WORK and $PROJECT, and no more of this machine.
in_container() {
  local mine=()
  mkdir -p "$WORK/home"
  # Files are the caller's, as they are with podman.
  if [ "${ENGINE:-docker}" = docker ]; then mine=(--user "$(id -u):$(id -g)"); fi
  "${ENGINE:-docker}" run --rm "${mine[@]}" "$@" \
    --volume "$WORK:$WORK" --volume "$PROJECT:$PROJECT" \
    --env WORK --env PROJECT --env MAX_JOBS --env HOME="$WORK/home" "$image" \
    bash -euo pipefail -c "$(declare -f jobs_that_fit "step_$id"); step_$id"
}
"""


def _value(value: str) -> str:
    return in_work(value[2:]) if value.startswith("@/") else shlex.quote(value)


def _write_file(name: str, content: bytes) -> list[str]:
    folder = name.rpartition("/")[0]
    lines = [f"mkdir -p {in_work(folder)}"] if folder else []
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    plain = text.endswith("\n") and not re.search(r"[\0\r]", text)
    if plain and "END_OF_FILE" not in text.split("\n"):
        return [*lines, f"cat > {in_work(name)} <<'END_OF_FILE'", text + "END_OF_FILE"]
    encoded = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 100))
    return [
        *lines,
        f"base64 -d > {in_work(name)} <<'END_OF_FILE'",
        f"{encoded}\nEND_OF_FILE",
    ]


def _step(step: Step, commands: Sequence[str]) -> list[str]:
    lines = ["", *comment(sentences(step.title, step.why)), f"step_{step.id}() ("]
    lines.append('  cd "$WORK"')
    lines += [f'  : "${{{name}:?must be set}}"' for name in step.secrets]
    if step.path:
        folders = ":".join(f"$WORK/{folder}" for folder in step.path)
        lines.append(f'  export PATH="{folders}:$PATH"')
    lines += [f"  export {name}={_value(value)}" for name, value in step.env]
    if step.kind == "compile":
        lines.append('  export MAX_JOBS="${MAX_JOBS:-$(jobs_that_fit)}"')
    if not commands:
        lines += [f'  echo "written: "{in_work(name)}' for name in step.inputs] or ["  true"]
    lines += [f"  {command}" for command in commands]
    lines.append(")")
    return lines


def _case(step: Step) -> list[str]:
    lines = [f"    {step.id})", f"      stamp={step.key[:16]}"]
    if step.kind == "base":
        lines.append('      if [ -n "${HERE:-}" ]; then return; fi')
    if step.reads:
        paths = " ".join(map(in_project, step.reads))
        lines.append(f'      stamp="$stamp $(content_of {paths})"')
    place = step.place
    lines += [f"      need {need}" for need in step.needs if need != place.base]
    options: list[str] = []
    if place.inside:
        lines.append(
            f'      if [ -z "${{HERE:-}}" ]; then need {place.base}; image={place.image}; fi'
        )
        options = ["--network=none"] if step.offline else []
        options += [f"--env {name}" for name in step.secrets]
    return [*lines, f"      run {' '.join([shlex.quote(step.title), *options])}", "      ;;"]


def _header(plan: Plan, commands: Iterable[str], torchsmith: str) -> Iterable[str]:
    names = ", ".join(
        f"torch {item.version} for Python {item.python}" for item in plan.variants[:4]
    )
    more = f" and {len(plan.variants) - 4} more" if len(plan.variants) > 4 else ""
    yield from comment(f"{plan.name}: {names}{more}.")
    yield f"# Written by torchsmith {torchsmith}; needs no torchsmith."
    yield "#"
    yield "#   bash THIS_FILE            do everything"
    yield "#   bash THIS_FILE --list     name the steps"
    yield "#   bash THIS_FILE STEP ...   do these only"
    yield "#"
    packages = {
        item
        for one in plan.variants
        if not one.container and any(step.kind == "compile" for step in plan.of(one.variant))
        for item in build_packages(one)
    }
    if packages:
        names = " ".join(sorted(packages))
        yield from comment(
            f"System packages it needs, by Debian's names: sudo apt-get install {names}"
        )
        yield "#"
    yield "# WORK      where everything happens (./torchsmith-work)"
    if any(step.reads for step in plan.steps):
        yield "# PROJECT   the folder the recipe lies in (the current one)"
    yield "# MAX_JOBS  how many compilers at once (as many as cores and memory allow)"
    if any(step.kind in ("base", "image") for step in plan.steps):
        yield "# ENGINE    docker or podman (docker)"
    if places := sorted({step.place.system for step in plan.steps if step.place.inside}):
        yield f"# HERE      1: this machine is {' and '.join(places)}; containers are not needed"
    if any("DEBIAN_MIRROR" in command for command in commands):
        yield "# DEBIAN_MIRROR  where Debian's source packages come from"
    secrets = sorted({name for step in plan.steps for name in step.secrets})
    if secrets:
        yield f"# To publish, these must be set: {', '.join(secrets)}"


def render_script(plan: Plan, torchsmith: str) -> str:
    """Write the plan as bash. The same plan gives the same bytes."""
    variants = {item.variant: item for item in plan.variants}
    twins = {step.id: twin(step, variants.get(step.variant)) for step in plan.steps}
    files = {**plan.files}
    for item in twins.values():
        files |= item.files
    commands = [command for item in twins.values() for command in item.commands]
    lines = ["#!/usr/bin/env bash", *_header(plan, commands, torchsmith), _PREAMBLE.rstrip()]
    if plan.inside:
        lines.append(_IN_CONTAINER.rstrip())
    if files:
        lines += ["", "write_files() {"]
        for name, content in files.items():
            lines += _write_file(name, content)
        lines.append("}")
    for step in plan.steps:
        lines += _step(step, twins[step.id].commands)
    lines += ["", "one() {", '  local id="$1" stamp image=""', '  case "$id" in']
    for step in plan.steps:
        lines += _case(step)
    lines += [
        '    *) echo "no step is named $id; --list names them" >&2; exit 2 ;;',
        "  esac",
        "}",
        "",
        "all=(",
        *(f"  {step.id}" for step in plan.steps),
        ")",
        "",
        'case "${1:-}" in',
        "  --list) printf '%s\\n' \"${all[@]}\"; exit 0 ;;",
        "  -h | --help) usage; exit 0 ;;",
        '  -*) echo "$1 is no option; --help names them" >&2; exit 2 ;;',
        "esac",
        "work",
        *(["write_files"] if files else []),
        'if [ "$#" -gt 0 ]; then all=("$@"); fi',
        'for id in "${all[@]}"; do one "$id"; done',
        'echo "done: $WORK"',
    ]
    return "\n".join(lines) + "\n"
