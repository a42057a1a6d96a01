"""Running a program that changes a file, with an answer for people when it cannot."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from torchsmith.errors import OutputError

# Seconds: the largest library of torch takes a few.
_LIMIT = 900


def change(words: Sequence[str], file: Path, hint: str) -> None:
    """Have a program change a file; what it complains of is told."""
    try:
        done = subprocess.run(
            [*words, str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        raise OutputError(
            f"{Path(words[0]).name} did not end in {_LIMIT} s with {file.name}", hint
        ) from None
    except OSError as error:
        raise OutputError(f"{words[0]} cannot be run: {error.strerror}", hint) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise OutputError(f"{Path(words[0]).name} cannot change {file.name}: {said}", hint)
