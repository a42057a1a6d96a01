"""Container engines for tests, each with a store of its own: nothing of this machine's is touched.

One base image is made of Debian's packages for the whole session, so no registry is needed. It
knows this machine's way to PyPI: folders that pip is set up with here are served to it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.side_by_side import locked

from torchsmith.images.tools import Buildah, ContainerTool, Docker, Podman

BASE = "debian:12"
_BASE_SECONDS = 86_400
# As Debian's own image has them: a container that loses power is made again, and nobody reads
# descriptions in it.
_SETTINGS = {
    "etc/dpkg/dpkg.cfg.d/docker-apt-speedup": b"force-unsafe-io\n",
    "etc/apt/apt.conf.d/docker-no-languages": b'Acquire::Languages "none";\n',
}

# Podman as it runs inside a container: see each setting's own reason in containers.conf(5). Host
# network: containers reach the server of packages, and need no right to make interfaces.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
# Its own, not /run/libpod and one segment of shared memory for all: another's reset empties those.
tmp_dir = "{folder}/libpod"
lock_type = "file"
[network]
network_backend = "netavark"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
"""


class EngineHere:
    """An engine of the tests: torchsmith's own class for it, and what its programs are told."""

    # Those that last as long as all tests, for `look`.
    all: ClassVar[list[EngineHere]] = []

    def __init__(self, engine: ContainerTool, env: Mapping[str, str]) -> None:
        self.engine = engine
        self.env = dict(env)
        self.before: frozenset[str] = frozenset()

    def __call__(self, *words: str | Path) -> str:
        """Run the program itself, as a person would."""
        done = subprocess.run(
            self.engine.command(*words), env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    def containers(self, *, shown: str = "{{.ID}}") -> list[str]:
        """Everything that holds files of an image, running or not, builds' own included."""
        external = ["--external"] if self.engine.name == "podman" else []
        return self("ps", "--all", *external, "--format", shown).splitlines()

    def look(self) -> None:
        """Remember what is there now, which is none of the next test's business."""
        self.before = frozenset(self.containers())

    def left(self) -> list[str]:
        """What is there since the last look, when the engine has had time to put things away."""
        shown = "{{.ID}} {{.Image}} {{.Names}} {{.Status}} {{.Command}}"
        end = time.monotonic() + 60
        while True:
            here = self.containers(shown=shown)
            new = [line for line in here if line.split(maxsplit=1)[0] not in self.before]
            if not new or time.monotonic() > end:
                return new
            time.sleep(0.5)


class _Folders(SimpleHTTPRequestHandler):
    """/NUMBER/… is a file of the folder of that number."""

    def __init__(self, folders: list[Path], *arguments: object) -> None:
        self.folders = folders
        super().__init__(*arguments)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        number, _, rest = path.lstrip("/").partition("/")
        self.directory = str(self.folders[int(number)])
        return super().translate_path(f"/{rest}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(folders: list[Path]) -> Iterator[str]:
    """Serve folders on this machine's own network; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Folders, folders))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _pip_settings() -> dict[str, str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    return found


@contextlib.contextmanager
def _pip_conf(wheel: Path) -> Iterator[str]:
    """A pip.conf that means the same inside a container as this machine's means here."""
    settings = _pip_settings()
    # The CPU's torch first of all: PyPI's own brings gigabytes.
    folders = [wheel.parent]
    places: dict[str, list[str]] = {"find-links": ["@0/"], "extra-index-url": [], "index-url": []}
    for option, written in places.items():
        for place in settings.get(option, "").split():
            folder = Path(place.removeprefix("file://").removesuffix("/simple"))
            if folder.is_absolute() and folder.is_dir():
                written.append(f"@{len(folders)}/{'simple/' if place.endswith('simple') else ''}")
                folders.append(folder)
            elif "://" in place:
                written.append(place)
    with served(folders) as address:
        lines = [
            f"{option} = {' '.join(written).replace('@', f'{address}/')}"
            for option, written in places.items()
            if written
        ]
        if settings.get("cert"):
            lines.append("cert = /usr/local/share/host-ca.crt")
        yield "\n".join(["[global]", *lines, ""])


def _debian(folder: Path, suite: str) -> Path:
    """Debian's smallest system as an archive; made anew once a day."""
    made = folder / f"{suite}.tar"
    if made.exists() and time.time() - made.stat().st_mtime < _BASE_SECONDS:
        return made
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    part = folder / f"{os.getpid()}.tar"
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates"),
            *(suite, part, mirror),
        ],
        check=True,
    )
    part.rename(made)
    return made


@contextlib.contextmanager
def debian_archive(wheel: Path, folder: Path, kept: Path, suite: str) -> Iterator[Path]:
    """A distribution that knows this machine's way to PyPI; `kept` outlasts a run."""
    archive = folder / f"{suite}.tar"
    with locked(kept / "lock"):
        shutil.copy(_debian(kept, suite), archive)
    with _pip_conf(wheel) as conf:
        files = {"etc/pip.conf": conf.encode(), **_SETTINGS}
        if cert := _pip_settings().get("cert"):
            files["usr/local/share/host-ca.crt"] = Path(cert).read_bytes()
        with tarfile.open(archive, "a") as tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"./{name}")
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
        yield archive


@pytest.fixture(scope="session")
def base_archive(
    rendering_tools: None,
    published_wheel: Path,
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
) -> Iterator[Path]:
    """What the engines import as `debian:12`."""
    assert pytestconfig.cache is not None
    folder, kept = tmp_path_factory.mktemp("base"), pytestconfig.cache.mkdir("base-image")
    with debian_archive(published_wheel, folder, kept, "bookworm") as archive:
        yield archive


@pytest.fixture(scope="session")
def podman(base_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHere]:
    """podman with a store of its own and the base image in it."""
    with _podman(tmp_path_factory.mktemp("podman")) as here:
        here("import", "--quiet", base_archive, f"docker.io/library/{BASE}")
        yield here


@contextlib.contextmanager
def _podman(folder: Path) -> Iterator[EngineHere]:
    (folder / "containers.conf").write_text(CONTAINERS_CONF.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
    env = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "TORCHSMITH_ENGINE": "podman",
    }
    here = EngineHere(Podman("podman", environ=env), env)
    EngineHere.all.append(here)
    try:
        yield here
    finally:
        EngineHere.all.remove(here)
        reset(here)
        _unmount(folder / "store/overlay")


def reset(podman: EngineHere) -> None:
    """Remove a store. What cleans up behind the last container writes an event meanwhile.

    conmon starts `podman container cleanup` when a container ends, and nobody waits for it: its
    event is a file in a folder that is being removed, which is then "not empty".
    """
    for _ in range(20):
        done = subprocess.run(
            podman.engine.command("system", "reset", "--force"),
            env=podman.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        time.sleep(0.5)
    raise AssertionError((done.stdout + done.stderr)[-4000:])


def _unmount(folder: Path) -> None:
    """Engines mount a store's folder on itself, and leave that when they are gone."""
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


@pytest.fixture(scope="session")
def second_podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHere]:
    """A podman whose store is empty."""
    with _podman(tmp_path_factory.mktemp("podman-empty")) as here:
        yield here


@pytest.fixture(scope="session")
def buildah(podman: EngineHere) -> EngineHere:
    """buildah, whose store is podman's."""
    env = {**podman.env, "TORCHSMITH_ENGINE": "buildah"}
    return EngineHere(Buildah("buildah", environ=env), env)


@pytest.fixture(scope="session")
def docker(base_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHere]:
    """docker with a daemon of its own and the base image in it. Its builds need network=host."""
    folder = tmp_path_factory.mktemp("docker")
    programs = folder / "bin"
    programs.mkdir()
    # The client beside the daemon: one from elsewhere may be newer, and lack its builder.
    (programs / "docker").symlink_to("/usr/bin/docker")
    env = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "DOCKER_HOST": f"unix://{folder}/docker.sock",
        "TORCHSMITH_ENGINE": "docker",
    }
    with _dockerd(folder, env):
        here = EngineHere(Docker(str(programs / "docker"), environ=env), env)
        here("import", base_archive, BASE)
        EngineHere.all.append(here)
        yield here
        EngineHere.all.remove(here)


@contextlib.contextmanager
def _dockerd(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    words = ["dockerd", "--host", env["DOCKER_HOST"], "--pidfile", str(folder / "pid")]
    words += ["--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    # No right to make interfaces is needed: containers use the machine's network.
    words += ["--iptables=false", "--bridge=none"]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while subprocess.run(["docker", "version"], env=env, capture_output=True).returncode:
            said = (folder / "log").read_text()[-4000:]
            assert daemon.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.2)
        yield
    finally:
        daemon.terminate()
        daemon.wait(60)
        _unmount(folder / "data")
        _unmount(folder / "exec/netns/default")
        shutil.rmtree(folder / "data", ignore_errors=True)
