"""Shell lines: quoting, tests that end a step, pip.

A step's commands run under `set -eu`, one after the other in one shell. A failure inside
`a && b` does not end such a shell unless it is the last of the chain: so each command is a line of
its own.
"""

from __future__ import annotations

import functools
import re
import shlex


def sh(*words: str) -> str:
    """Join words into one command, each quoted where it must be."""
    return shlex.join(words)


def unless(test: str, complaint: str) -> str:
    """A test that ends the step with a sentence when it fails."""
    return f"{test} || {{ echo {shlex.quote(complaint)} >&2; exit 1; }}"


def needs_program(name: str, cure: str) -> str:
    """End the step with a sentence, not with `command not found`, where a program is missing."""
    return unless(f"command -v {shlex.quote(name)} >/dev/null", f"{name} is missing: {cure}")


def in_work(path: str) -> str:
    """A path of the work folder, absolute, as a shell word."""
    return f'"$WORK"/{shlex.quote(path)}'


def in_project(path: str) -> str:
    """A path as the recipe writes it, relative to the recipe's folder, as a shell word."""
    return shlex.quote(path) if path.startswith("/") else f'"$PROJECT"/{shlex.quote(path)}'


def one_command(line: str) -> str:
    """A line that a person wrote as one command that ends with the line.

    Joined with other commands, a comment would hide those behind it, and an open quote or a
    backslash at the end would swallow the next one.
    """
    return f"eval {shlex.quote(line)}" if _OPEN_END.search(line) or _is_open(line) else line


# A comment; a backslash at the end; a line that Apptainer takes for a new section.
_OPEN_END = re.compile(r"(?:^|[\s;&|()])#|\\$|^\s*%")


@functools.cache
def _is_open(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def export_unless_set(name: str, value: str) -> str:
    """Set a variable for programs, unless the person who runs the script has set it."""
    if re.fullmatch(r"[\w./+-]*", value, re.ASCII):
        return f'export {name}="${{{name}:-{value}}}"'
    # In such an expansion shells disagree on what quotes mean.
    return f'[ -n "${{{name}:-}}" ] || {name}={shlex.quote(value)}; export {name}'


def plain_name(text: str) -> str:
    """A file name that needs no quoting anywhere: shell, Dockerfile, YAML."""
    return re.sub(r"[^A-Za-z0-9._+-]", "_", text).lstrip("-") or "_"


def fresh_copy(source: str, folder: str) -> str:
    """Copy a source tree to build in; a stopped build keeps its tree.

    The copy gets its name when it is complete, so no build goes on in half a copy.
    """
    return (
        f'if [ -z "${{TORCHSMITH_RESUME:-}}" ] || ! [ -d {folder} ]; then '
        f"rm -rf {folder} {folder}.part; mkdir -p {folder}.part; "
        f"cp -a {source}/. {folder}.part; mv {folder}.part {folder}; fi"
    )


def ours(module: str, *words: str) -> str:
    """A command that runs a module of torchsmith; `words` are shell words already.

    Renderings for people without torchsmith replace it by a plain command.
    """
    return " ".join([f"{OURS} -m torchsmith.{module}", *words])


OURS = '"$TORCHSMITH_PYTHON" -P'


def compressed(wheel: str) -> str:
    """Compress the wheels that match a pattern, on every core and always to the same bytes."""
    return ours("package", f'"$WORK"/{wheel}')


FIRST_REPORTING = "22.2"
_PIP_REPORT = re.compile(r"/packages-\d+\.json$")


def pip_install(
    python: str, folder: str, *words: str, reports: bool = True, number: int = 1, pattern: str = ""
) -> str:
    """A line that installs with this interpreter and, if its pip can, reports into a folder.

    It is the `number`-th of its step; the shell expands the word `pattern`.
    """
    line = [python, "-m", "pip", "install", "--quiet"]
    if reports:
        line += ["--report", f"{folder}/packages-{number}.json"]
    return " ".join(filter(None, [sh(*line, *words), pattern]))


def reported(line: str) -> tuple[str, list[str]] | None:
    """The report of a line by `pip_install`, and the words that name what to install."""
    if " -m pip install --quiet --report " not in line:
        return None
    words = shlex.split(line)
    return (words[6], words[7:]) if _PIP_REPORT.search(words[6]) else None
