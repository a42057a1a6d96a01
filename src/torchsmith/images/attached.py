"""A container in front of a person: its terminal is theirs, and it ends when they do.

What it prints goes straight to where ours goes. A guard, a small shell of its own session, takes
the container away when we are gone, also if we are killed: there is one way out, not two.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchsmith.diagnose.diagnose import diagnose
from torchsmith.engine.process import Stop
from torchsmith.errors import NoContainerToolError
from torchsmith.images.starting import shown
from torchsmith.images.tools import ContainerTool

# Lines of a program that failed: enough to know its failure again.
_LINES = 400
_TICK_S = 0.1
# To a client that was told to stop at a terminal, where it passes no signal on.
_GRACE_S = 10.0

# It is told the client's number, then `done` when that has ended; silence means we are dead.
_GUARD = """
trap '' INT TERM HUP
read -r client || exit 0
read -r word
if [ "$word" != done ]; then
  kill -TERM "$client"
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    kill -0 "$client" || break
    sleep 0.1
  done
  kill -KILL "$client"
fi
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container's program ended; `lines` are its last ones if it ended badly."""

    code: int
    lines: tuple[str, ...] = ()


def run_attached(tool: ContainerTool, words: Sequence[str], *, terminal: bool) -> Ended:
    """Run the words of a `run` to their end; afterwards there is no such container."""
    name = f"torchsmith-{secrets.token_hex(6)}"
    command = tool.command(words[0], "--name", name, *words[1:])
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD, "guard", *tool.command("rm", "--force", name)],
        env=tool.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    assert guard.stdin is not None
    stop = Stop()
    with guard, stop.on_signals():
        client = _start(command, tool, words, terminal)
        guard.stdin.write(f"{client.pid}\n".encode())
        code = _wait(client, stop, terminal)
        lines: tuple[str, ...] = ()
        if code and not stop.signal:
            lines = _last_lines(tool, name)
        guard.stdin.write(b"done\n")
    return Ended(code, lines)


def _start(
    command: list[str], tool: ContainerTool, words: Sequence[str], terminal: bool
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=tool.environ,
            stdin=None if "--interactive" in words else subprocess.DEVNULL,
            # At a terminal it has to be in the foreground; elsewhere a Ctrl-C would reach the
            # program twice, once through us.
            start_new_session=not terminal,
        )
    except OSError as error:
        raise NoContainerToolError(
            f"{tool.name} cannot be started: {error.strerror}", "Is it installed?"
        ) from None


def _wait(client: subprocess.Popen[bytes], stop: Stop, terminal: bool) -> int:
    """Wait for the program, and pass signals on to it; the second one is not a request."""
    passed_on = False
    deadline = float("inf")
    while True:
        try:
            code = client.wait(_TICK_S)
            # As a shell would report a client that was ended by a signal.
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            pass
        if stop.signal and not passed_on:
            passed_on = True
            client.send_signal(stop.signal)
            deadline = time.monotonic() + _GRACE_S if terminal else deadline
        elif stop.at_once or time.monotonic() > deadline:
            client.send_signal(signal.SIGKILL)


def _last_lines(tool: ContainerTool, name: str) -> tuple[str, ...]:
    answer = tool.try_("logs", "--tail", str(_LINES), name)
    return tuple(f"{answer.out}\n{answer.err}".splitlines()) if answer.code == 0 else ()


# 128 and SIGBUS: a program that died of a full /dev/shm without a word.
_BUS_ERROR = 135
_SHM_SMALL = "shared-memory-small"


def explained(ended: Ended, shm: int | None) -> Iterator[str]:
    """Lines that say what is known of the end; `shm` is the size its /dev/shm had."""
    lines: Sequence[str] = ended.lines
    if ended.code == _BUS_ERROR:
        lines = [*lines, "the program is killed by signal: Bus error"]
    for named in [item for item in diagnose(lines).named if not item.after][:2]:
        if named.id == _SHM_SMALL and shm is not None:
            yield (
                f"known: {named.title} — /dev/shm had {shown(shm)} here. Start it again with more "
                "(--shm-size 8G), or with the machine's own (--ipc host); --workers N says how "
                "much N workers want"
            )
        else:
            yield f"known: {named.title} — {named.cure}"
