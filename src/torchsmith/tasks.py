"""A task of a plan run as a program: `python -m MODULE < ARGUMENTS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

from torchsmith.errors import TorchsmithError

Arguments = TypeVar("Arguments", bound=msgspec.Struct)


def run_task(kind: type[Arguments], work: Callable[[Arguments], int | None]) -> None:
    """Do what standard input says, as JSON, and end with the exit code that tells how it went."""
    try:
        code = work(msgspec.json.decode(sys.stdin.buffer.read(), type=kind))
    except TorchsmithError as error:
        print(f"error: {error.message}\n  {error.hint}", file=sys.stderr, flush=True)
        code = error.exit_code
    except KeyboardInterrupt:
        # The build says that it was stopped; a traceback in the log says nothing more.
        code = 130
    sys.exit(code or 0)
