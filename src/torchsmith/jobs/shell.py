"""Lines that scripts of several engines share: secrets, and an environment made of wheels."""

from __future__ import annotations

import shlex

from torchsmith.jobs.models import Job

# What runs a task's commands on every engine, as OpenPAI does: the first that fails is the last,
# also in a pipe. https://github.com/microsoft/openpai-runtime/blob/master/src/runtime.d/user.sh
STRICT = "-eo pipefail"
BASH = f"bash {STRICT}"
SECRETS = '"${TORCHSMITH_SECRETS:-$HOME/.config/torchsmith/secrets}"'


def secret_lines(job: Job) -> list[str]:
    """Take secrets from the environment of whoever starts the script, or from their files."""
    lines: list[str] = []
    for secret in job.secrets:
        name = secret.variable
        lines += [
            f'if [ -z "${{{name}:-}}" ]; then {name}=$(cat {SECRETS}/{secret.reference}); fi',
            f"export {name}",
        ]
    return lines


def environment_lines(job: Job) -> list[str]:
    """Enter the job's Python environment; make it first where it is missing or half made."""
    if not job.environment:
        return []
    # Absolute, since commands may change the folder.
    home = shlex.quote(job.environment)
    lines = [f"environment=$(realpath -m {home})"]
    if job.wheels:
        lines += [
            'if ! [ -e "$environment/.complete" ]; then',
            '  python3 -m venv --clear "$environment"',
            f'  "$environment/bin/python" -m pip install --quiet {shlex.quote(job.wheels)}/*.whl',
            '  touch "$environment/.complete"',
            "fi",
        ]
    return [*lines, 'export VIRTUAL_ENV="$environment" PATH="$environment/bin:$PATH"']


def end_of(text: str) -> str:
    """A word that ends a here-document of this text and nothing before."""
    end = "END"
    while end in text.splitlines():
        end += "_"
    return end


def held(name: str, text: str) -> list[str]:
    """Bash lines that put a text of several lines into a variable, as it is."""
    end = end_of(text)
    return [f"read -r -d '' {name} <<'{end}' || true", *text.splitlines(), end]
