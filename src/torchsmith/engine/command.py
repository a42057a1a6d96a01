"""The command of a run, kept beside its logs: so the portal can resume a stopped run."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.engine.disk import room
from torchsmith.engine.events import Event, RunStarted
from torchsmith.engine.journal import Journal
from torchsmith.errors import HostError, UsageError
from torchsmith.foreign import decode
from torchsmith.owners import read_plain, who_else_writes
from torchsmith.programs import detach

_FILE = "command.json"
_OUTPUT = "resumed.log"
_LONGEST = 1 << 20
_PATIENCE_S = 120.0
_POLL_S = 0.1
# The run that was just begun is among the newest.
_MANY = 20
_UNDER_WAY = ("running", "waiting")


class Command(Struct, frozen=True):
    """The words of a command, the folder and the machine it ran in."""

    words: tuple[str, ...]
    folder: str
    node: str


def this_command() -> tuple[str, ...]:
    """The command of this process, as Python got it."""
    return (sys.executable, *sys.orig_argv[1:])


class KeptCommand:
    """Writes down the command of a run; only its owner can read it."""

    def __init__(self, logs: Path, words: Sequence[str]) -> None:
        self._logs = logs
        self._words = tuple(words)

    def heed(self, event: Event) -> None:
        """Write the command down when a run begins."""
        if not isinstance(event, RunStarted) or not self._words:
            return
        command = Command(self._words, str(Path.cwd()), platform.node())
        folder = self._logs / event.run
        with room(self._logs.parent):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(command))


def kept_command(logs: Path) -> Command | None:
    """The command of a run, if we started it on this machine and its folder still exists."""
    file = logs / _FILE
    try:
        if who_else_writes(file):
            return None
        command = decode(read_plain(file, _LONGEST), Command)
    except (OSError, msgspec.MsgspecError):
        return None
    here = command.node == platform.node() and Path(command.folder).is_dir()
    return command if here and command.words else None


def resume(root: Path, journal: Journal, run: str) -> str:
    """Start the command of a run again; return the id of the new run."""
    before = journal.run(run)
    command = kept_command(root / "logs" / run) if before is not None else None
    if before is None or before.status in (*_UNDER_WAY, "done") or command is None:
        raise UsageError(
            f"{run} cannot be resumed from here",
            "Run its command again where it was run: it goes on by itself.",
        )
    known = {item.id for item in journal.runs(_MANY)}
    with (root / "logs" / run / _OUTPUT).open("w+b") as log:
        environment = {**os.environ, "TORCHSMITH_STORE": str(root)}
        process = detach(command.words, log, env=environment, folder=command.folder)
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            ended = process.poll()
            for item in journal.runs(_MANY):
                if item.id not in known and item.plan == before.plan:
                    return item.id
            if ended is not None:
                log.seek(0)
                text = log.read(_LONGEST).decode(errors="replace").strip()
                raise HostError(f"{run} does not go on: {text or f'exit status {ended}'}")
            time.sleep(_POLL_S)
    raise HostError(f"{run} has started again and runs no step yet", "Look again in a while.")
