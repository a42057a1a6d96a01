"""Starting the programs that sources need, with one error for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torchsmith.errors import SourceError
from torchsmith.programs import Answer

# The last of what a program said is what explains its end; progress lines are without number.
_KEPT = 64 << 10


def call(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    package: str,
    cwd: Path | None = None,
    stdin: bytes = b"",
    listener: Callable[[str], None] | None = None,
) -> Answer:
    """Run a program to its end; `listener` gets every line of its standard error as it comes.

    It has no terminal to ask questions on, and is ended with all it started if we are.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            # A program followed by its messages says nothing of use elsewhere.
            stdout=subprocess.PIPE if listener is None else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SourceError(
            f"{argv[0]} is needed and not installed", f"apt-get install {package}"
        ) from None
    try:
        if listener is None:
            out, err = process.communicate(stdin or None)
        else:
            out, err = b"", _follow(process, listener)
            process.wait()
    except BaseException:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Answer(
        process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
    )


def _follow(process: subprocess.Popen[bytes], listener: Callable[[str], None]) -> bytes:
    """Pass on lines as they come; a progress line ends in a carriage return."""
    assert process.stderr is not None
    kept, rest = b"", b""
    with process.stderr as stream:
        while piece := os.read(stream.fileno(), 65536):
            kept = (kept + piece)[-_KEPT:]
            *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            for line in filter(None, lines):
                listener(line.decode("utf-8", "replace"))
    return kept
