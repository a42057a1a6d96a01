"""The words an image is started with, so that PyTorch has what it needs; nothing is started."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchsmith.errors import UsageError
from torchsmith.images.gpus import gpu_words

# Where distributions put podman's init; without one `--init` is an error.
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/bin/catatonit")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(?::[0-9]{1,10})?")


@dataclass(frozen=True, slots=True)
class Start:
    """How a container is started.

    `shm` is the size of its /dev/shm in bytes; None shares the machine's. `stdin` says what it
    reads: a terminal, what is piped in, or nothing.
    """

    image: str
    command: tuple[str, ...] = ()
    shm: int | None = None
    gpus: tuple[str, ...] = ()
    user: str = ""
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    memory: int | None = None
    ulimits: tuple[str, ...] = ()
    network: str = ""
    stdin: Literal["terminal", "pipe", "nothing"] = "nothing"


def run_words(engine: str, start: Start) -> list[str]:
    """The engine's `run` and its options; a name for the container is for the caller to add."""
    words = ["run", "--pull=never"]
    if engine == "docker" or any(Path(path).exists() for path in _INITS):
        # Workers that nobody waits for are reaped, and signals reach a program that is a shell.
        words.append("--init")
    if start.stdin != "nothing":
        words.append("--interactive")
    if start.stdin == "terminal":
        words.append("--tty")
    words.append("--ipc=host" if start.shm is None else f"--shm-size={start.shm}b")
    words += gpu_words(engine, start.gpus)
    words += start.ulimits
    if start.memory is not None:
        words.append(f"--memory={start.memory}b")
    if start.network:
        words.append(f"--network={start.network}")
    words += user_words(engine, start.user)
    for mount in start.mounts:
        words += ["--volume", mount]
    for variable in start.env:
        words += ["--env", variable]
    return [*words, start.image, *start.command]


def user_words(engine: str, user: str) -> list[str]:
    """The user a program runs as; `caller` is whoever starts it."""
    if not user:
        return []
    if user != "caller":
        if not _USER.fullmatch(user):
            raise UsageError(
                f"--user: {user!r} is no user",
                "Write caller, a name the image knows, or numbers as in 1000:1000.",
            )
        return ["--user", user]
    words = ["--user", f"{os.getuid()}:{os.getgid()}"]
    # Without root, podman gives the caller's own number to the container's root otherwise.
    return ["--userns=keep-id", *words] if engine == "podman" and os.getuid() else words


def parse_mount(text: str) -> str:
    """A mount as engines take it: the folder of this machine in full, and really there."""
    here, _, rest = text.partition(":")
    there = rest.partition(":")[0]
    if not here or not there.startswith("/"):
        raise UsageError(
            f"--mount: {text!r} does not say what goes where",
            "It is written HERE:/THERE or HERE:/THERE:ro.",
        )
    if not here.startswith(("/", ".", "~")):
        # A volume the engine keeps, by its name.
        return text
    folder = Path(here).expanduser().absolute()
    if not folder.exists():
        # docker would make a folder of root's in its place.
        raise UsageError(f"--mount: there is no {folder}", "Make it first, or mend the name.")
    return f"{folder}:{rest}"
