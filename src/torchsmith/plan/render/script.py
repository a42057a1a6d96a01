"""A plan as one bash file that does the same with no torchsmith."""

from __future__ import annotations

import base64
import re
import shlex
import textwrap

from torchsmith.plan.models import Plan, Step

_PREAMBLE = r"""
set -euo pipefail

# Everything happens below this folder. A step that is done is not done again.
WORK="${WORK:-$PWD/torchsmith-work}"
PROJECT="${PROJECT:-$PWD}"
mkdir -p "$WORK/done"
WORK="$(cd "$WORK" && pwd)"
PROJECT="$(cd "$PROJECT" && pwd)"
export WORK PROJECT

# A C++ file of PyTorch takes up to 2.5 GB to compile: more jobs than memory end in "Killed".
if [ -z "${MAX_JOBS:-}" ]; then
  MAX_JOBS="$(nproc)"
  if [ -r /proc/meminfo ]; then
    fit="$(awk '/^MemAvailable/ { print int($2 / 2500000) }' /proc/meminfo)"
    if [ "$fit" -lt "$MAX_JOBS" ]; then MAX_JOBS="$fit"; fi
  fi
  if [ "$MAX_JOBS" -lt 1 ]; then MAX_JOBS=1; fi
fi
export MAX_JOBS

run() {
  local id="$1" key="$2" function="$3" title="$4"
  if [ -e "$WORK/done/$id.$key" ]; then
    echo "== $id: done before"
    return
  fi
  echo "== $id: $title"
  "$function"
  touch "$WORK/done/$id.$key"
}
"""


def _function_name(step: Step) -> str:
    return "step_" + re.sub(r"[^A-Za-z0-9]", "_", step.id)


def _value(value: str) -> str:
    return f'"$WORK"/{shlex.quote(value[2:])}' if value.startswith("@/") else shlex.quote(value)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 96, break_long_words=False)]


def _write_file(name: str, content: bytes) -> list[str]:
    folder = name.rpartition("/")[0]
    lines = [f'mkdir -p "$WORK"/{shlex.quote(folder)}'] if folder else []
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    plain = text.endswith("\n") and "\0" not in text and "\r" not in text
    if plain and "END_OF_FILE" not in text.splitlines():
        return [
            *lines,
            f"cat > \"$WORK\"/{shlex.quote(name)} <<'END_OF_FILE'",
            text + "END_OF_FILE",
        ]
    encoded = "\n".join(textwrap.wrap(base64.b64encode(content).decode(), 100))
    return [
        *lines,
        f"base64 -d > \"$WORK\"/{shlex.quote(name)} <<'END_OF_FILE'",
        f"{encoded}\nEND_OF_FILE",
    ]


def _step(step: Step) -> list[str]:
    lines = ["", *_comment(f"{step.title}." + (f" {step.why}." if step.why else ""))]
    lines.append(f"{_function_name(step)}() (")
    lines.append('  cd "$WORK"')
    for name in step.secrets:
        lines.append(f'  : "${{{name}:?must be set}}"')
    if step.path:
        folders = ":".join(f"$WORK/{folder}" for folder in step.path)
        lines.append(f'  export PATH="{folders}:$PATH"')
    lines += [f"  export {name}={_value(value)}" for name, value in step.env]
    if not step.commands:
        lines += [f'  echo "written: $WORK/{name}"' for name in step.inputs] or ["  true"]
    lines += [f"  {command}" for command in step.commands]
    lines.append(")")
    return lines


def render_script(plan: Plan, torchsmith: str) -> str:
    """Write the plan as bash. The same plan gives the same bytes."""
    names = ", ".join(
        f"torch {item.version} for Python {item.python}" for item in plan.variants[:4]
    )
    more = f" and {len(plan.variants) - 4} more" if len(plan.variants) > 4 else ""
    lines = [
        "#!/usr/bin/env bash",
        *_comment(f"{plan.name}: {names}{more}."),
        f"# Written by torchsmith {torchsmith}; needs no torchsmith.",
        "#",
        "#   bash THIS_FILE            do everything",
        "#   bash THIS_FILE --list     name the steps",
        "#   bash THIS_FILE STEP ...   do these only",
        "#",
        "# WORK=folder says where, MAX_JOBS=n how many compilers at once, ENGINE=podman which "
        "container engine.",
        _PREAMBLE.rstrip(),
    ]
    if plan.files:
        lines += ["", "write_files() {"]
        for name, content in plan.files.items():
            lines += _write_file(name, content)
        lines.append("}")
    for step in plan.steps:
        lines += _step(step)
    lines += ["", "one() {", '  case "$1" in']
    for step in plan.steps:
        call = f"run {shlex.quote(step.id)} {step.key[:16]} {_function_name(step)}"
        lines.append(f"    {shlex.quote(step.id)}) {call} {shlex.quote(step.title)} ;;")
    lines += [
        '    *) echo "no step is named $1; --list names them" >&2; exit 2 ;;',
        "  esac",
        "}",
        "",
        "all=(",
        *(f"  {shlex.quote(step.id)}" for step in plan.steps),
        ")",
        "",
        'if [ "${1:-}" = --list ]; then',
        "  printf '%s\\n' \"${all[@]}\"",
        "  exit 0",
        "fi",
        *(["write_files"] if plan.files else []),
        'if [ "$#" -gt 0 ]; then all=("$@"); fi',
        'for id in "${all[@]}"; do one "$id"; done',
        'echo "done: $WORK"',
    ]
    return "\n".join(lines) + "\n"
