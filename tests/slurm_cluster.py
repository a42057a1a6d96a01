"""A real Slurm of two nodes on this machine, in a folder and on ports of its own.

Each node has a host name of its own, as torchrun asks for one, and two GPUs that are none.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NODES = ("n1", "n2")

_CONFIGURATION = """\
ClusterName=loop
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.log
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SchedulerParameters=sched_interval=1,bf_interval=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=2
MessageTimeout=5
MinJobAge={forget}
GresTypes=gpu
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverTimeLimit=0
"""
_GRES = "NodeName=n[1-2] Name=gpu File=/dev/null\nNodeName=n[1-2] Name=gpu File=/dev/zero\n"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def until(what: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def _in_namespace_of(pid: int) -> list[int]:
    """A process and all that see the same files mounted: a node and what runs on it."""
    mine = Path(f"/proc/{pid}/ns/mnt").readlink()
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "ns/mnt").readlink() == mine:
                found.append(int(folder.name))
    return found


class Cluster:
    """The cluster; `forget`: how many seconds after its end a job is still known."""

    def __init__(self, folder: Path, *, forget: int = 3600) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("run", "state", "log", *(f"spool/{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        # munged and slurmctld look at the way to their files: nobody else may write there.
        folder.chmod(0o755)
        controller, *ports = _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=8000 Gres=gpu:2"
            for node, port in zip(NODES, ports, strict=True)
        )
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(folder=folder, controller=controller, nodes=nodes, forget=forget)
        )
        (folder / "gres.conf").write_text(_GRES)
        (folder / "hosts").write_text("127.0.0.1 localhost n1 n2\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Bring everything up and wait until both nodes take jobs."""
        run = self.folder / "run"
        munge = [f"--{name}={run}/munge.{name.split('-')[0]}" for name in ("pid-file", "seed-file")]
        self._spawn(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={run}/munge.sock", *munge),
            *(f"--key-file={self.folder}/munge.key", f"--log-file={self.folder}/log/munged.log"),
        )
        until((run / "munge.sock").exists)
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle", "idle"])

    def _spawn(self, name: str, *command: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as said:
            self._daemons[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def _end(self, name: str, kind: signal.Signals) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, kind)
            daemon.wait()

    def start_controller(self) -> None:
        """Start slurmctld; it goes on from what it knew."""
        self._spawn("slurmctld", "slurmctld", "-D")
        until(lambda: "is UP" in self.ask("scontrol", "ping"))

    def stop_controller(self) -> None:
        """Have nobody answer."""
        self._end("slurmctld", signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Start a node's daemon; its name is that of the machine it sees itself on."""
        enter = f'hostname {node}; mount --bind "$0" /etc/hosts; exec slurmd -D -N {node}'
        hosts = str(self.folder / "hosts")
        self._spawn(node, "unshare", "--uts", "--mount", "bash", "-c", enter, hosts)

    def kill_node(self, node: str) -> None:
        """Lose a node: its daemon and everything that runs on it, as a power cut would."""
        daemon = self._daemons.pop(node, None)
        if daemon is None:
            return
        # All stand still first, also those started meanwhile: nobody lives to report the death of
        # another.
        pids: set[int] = set()
        while more := set(_in_namespace_of(daemon.pid)) - pids:
            for pid in more:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            pids |= more
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        daemon.wait()

    def ask(self, *command: str) -> str:
        """What a program of Slurm answers."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    def stop(self) -> None:
        """End everything, jobs first."""
        for node in NODES:
            self.kill_node(node)
        self._end("slurmctld", signal.SIGTERM)
        self._end("munged", signal.SIGTERM)


@contextlib.contextmanager
def running_cluster(folder: Path, *, forget: int = 3600) -> Iterator[Cluster]:
    """A cluster for as long as this lasts; its programs are installed where they are missing."""
    subprocess.run([ROOT / "tools/install_test_tools.sh"], check=True)
    cluster = Cluster(folder, forget=forget)
    try:
        cluster.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
            yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
