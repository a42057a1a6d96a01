"""Running a step in a container: what it sees of this machine, and how it ends.

The container sees the store, the work folder, the recipe's folder and the memory governor's, each
under the name it has here; torchsmith's own Python comes along as a kit. Its first process,
inside.py, holds one end of a pipe whose other end is ours, so nothing in it outlives us, whatever
ends us.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.engine.kit import Kit, make_kit
from torchsmith.engine.made_images import MadeImage
from torchsmith.errors import HostError
from torchsmith.host.probe import ask
from torchsmith.toolchain.build_paths import Knows, understands

# Of the caller's variables those that say how the network is reached.
_PASSED = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PASSED_GROUPS = ("PIP_", "UV_")
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
# Of pip's settings those that say how an index is reached.
_INDEXES = ("index-url", "extra-index-url", "find-links")
_WAYS = ("trusted-host", "proxy", "default-timeout", "timeout", "retries")


def passed(caller: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables that a program needs to reach what the caller reaches."""
    return {
        name: value
        for name, value in caller.items()
        if name.lower() in _PASSED or name.startswith(_PASSED_GROUPS) or name == "DEBIAN_MIRROR"
    }


def certificates() -> Path | None:
    """The file with the authorities this machine trusts."""
    return next((Path(name) for name in _CERTIFICATES if os.access(name, os.R_OK)), None)


def pip_settings(caller: Mapping[str, str]) -> dict[str, str]:
    """This machine's settings of pip, as variables."""
    answer = ask([sys.executable, "-P", "-m", "pip", "config", "list"], dict(caller), timeout=30)
    found: dict[str, str] = {}
    for line in answer.out.splitlines() if answer and answer.code == 0 else ():
        key, _, text = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in ("global", "install", "download", "wheel"):
            # Of several values pip writes one a line, and reads them with spaces between.
            value = " ".join(text.strip("'\"").replace("\\n", "\n").split())
            found[f"PIP_{option.upper().replace('-', '_')}"] = value
    return found


def pip_conf(caller: Mapping[str, str], trusted: str) -> str:
    """A pip.conf for where none of this machine's folders are seen; `trusted` is a file there."""
    settings = {**pip_settings(caller), **caller}
    lines = ["[global]"]
    for option in (*_INDEXES, *_WAYS):
        words = settings.get(f"PIP_{option.upper().replace('-', '_')}", "").split()
        if option in _INDEXES:
            words = [word for word in words if word.startswith(("http://", "https://"))]
        if words:
            lines.append(f"{option} = {' '.join(words)}")
    if trusted:
        lines.append(f"cert = {trusted}")
    return "\n".join([*lines, ""])


_TRUST = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
# Exit codes by which podman and docker say that they could not start anything.
_NOT_STARTED = (125, 126, 127)
_ITS_WORDS = ("Error: ", "docker: ", "podman: ", "error during connect")


@dataclass(frozen=True, slots=True)
class Containers:
    """What the containers of a run have in common.

    `environment` is for the steps, `caller` for the container tool. `folders` keep their names
    inside, `readable` ones too but read-only. `knows`: whether the compilers inside understand an
    option.
    """

    store: Path
    environment: Mapping[str, str]
    caller: Mapping[str, str]
    folders: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    knows: Knows = understands

    @property
    def kit(self) -> Kit:
        """The Python that comes along."""
        return make_kit(self.store)


@dataclass(slots=True)
class Vessel:
    """One container, from before it starts until nothing of it runs."""

    tool: str
    name: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    _lifeline: int = field(default=-1)

    @property
    def alive(self) -> Path:
        """The file that is locked while anything runs in it."""
        return self.folder / "alive"

    def close(self, *, remove: bool = False) -> None:
        """End what still runs in it and wait; `remove` it where its own program was killed."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        with contextlib.suppress(OSError), self.alive.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        if remove:
            ask([self.tool, "rm", "--force", self.name], self.environment, timeout=60)

    def used(self) -> tuple[float, int] | None:
        """CPU seconds and the largest process; None if it was ended before it could say."""
        try:
            outcome = json.loads((self.folder / "outcome").read_text())
            return float(outcome["cpu"]), int(outcome["peak"])
        except (OSError, ValueError, KeyError):
            return None


@contextlib.contextmanager
def in_container(
    containers: Containers,
    image: MadeImage,
    script: Path,
    workdir: Path,
    step_variables: Mapping[str, str],
    own: Path,
    *,
    name: str,
    keys: Path | None = None,
    network: bool = True,
) -> Iterator[Vessel]:
    """A container that runs a script once started; gone when this is left.

    `keys` is the folder of signing keys, for steps that sign. Without `network` it reaches nobody.
    """
    program = shutil.which(image.engine, path=containers.caller.get("PATH"))
    if program is None:
        raise HostError(
            f"{image.engine}, which made the image to build in, is gone",
            f"Install {image.engine} again, or build on this machine: --here.",
        )
    shutil.rmtree(own, ignore_errors=True)
    (own / "home").mkdir(parents=True)
    os.mkfifo(own / "lifeline", 0o600)
    (own / "alive").touch(0o600)
    # For reading too: there is no reader yet, and opening must not wait for one.
    lifeline = os.open(own / "lifeline", os.O_RDWR | os.O_NONBLOCK)
    variables = {
        **passed(containers.caller),
        **_trust(own),
        **step_variables,
        "HOME": str(own / "home"),
        "PIP_CACHE_DIR": str(containers.store / "pip-cache"),
    }
    kit = containers.kit
    given = {**pip_settings(containers.caller), **variables}
    variables = {variable: kit.inside(value) for variable, value in given.items()}
    variables["TORCHSMITH_PYTHON"] = str(kit.python)
    name = f"torchsmith-{name}-{_tag()}"
    words = [program, "run", "--rm", "--interactive", "--name", name]
    words += [f"--network={'host' if network else 'none'}", *_options(image.engine, program)]
    folders = containers.folders
    if keys is not None:
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders = (*folders, keys)
        # As keys_folder() finds them.
        variables["XDG_DATA_HOME"] = str(keys.parent.parent)
    for folder in folders:
        words += ["--volume", f"{folder}:{folder}"]
    for path in dict.fromkeys((*containers.readable, *_named_by_pip(variables))):
        words += ["--volume", f"{path}:{path}:ro"]
    words += ["--workdir", str(workdir)]
    for variable in variables:
        # The tool needs its own; everything else is in its environment, not among its words.
        if variable in _ITS_OWN:
            words += ["--env", f"{variable}={variables[variable]}"]
        else:
            words += ["--env", variable]
    words += ["--entrypoint", str(kit.python), image.id]
    words += ["-I", "-S", str(kit.package / "engine" / "inside.py"), str(script), str(own)]
    outside = {key: value for key, value in variables.items() if key not in _ITS_OWN}
    vessel = Vessel(program, name, words, {**containers.caller, **outside}, own, lifeline)
    try:
        yield vessel
    finally:
        vessel.close()


# What the container tool itself reads from its environment.
_ITS_OWN = frozenset(
    ["HOME", "PATH", "TMPDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"]
)


def _tag() -> str:
    return uuid.uuid4().hex[:12]


def _options(tool: str, program: str) -> list[str]:
    """How a container is started: our user's files, and no log of its own."""
    words = [
        "--log-driver=none",
        # SELinux would have every file relabelled before it may be read.
        "--security-opt=label=disable",
        # What tries a data loader needs more than the 64 MB a container has.
        "--shm-size=2g",
    ]
    if tool == "podman":
        # Limits are the machine's own, and the governor's.
        words.append("--pids-limit=-1")
    elif os.geteuid() != 0 and not _rootless(program):
        words += ["--user", f"{os.geteuid()}:{os.getegid()}"]
    return words


def _rootless(docker: str) -> bool:
    answer = ask([docker, "info", "--format", "{{.SecurityOptions}}"])
    return answer is not None and "rootless" in answer.out


def _trust(own: Path) -> dict[str, str]:
    """Have programs in the container trust whom this machine trusts."""
    if (file := certificates()) is None:
        return {}
    shutil.copyfile(file, own / "certificates.crt")
    return {variable: str(own / "certificates.crt") for variable in _TRUST}


def _named_by_pip(variables: Mapping[str, str]) -> list[Path]:
    """The folders of this machine that pip is told to take packages from."""
    words = [
        # An index's pages name files that lie beside them.
        word.removeprefix("file://").rstrip("/").removesuffix("/simple")
        for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
        for word in variables.get(name, "").split()
    ]
    return [Path(word) for word in words if word.startswith("/") and Path(word).is_dir()]


def explain_start(status: int, log: Path) -> str:
    """Why a container did not start, in one sentence; empty if it did."""
    if status not in _NOT_STARTED:
        return ""
    lines = log.read_text(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    # A program inside may end with the same number, and says nothing of this kind.
    if not last.startswith(_ITS_WORDS):
        return ""
    return f"the container did not start: {last.removeprefix('Error: ')}"
