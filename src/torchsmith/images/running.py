"""`torchsmith run`: a container for a person, from the options to its end.

podman gets GPUs through CDI (https://github.com/cncf-tags/container-device-interface), docker
through its own option. What the container prints goes straight to where ours goes. A guard, a
small shell of its own session, removes the container when we are gone, also if we are killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from torchsmith.diagnose.diagnose import diagnose
from torchsmith.engine.process import Stop
from torchsmith.errors import HostError, NoContainerToolError, UsageError
from torchsmith.host.limits import read_memory, read_shm
from torchsmith.images.reference import reference
from torchsmith.images.select import one_image
from torchsmith.images.tools import ContainerTool
from torchsmith.plan.render.dockerfile import SHM_LABEL
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import TimeZone
from torchsmith.recipe.values import SIZE, size_bytes

DEFAULT_SHM = "8G"
# torch.utils.data.DataLoader's own prefetch_factor.
_PREFETCH = 2
# 256 images of 3x224x224 numbers of 4 bytes: what ImageNet is commonly trained with.
USUAL_BATCH = 256 * 3 * 224 * 224 * 4
# A process that has imported torch; measured 230 MiB for torch 2.13 without CUDA.
_PROCESS = 256 << 20
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


@dataclass(frozen=True, slots=True)
class Loading:
    """How a program loads data: so many workers, batches of so many bytes."""

    workers: int
    batch: int = USUAL_BATCH

    @property
    def batches(self) -> int:
        """Batches that can lie in /dev/shm at once: those made ahead, and the one in use."""
        return self.workers * _PREFETCH + 1 if self.workers else 0

    @property
    def shm(self) -> int:
        """Bytes of /dev/shm wanted."""
        return self.batches * self.batch

    @property
    def memory(self) -> int:
        """Bytes of memory wanted: /dev/shm is memory too."""
        return self.shm + (self.workers + 1) * _PROCESS


def parse_size(option: str, text: str) -> int:
    """The bytes an option's size stands for."""
    try:
        found = size_bytes(text.strip())
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if not found:
        raise UsageError(f"{option}: {text!r} is nothing", "A size is written as in 8G or 512M.")
    return found


def shown(count: int) -> str:
    """An amount the way people say it."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def shm_bytes(asked: str | None, usual: str, memory: int | None) -> int:
    """The size of /dev/shm: the one asked for, or the usual one, at most half of the memory.

    The kernel would not refuse more than there is, but kill the programs that fill it.
    """
    if asked is not None:
        wanted = parse_size("--shm-size", asked)
        if memory is not None and wanted > memory:
            raise UsageError(
                f"--shm-size {asked} is more than the {shown(memory)} of memory there is",
                f"/dev/shm is memory: take at most half of it, --shm-size {memory >> 21}M.",
            )
        return wanted
    wanted = size_bytes(usual)
    # Half of the memory is what the kernel gives /dev/shm where nobody says anything.
    return wanted if memory is None or wanted <= memory else memory // 2


def shortages(loading: Loading, shm: int | None, memory: int | None) -> Iterator[str]:
    """What is too small for these workers, with the arithmetic.

    `shm` and `memory` are the bytes the container gets; None where that is not known.
    """
    if not loading.workers:
        return
    usual = (
        " (256 images of 3x224x224 floats; --batch says yours)"
        if loading.batch == USUAL_BATCH
        else ""
    )
    what = (
        f"({loading.workers} x {_PREFETCH} made ahead + 1 in use) x {shown(loading.batch)}{usual}"
    )
    if shm is not None and loading.shm > shm:
        yield (
            f"{_workers(loading)} may fill {shown(loading.shm)} of /dev/shm: {what}; it has "
            f"{shown(shm)}. Take --shm-size {-(-loading.shm // (1 << 30))}G, or fewer workers"
        )
    if memory is not None and loading.memory > memory:
        yield (
            f"{_workers(loading)} may take {shown(loading.memory)} of memory: "
            f"{shown(loading.shm)} in /dev/shm + {loading.workers + 1} processes x "
            f"{shown(_PROCESS)}; there is {shown(memory)}. Take more with --memory, or fewer "
            "workers"
        )


def _workers(loading: Loading) -> str:
    return f"{loading.workers} worker{'' if loading.workers == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was asked for, as it was written."""

    what: str
    command: tuple[str, ...] = ()
    shm_size: str | None = None
    ipc: str | None = None
    gpus: str | None = None
    user: str = ""
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    workers: int = 0
    batch: str | None = None
    memory: str | None = None
    timezone: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The tool's words; `shm` is the size of the /dev/shm the program will see."""

    words: tuple[str, ...]
    notes: tuple[str, ...]
    shm: int | None
    terminal: bool


def prepared(
    tool: ContainerTool,
    options: RunOptions,
    recipe: Recipe | None,
    *,
    terminal: bool,
    piped: bool,
    dry_run: bool = False,
) -> Ready:
    """Check every option and choose the others; the image must be there unless it is a dry run."""
    memory = parse_size("--memory", options.memory) if options.memory is not None else None
    machine, _ = read_memory()
    room = min((amount for amount in (memory, machine) if amount is not None), default=None)
    image = one_image(recipe).name if recipe is not None else str(reference(options.what))
    labels: Mapping[str, str] = {} if dry_run else tool.inspect(image).labels
    asked = recipe.image.shm_size if recipe is not None and recipe.image else labels.get(SHM_LABEL)
    usual = asked if asked and re.fullmatch(SIZE.pattern, asked) else DEFAULT_SHM
    shm = _shared(options, usual, room)
    loading = Loading(
        options.workers,
        USUAL_BATCH if options.batch is None else parse_size("--batch", options.batch),
    )
    start = Start(
        image=image,
        command=options.command,
        shm=shm,
        gpus=chosen_gpus(tool.name, options.gpus),
        user=options.user,
        mounts=tuple(map(parse_mount, options.mounts)),
        env=(*_zone(options.timezone), *map(_variable, options.env)),
        memory=memory,
        ulimits=tuple(ulimit_words(tool.name, tool.environ)),
        network=options.network,
        stdin="terminal" if terminal else "pipe" if piped else "nothing",
    )
    words = run_words(tool.name, start)
    seen = read_shm() if shm is None else shm
    notes = [*_notes(options, usual, shm), *shortages(loading, seen, room)]
    if note := withheld(tool.name, options.gpus):
        notes.append(note)
    return Ready(tuple(words), tuple(notes), seen, terminal)


def _shared(options: RunOptions, usual: str, room: int | None) -> int | None:
    if options.ipc is None:
        return shm_bytes(options.shm_size, usual, room)
    if options.ipc != "host":
        raise UsageError(
            f"--ipc: {options.ipc!r} is not known", "Write --ipc host, or leave it out."
        )
    if options.shm_size is not None:
        raise UsageError(
            "--ipc host and --shm-size were both given",
            "The machine's own /dev/shm has the size it has: name one of the two.",
        )
    return None


def _notes(options: RunOptions, usual: str, shm: int | None) -> Iterator[str]:
    if options.shm_size is None and shm is not None and shm < size_bytes(usual):
        yield f"/dev/shm has {shown(shm)}, not {usual}: that is half of the memory there is"


def _zone(name: str) -> tuple[str, ...]:
    if not name:
        return ()
    try:
        TypeAdapter(TimeZone).validate_python(name)
    except ValidationError:
        raise UsageError(
            f"--timezone: {name!r} is not a time zone", "Write an IANA name, such as Asia/Seoul."
        ) from None
    return (f"TZ={name}",)


def _variable(text: str) -> str:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*(?:=|$)", text, re.ASCII):
        raise UsageError(
            f"--env: {text!r} sets no variable",
            "Write NAME=VALUE; NAME alone takes the value it has here.",
        )
    return text


# capabilities(7)
_SYS_RESOURCE = 1 << 24
# What NVIDIA's own images ask for: deep recursion in C++, and pinned memory of any size.
_STACK = 64 << 20
_SECONDS = 5.0


def ulimit_words(tool: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Options for the stack and for locked memory, where they are allowed."""
    pid = _daemon(os.environ if environ is None else environ) if tool == "docker" else os.getpid()
    # Without the right to raise them none is given: one option would put aside all the limits
    # that a person's containers.conf has for just this case.
    if not pid or not _may_raise(pid):
        return []
    return ["--ulimit", "memlock=-1:-1", "--ulimit", f"stack={_STACK}:{_STACK}"]


def _may_raise(pid: int) -> bool:
    """Whether a process may give more than it has: /proc says so, to everybody."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "CapEff":
                return bool(int(value, 16) & _SYS_RESOURCE)
    except (OSError, ValueError):
        pass
    return False


def _daemon(environ: Mapping[str, str]) -> int:
    """The number of the process behind docker's socket; 0 if it is not on this machine."""
    address = environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as there:
        there.settimeout(_SECONDS)
        there.connect(address.removeprefix("unix://"))
        size = struct.calcsize("3i")
        credentials = there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, _, _ = struct.unpack("3i", credentials)
        return int(pid)
    return 0


# Where distributions put podman's init; without one `--init` is an error.
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/bin/catatonit")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,10}(?::[0-9]{1,10})?")


@dataclass(frozen=True, slots=True)
class Start:
    """How a container is started; without `shm` bytes it shares the machine's /dev/shm."""

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


def run_words(tool: str, start: Start) -> list[str]:
    """The tool's `run` and its options; a name for the container is for the caller to add."""
    words = ["run", "--pull=never"]
    if tool == "docker" or any(Path(path).exists() for path in _INITS):
        # Workers that nobody waits for are reaped, and signals reach a program that is a shell.
        words.append("--init")
    if start.stdin != "nothing":
        words.append("--interactive")
    if start.stdin == "terminal":
        words.append("--tty")
    words.append("--ipc=host" if start.shm is None else f"--shm-size={start.shm}b")
    words += gpu_words(tool, start.gpus)
    words += start.ulimits
    if start.memory is not None:
        words.append(f"--memory={start.memory}b")
    if start.network:
        words.append(f"--network={start.network}")
    words += user_words(tool, start.user)
    for mount in start.mounts:
        words += ["--volume", mount]
    for variable in start.env:
        words += ["--env", variable]
    return [*words, start.image, *start.command]


def user_words(tool: str, user: str) -> list[str]:
    """The user a program runs as; `caller` is whoever starts it."""
    if not user:
        return []
    if user != "caller":
        if not _USER.fullmatch(user):
            raise UsageError(
                f"--user: {user!r} is not a user",
                "Write caller, a name the image knows, or numbers as in 1000:1000.",
            )
        return ["--user", user]
    words = ["--user", f"{os.getuid()}:{os.getgid()}"]
    # Without root, podman gives the caller's own number to the container's root otherwise.
    return ["--userns=keep-id", *words] if tool == "podman" and os.getuid() else words


def parse_mount(text: str) -> str:
    """A mount as tools take it: the folder of this machine in full, and really there."""
    here, _, rest = text.partition(":")
    there = rest.partition(":")[0]
    if not here or not there.startswith("/"):
        raise UsageError(
            f"--mount: {text!r} does not say what goes where",
            "It is written HERE:/THERE or HERE:/THERE:ro.",
        )
    if not here.startswith(("/", ".", "~")):
        # A volume the tool keeps, by its name.
        return text
    folder = Path(here).expanduser().absolute()
    if not folder.exists():
        # docker would make a folder of root's in its place.
        raise UsageError(f"--mount: there is no {folder}", "Make it first, or mend the name.")
    return f"{folder}:{rest}"


_DRIVER = "dev/nvidiactl"
_SPECIFICATIONS = ("etc/cdi", "var/run/cdi")
_CDI = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (of nvidia-container-toolkit)"


def parse_gpus(text: str) -> tuple[str, ...]:
    """The GPUs an option names: ("all",), their numbers or UUIDs, or none."""
    if text == "none":
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if names == ("all",) or all(
        re.fullmatch(r"[0-9]{1,3}(?::[0-9]{1,2})?|(?:GPU|MIG)-[0-9a-f-]{8,64}", name)
        for name in names
    ):
        return tuple(dict.fromkeys(names))
    raise UsageError(
        f"--gpus: {text!r} names no GPUs", "Write all, none, or numbers as in 0,1 (nvidia-smi -L)."
    )


def gpu_words(tool: str, gpus: tuple[str, ...]) -> list[str]:
    """The tool's options for these GPUs."""
    if not gpus:
        return []
    if tool == "docker":
        # Quoted for docker's own reading of commas, not for a shell.
        return ["--gpus", "all" if gpus == ("all",) else f'"device={",".join(gpus)}"']
    return [word for name in gpus for word in ("--device", f"nvidia.com/gpu={name}")]


def chosen_gpus(tool: str, asked: str | None, root: Path = Path("/")) -> tuple[str, ...]:
    """The GPUs a container gets: those asked for, or all there are where it can have them."""
    here = (root / _DRIVER).exists()
    described = tool == "docker" or _described(root)
    if asked is None:
        return ("all",) if here and described else ()
    gpus = parse_gpus(asked)
    if gpus and not here:
        raise HostError(
            "GPUs were requested, but this machine has no NVIDIA driver loaded",
            "nvidia-smi must work here first; or run without, --gpus none.",
        )
    if gpus and not described:
        raise HostError(f"{tool} does not know this machine's GPUs", f"Register them once: {_CDI}.")
    return gpus


def withheld(tool: str, asked: str | None, root: Path = Path("/")) -> str:
    """What to say of GPUs that are here and that a container does not get unasked."""
    if asked is None and tool != "docker" and (root / _DRIVER).exists() and not _described(root):
        return f"the container gets no GPU: {tool} does not know those of this machine. {_CDI}"
    return ""


def _described(root: Path) -> bool:
    return any(
        "nvidia.com/gpu" in path.read_text(errors="replace")
        for place in _SPECIFICATIONS
        for path in (root / place).glob("*")
        if path.suffix in (".yaml", ".json")
    )


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
