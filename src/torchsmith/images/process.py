"""Starting an engine's program: the one place in this room that starts a process.

The program stays in our process group: a Ctrl-C at the terminal, and a build that is stopped,
reach it as they reach us. It is given time to put away what it has under way.
"""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchsmith.images.errors import NoEngineError

OnLine = Callable[[str], None]

# Seconds: to end by itself, then after being asked to. The runner of a step waits ten.
_PATIENCE = (4.0, 3.0)
# Lines kept of a program that is followed: enough for the end of any build to be explained.
_KEPT_LINES = 400


@dataclass(frozen=True, slots=True)
class Said:
    """How a program ended and what it said; of one that was followed, the last lines in `out`."""

    code: int
    out: str
    err: str = ""

    @property
    def complaint(self) -> list[str]:
        """What it complained of: the lines of its error output, or all it said."""
        text = self.err.strip() or self.out.strip()
        return [line.rstrip() for line in text.splitlines() if line.strip()]


def call(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
) -> Said:
    """Run a program to its end; with `on_line`, hand its lines on as they come."""
    followed = on_line is not None
    try:
        process = subprocess.Popen(
            list(argv),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if followed else subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise NoEngineError(
            f"{argv[0]} cannot be started: {error.strerror}", "Is it installed, and executable?"
        ) from None
    with process:
        try:
            if on_line is None:
                out, err = process.communicate()
                return Said(process.returncode, out, err)
            kept: deque[str] = deque(maxlen=_KEPT_LINES)
            assert process.stdout is not None
            for line in process.stdout:
                kept.append(line.rstrip("\n"))
                on_line(kept[-1])
            return Said(process.wait(), "\n".join(kept))
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[str]) -> None:
    """Let a program end by itself: it may have been told already; then insist."""
    for insist, patience in zip((process.terminate, process.kill), _PATIENCE, strict=True):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
