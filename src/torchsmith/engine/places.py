"""Running a step in a container: what it sees of this machine, and how it ends.

The container sees the work folder, the memory governor's, and of the store what all steps share,
each under the name it has here. Its first process, inside.py, holds one end of a pipe whose other
end is ours, so nothing in it outlives us, whatever ends us.

torchsmith's own Python comes along as a kit: the memory governor's launcher, the batches and the
proofs run beside the compilers, where they run. A distribution's own Python may be as old as 3.5,
and this machine's may need a newer C library than the container has. So the interpreter is copied
with every library it loads, the loader among them, and with torchsmith and what that imports: about
180 MB in the store, made once for each torchsmith and each Python.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement

import torchsmith
from torchsmith.engine.disk import room
from torchsmith.engine.hermetic import ITSELF
from torchsmith.engine.made_images import MadeImage
from torchsmith.engine.trees import remove
from torchsmith.errors import HostError
from torchsmith.foreign import decode
from torchsmith.host.probe import ask
from torchsmith.package.patchelf import change, patchelf_program
from torchsmith.programs import call
from torchsmith.toolchain.build_paths import Knows, understands

# Raise it when a kit is laid out in another way.
_FORM = 3
_DAYS_KEPT = 7
_HINT = "Build on this machine itself instead: --here."
# Of the standard library, what no program of ours imports.
_LEFT_OUT = {
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "venv"),
}
_LEFT_OUT_TOO = ("config-", "_tkinter.", "nis.")
_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kit:
    """The copy of this machine's Python and torchsmith."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python3"

    @property
    def package(self) -> Path:
        """torchsmith itself."""
        return self.folder / "site" / "torchsmith"

    def inside(self, text: str) -> str:
        """A text with the kit's paths in place of this machine's."""
        return text.replace(str(_package()), str(self.package)).replace(
            sys.executable, str(self.python)
        )


def make_kit(store: Path) -> Kit:
    """The kit of this torchsmith and this Python; made if it is not there."""
    home = store / "tools"
    kit = Kit(home / f"python-{_mark()}")
    if kit.python.exists():
        os.utime(kit.folder)
        return kit
    with room(home):
        home.mkdir(parents=True, exist_ok=True)
        for old in home.glob("python-*"):
            if time.time() - old.stat().st_mtime > _DAYS_KEPT * 86_400:
                remove(old)
        with tempfile.TemporaryDirectory(dir=home, prefix=".python-") as place:
            draft = Path(place) / kit.folder.name
            _assemble(draft, kit.folder)
            with contextlib.suppress(OSError):
                # Another process may have been quicker: its own is as good.
                draft.rename(kit.folder)
    return kit


def _package() -> Path:
    return Path(torchsmith.__file__).resolve().parent


def _interpreter() -> Path:
    # Behind the link of a virtual environment.
    base = getattr(sys, "_base_executable", "") or sys.executable
    return Path(base).resolve()


def _mark() -> str:
    """What the kit is made of, as a short name."""
    interpreter = _interpreter()
    parts = {
        "form": _FORM,
        "python": [str(interpreter), interpreter.stat().st_mtime_ns, sys.version],
        "packages": sorted(f"{item.name}=={item.version}" for item in _distributions()),
        "torchsmith": sorted(
            [str(file.relative_to(_package())), file.stat().st_size, file.stat().st_mtime_ns]
            for file in _package().rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        ),
    }
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _distributions() -> list[importlib.metadata.Distribution]:
    """The distributions that torchsmith requires, directly or not."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_ = ["torchsmith"]
    while open_:
        name = open_.pop()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            item = importlib.metadata.distribution(name)
            for text in item.requires or ():
                wanted = Requirement(text)
                if wanted.name not in found and (
                    wanted.marker is None or wanted.marker.evaluate({"extra": ""})
                ):
                    open_.append(wanted.name)
            found[name] = item
    found.pop("torchsmith")
    return list(found.values())


def _assemble(draft: Path, final: Path) -> None:
    """Lay the kit out in `draft`; the paths written into it are those of `final`."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = draft / "site"
    shutil.copytree(
        stdlib,
        draft / "lib" / version,
        symlinks=False,
        ignore=lambda folder, names: [
            name for name in names if name in _LEFT_OUT or name.startswith(_LEFT_OUT_TOO)
        ],
    )
    shutil.copytree(_package(), site / "torchsmith")
    for item in _distributions():
        _copy_distribution(item, site)
    (draft / "bin").mkdir()
    shutil.copy2(patchelf_program(), draft / "bin" / "patchelf")
    python = draft / "bin" / "python3"
    shutil.copyfile(_interpreter(), python)
    python.chmod(0o755)
    # Not by PYTHONPATH, which the Pythons of the build would heed too.
    customize = f"import sys\nsys.path.append({str(final / 'site')!r})\n"
    (draft / "lib" / version / "sitecustomize.py").unlink(missing_ok=True)
    (draft / "lib" / version / "sitecustomize.py").write_text(customize)
    modules = [file for file in draft.rglob("*.so*") if file.is_file()]
    libraries = draft / "lib" / "system"
    libraries.mkdir()
    loader = _copy_libraries([python, *modules], libraries)
    there = final / "lib" / "system"
    tie(python, there / loader)
    dynload = draft / "lib" / version / "lib-dynload"
    for library in (*libraries.iterdir(), *dynload.glob("*.so")):
        if _search_path(library):
            change([str(patchelf_program()), "--remove-rpath"], library, _HINT)


def tie(program: Path, loader: Path) -> None:
    """Have a program use this loader, and the libraries that lie beside it."""
    words = [str(patchelf_program())]
    # DT_RPATH of the program holds for everything it loads, unless that has a path of its own.
    change([*words, "--force-rpath", "--set-rpath", str(loader.parent)], program, _HINT)
    # Last, and on its own: together, or before, they make patchelf 0.19 lay segments over each
    # other in a program with fixed addresses, as Debian's Python is.
    change([*words, "--set-interpreter", str(loader)], program, _HINT)


def _search_path(library: Path) -> str:
    answer = ask([str(patchelf_program()), "--print-rpath", str(library)])
    return answer.out.strip() if answer is not None and answer.code == 0 else ""


def _copy_distribution(item: importlib.metadata.Distribution, site: Path) -> None:
    for entry in item.files or ():
        file = Path(str(item.locate_file(entry)))
        # Scripts lie outside; compiled files are written anew.
        if entry.parts[0] == ".." or "__pycache__" in entry.parts or not file.is_file():
            continue
        target = site.joinpath(*entry.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


def _copy_libraries(programs: list[Path], into: Path) -> str:
    """Copy what programs load from this system; the name of the loader among it."""
    loader = ""
    for start in range(0, len(programs), 100):
        some = programs[start : start + 100]
        listed = call(["ldd", *some], env={**os.environ, "LC_ALL": "C"}).out
        for name in dict.fromkeys(_LIBRARY.findall(listed)):
            file = Path(name)
            # What a wheel brings along lies beside what loads it.
            if into.parent.parent in file.parents:
                continue
            if file.name.startswith("ld-linux") or file.name.startswith("ld-musl"):
                loader = file.name
            if not (into / file.name).exists():
                shutil.copyfile(file.resolve(), into / file.name)
                (into / file.name).chmod(0o755)
    if not loader:
        raise HostError(
            f"{_interpreter()} cannot be copied into a container: it names no loader", _HINT
        )
    return loader


# The caller's variables that say how to reach the network.
_PASSED = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_PASSED_GROUPS = ("PIP_", "UV_")
_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
# pip's settings that say how to reach an index.
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
    """A pip.conf for a place that sees no folder of this machine; `trusted` is a file there."""
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

    `environment` is for the steps, `caller` for the container tool. `folders` have the same names
    inside. `knows` tells which options the compilers inside understand.
    """

    store: Path
    environment: Mapping[str, str]
    caller: Mapping[str, str]
    folders: tuple[Path, ...]
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
        """End what still runs in it and wait; `remove` it if the container tool was killed."""
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
            outcome = decode((self.folder / "outcome").read_bytes(), dict[str, float])
            return outcome["cpu"], int(outcome["peak"])
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
    readable: Sequence[Path] = (),
    keys: Path | None = None,
    network: bool = True,
) -> Iterator[Vessel]:
    """A container that runs a script once started; gone when this is left.

    `readable` is what it may read beside the folders of its run, `keys` the folder of signing keys,
    for steps that sign. Without `network` it reaches nobody.
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
    settings = pip_settings(containers.caller)
    variables = {name: kit.inside(value) for name, value in {**settings, **variables}.items()}
    variables["TORCHSMITH_PYTHON"] = str(kit.python)
    name = f"torchsmith-{name}-{uuid.uuid4().hex[:12]}"
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
    for path in dict.fromkeys((*readable, *_named_by_pip(variables))):
        words += ["--volume", f"{path}:{path}:ro"]
    if not network:
        (own / "resolver").write_text(ITSELF)
        words += ["--volume", f"{own / 'resolver'}:/etc/resolv.conf:ro"]
    words += ["--workdir", str(workdir)]
    for variable in variables:
        # The tool keeps its own of these; all others are passed in its environment, unseen.
        own_value = f"={variables[variable]}" if variable in _ITS_OWN else ""
        words += ["--env", f"{variable}{own_value}"]
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


def _options(tool: str, program: str) -> list[str]:
    """Options for starting a container: files belong to our user, and no log is kept."""
    words = [
        "--log-driver=none",
        # SELinux would have every file relabelled before it may be read.
        "--security-opt=label=disable",
        # Testing a data loader takes more than the 64 MB a container has.
        "--shm-size=2g",
    ]
    if tool == "podman":
        # The machine and the governor set the limits.
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
    """The folders of this machine from which pip may take packages."""
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
    # A program inside may end with the same number, but prints nothing of this kind.
    if not last.startswith(_ITS_WORDS):
        return ""
    return f"the container did not start: {last.removeprefix('Error: ')}"
