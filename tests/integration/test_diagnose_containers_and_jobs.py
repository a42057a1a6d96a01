"""Containers and jobs are made to fail here and now; what they say is known again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchsmith.cli.diagnose import known_of_log
from torchsmith.diagnose.diagnose import diagnose

pytestmark = pytest.mark.integration

# Podman as it runs inside a container; the network is the machine's own.
CONTAINERS_CONF = """
[containers]
netns = "host"
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
SLURM_CONF = """
ClusterName=nobody
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
MessageTimeout=2
StateSaveLocation={folder}
NodeName=n1 NodeAddr=127.0.0.1 CPUs=1
PartitionName=debug Nodes=ALL Default=YES
"""


def failing(*command: object, env: dict[str, str] | None = None) -> str:
    """What a command that fails says."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=90,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode != 0, done.stdout
    return done.stdout


def first(said: str) -> str:
    found = diagnose(said.splitlines()).named
    assert found, said
    return found[0].id


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
    return number


@pytest.fixture
def plain_server() -> Iterator[int]:
    """A server that speaks http only, whatever it is told."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


class Engine:
    """podman with a store of its own."""

    def __init__(self, folder: Path, short: Path) -> None:
        self.folder = folder
        # podman refuses a folder for this whose path is longer than 50 letters.
        self.short = short
        conf = folder / "containers.conf"
        conf.write_text(CONTAINERS_CONF)
        self.env = {"CONTAINERS_CONF": str(conf)}
        self.words = ["podman", "--root", str(folder / "root"), "--runroot", str(short / "run")]

    def fails(self, *words: object) -> str:
        return failing(*self.words, *words, env=self.env)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, rendering_tools: None) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("engine")
    short = Path(tempfile.mkdtemp(prefix="podman-"))
    made = Engine(folder, short)
    program = ["gcc", "-static", "-x", "c", "-", "-o", str(folder / "ok")]
    subprocess.run(program, input="int main(void) { return 0; }", text=True, check=True)
    (folder / "text").write_text("no program\n")
    (folder / "text").chmod(0o755)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY ok text /bin/\n")
    build = [*made.words, "build", "--quiet", "--tag", "tiny", str(folder)]
    subprocess.run(build, env={**os.environ, **made.env}, check=True, capture_output=True)
    yield made
    # The store's overlay stays mounted onto itself.
    subprocess.run(["umount", str(folder / "root/overlay")], check=False, capture_output=True)
    shutil.rmtree(short)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--rm", "tiny", "train"], "container-command-missing"),
        (["run", "--rm", "tiny", "nvidia-smi"], "container-without-nvidia-runtime"),
        (["run", "--rm", "tiny", "/bin/text"], "exec-format"),
        (["run", "--rm", "--device", "nvidia.com/gpu=all", "tiny", "ok"], "cdi-device-unknown"),
        (["pull", "no-such-name-anywhere"], "image-short-name"),
    ],
)
def test_a_container_that_does_not_start(engine: Engine, words: list[str], expected: str) -> None:
    assert first(engine.fails(*words)) == expected


def test_a_registry_without_a_certificate(engine: Engine, plain_server: int) -> None:
    said = engine.fails("push", "tiny", f"docker://127.0.0.1:{plain_server}/x/y:1")
    assert first(said) == "registry-plain-http"


def test_a_store_without_room(engine: Engine, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        (tmp_path / "big").write_bytes(os.urandom(3 << 20))
        subprocess.run(["tar", "-C", tmp_path, "-cf", tmp_path / "big.tar", "big"], check=True)
        store = ["podman", "--root", small / "root", "--runroot", engine.short / "small"]
        said = failing(*store, "import", tmp_path / "big.tar", "big:1", env=engine.env)
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", small], check=True)
    assert first(said) == "image-storage-full"


def test_a_cluster_whose_controller_is_not_there(
    rendering_tools: None, tmp_path: Path, port: int
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(SLURM_CONF.format(port=port, folder=tmp_path))
    said = failing("sbatch", "--wrap", "true", env={"SLURM_CONF": str(conf)})
    assert first(said) == "slurm-controller-silent"


def test_a_rendezvous_that_too_few_come_to(published_torch: Path, port: int) -> None:
    words = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "1", "-m", "this"]
    words[:0] = ["--rdzv-endpoint", f"localhost:{port}", "--rdzv-conf", "join_timeout=1,timeout=1"]
    said = failing(published_torch / "bin/torchrun", *words, env={"PYTHONWARNINGS": "ignore"})
    assert first(said) == "rendezvous-incomplete"


def test_a_rendezvous_that_nobody_listens_at(
    published_torch: Path, port: int, tmp_path: Path
) -> None:
    program = (
        "import datetime, torch.distributed as d;"
        f" d.TCPStore('127.0.0.1', {port}, 2, False, timeout=datetime.timedelta(seconds=1))"
    )
    said = failing(published_torch / "bin/python", "-c", program)
    assert first(said) == "rendezvous-unreachable"
    # As a command says it at its end: from the log, or from its lines where there is none.
    log = tmp_path / "job.log"
    log.write_text(said)
    (line,) = known_of_log(log)
    assert line.startswith("known: A process does not reach the one the others meet at")
    assert known_of_log(tmp_path / "none", said.splitlines()) == [line]
