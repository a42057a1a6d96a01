"""Lines that have pip install something, and keep what it took: pip's own report of each file."""

from __future__ import annotations

import re
import shlex

from torchsmith.plan.shell import sh

FIRST_REPORTING = "22.2"
_REPORT = re.compile(r"/packages-\d+\.json$")


def pip_install(
    python: str, folder: str, *words: str, reports: bool = True, number: int = 1, pattern: str = ""
) -> str:
    """A line that installs with this interpreter and, where its pip can, reports into a folder.

    It is the step's `number`-th; `pattern` is a word that the shell is to expand.
    """
    line = [python, "-m", "pip", "install", "--quiet"]
    if reports:
        line += ["--report", f"{folder}/packages-{number}.json"]
    return " ".join(filter(None, [sh(*line, *words), pattern]))


def reported(line: str) -> tuple[str, list[str]] | None:
    """Of a line by `pip_install`: where it reports to, and what it asks pip for."""
    if " -m pip install --quiet --report " not in line:
        return None
    words = shlex.split(line)
    return (words[6], words[7:]) if _REPORT.search(words[6]) else None
