"""`python -m torchsmith.sources INTO CACHE < CHOICE.json`: bring one source tree, as a program.

A plan that is run calls it as the command of a fetch, so that bringing a source can be stopped,
logged and timed like everything else. Paths in the choice are relative to $PROJECT.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchsmith.errors import TorchsmithError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.fetch import fetch

# A log wants to know that it goes on, not every packet.
_EVERY_SECONDS = 5.0


class _Log:
    """Progress as a line now and then."""

    def __init__(self) -> None:
        self._told = 0.0

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        now = time.monotonic()
        if now - self._told < _EVERY_SECONDS:
            return
        self._told = now
        size = "" if done is None else f" {done / 1e6:.0f} MB"
        whole = "" if total is None else f" of {total / 1e6:.0f} MB"
        print(f"{what}{size}{whole}", flush=True)


def main() -> int:
    """Bring the source described on standard input; tell what proves which one it is."""
    into, cache = map(Path, sys.argv[1:3])
    choice = msgspec.json.decode(sys.stdin.buffer.read(), type=SourceChoice)
    if choice.path:
        project = Path(os.environ.get("PROJECT", "."))
        choice = replace(choice, path=str(project / choice.path))
    try:
        brought = fetch(choice, into, cache=cache, progress=_Log())
    except TorchsmithError as error:
        print(f"error: {error.message}", error.hint, sep="\n  ", file=sys.stderr)
        return error.exit_code
    print(f"{brought.kind} from {brought.location}")
    for name, value in brought.evidence.items():
        print(f"  {name}: {value}")
    for note in brought.notes:
        print(f"warning: {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
