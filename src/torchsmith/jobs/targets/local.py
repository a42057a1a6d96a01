"""This machine: a job is a process of its own, which outlives the command that started it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torchsmith.engine.disk import write_whole
from torchsmith.engine.journal import born
from torchsmith.errors import ClusterError, HostError, UsageError
from torchsmith.foreign import MalformedError, number, read_json, table, text
from torchsmith.jobs import local, record
from torchsmith.jobs.client import Listed, Output, Request, Status, Submitted, TargetId
from torchsmith.jobs.kept_secrets import handed_on, kept_here
from torchsmith.jobs.local import JOB
from torchsmith.jobs.states import State, of_exit
from torchsmith.programs import call, detach

# Which process runs the job.
PROCESS = "process.json"
# A busy machine takes long to start Python.
_START_S = 60.0
_GRACE_S = 5.0
_INSIST_S = 10.0


class Local:
    """Processes of this machine, each job under a small one that waits for it."""

    engine = "local"
    # The program of a container tool; none: plain processes.
    container = ""

    def __init__(self, place: str = "") -> None:
        self.place = place

    def check(self, request: Request) -> tuple[str, ...]:
        """Refuse what cannot be run here."""
        if not Path("/proc/self/stat").exists():
            raise HostError("jobs run here on Linux only: there is no /proc")
        if request.job.slurm.array:
            raise UsageError(
                f"job {request.job.name}: this machine runs no arrays",
                "Submit it once for each index, or to slurm.",
            )
        if self.container and shutil.which(self.container) is None:
            raise HostError(
                f"{self.container} is not installed here: it is not on the PATH",
                "Install it, or run the job without its image: --to local.",
            )
        kept_here(request.job)
        return local.render(request.job, self.container).notes

    def submit(self, request: Request, token: str) -> TargetId:
        """Start it; both that it began and that it ended are written by the job itself."""
        kept = request.kept
        kept.mkdir(parents=True, exist_ok=True)
        script = local.script(request.job, str(kept), self.container)
        write_whole(kept / "job.sh", script.encode())
        run = {
            "folder": str(request.folder),
            "after": [str(one) for one in request.after],
            "container": self.container,
        }
        write_whole(kept / "run.json", json.dumps(run).encode())
        with (kept / record.SCRIPT_LOG).open("ab") as log:
            process = detach(
                [sys.executable, "-P", "-m", "torchsmith.jobs.targets.local", str(kept)],
                log,
                env={**handed_on(request.job, os.environ), local.JOB: token},
            )
        end = time.monotonic() + _START_S
        while (found := self.find(token, kept)) is None:
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                end_all(token, 0, self.container)
                last_lines = "\n  ".join(_tail(kept / record.SCRIPT_LOG))
                raise ClusterError(f"job {request.job.name} did not start:\n  {last_lines}")
            time.sleep(0.02)
        return found

    def find(self, token: str, kept: Path) -> TargetId | None:
        """The folder of a job that began: its own id, as pids come again."""
        return TargetId(str(kept)) if (kept / PROCESS).exists() else None

    def status(self, job: Submitted) -> Status | None:
        """Where it is, by what it wrote and by whether its process lives."""
        began = record.mark(job.kept, "started")
        ended = record.mark(job.kept, "ended")
        if ended is None and not _lives(job.kept):
            # It may have ended since the first look.
            ended = record.mark(job.kept, "ended")
        stopped = record.mark(job.kept, "cancelled")
        code: int | None = None
        reason = ""
        if stopped is not None:
            state = State.CANCELLED
            reason = stopped.word.replace("_", " ")
        elif ended is not None:
            code = int(ended.word)
            state = of_exit(code)
            reason = f"exit code {code}" if code else ""
        elif _lives(job.kept):
            state = State.RUNNING if began else State.WAITING
        elif _marked(_token(job.kept)):
            state = State.RUNNING
            reason = "what waited for it is gone: nobody will see how it ends"
        else:
            return None
        end = stopped or ended
        return Status(
            state,
            reason=reason,
            exit_code=code,
            nodes=("localhost",),
            started=began.at if began else None,
            ended=end.at if end else None,
            tasks=record.tasks(job.kept, job.roles, state),
        )

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        """Its output, out of the files its tasks write."""

        def over() -> bool:
            status = self.status(job)
            return status is None or status.state.over

        return record.lines(job, wanted, over)

    def cancel(self, job: Submitted) -> None:
        """Stop every process of the job: those that hid in another session too."""
        if record.mark(job.kept, "ended") or record.mark(job.kept, "cancelled"):
            return
        write_whole(job.kept / "cancelled", f"by_request {time.time()}".encode())
        if left := end_all(_token(job.kept), _GRACE_S, self.container):
            raise ClusterError(f"processes of the job do not end: {', '.join(map(str, left))}")

    def list(self) -> tuple[Listed, ...]:
        """Nobody but the journal lists the jobs of this machine."""
        return ()


def _token(kept: Path) -> str:
    try:
        return text(table(read_json((kept / PROCESS).read_bytes())), "token")
    except (OSError, MalformedError):
        return ""


def _lives(kept: Path) -> bool:
    """Whether the process of a job is still the one that began it."""
    try:
        process = table(read_json((kept / PROCESS).read_bytes()))
    except (OSError, MalformedError):
        return False
    began = born(number(process, "pid") or 0)
    return bool(began) and began == process.get("born")


class Podman(Local):
    """The same with each task in a container of podman."""

    engine = "podman"
    container = "podman"


class Docker(Local):
    """The same with each task in a container of docker."""

    engine = "docker"
    container = "docker"


def end_all(token: str, grace: float, container: str) -> list[int]:
    """End the processes of a job except this one, by force after a while; returns what stays."""
    if container:
        # Docker's are not among our processes.
        _containers(token, container, "stop", "--time", f"{grace:.0f}")
    began = time.monotonic()
    while pids := _marked(token):
        waited = time.monotonic() - began
        if waited > grace + _INSIST_S:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if waited > grace else signal.SIGTERM)
        time.sleep(0.1)
    if container:
        # The process that would have removed them has been ended too.
        _containers(token, container, "rm", "--force")
    return pids


def _containers(token: str, container: str, *words: str) -> None:
    """Do something to the containers of a job."""
    label = f"label={local.LABEL}={token}"
    if there := call([container, "ps", "--all", "--quiet", "--filter", label]).out.split():
        call([container, *words, *there])


def _marked(token: str) -> list[int]:
    """The processes that carry a job's token, whatever session or parent they have."""
    if not token:
        return []
    mark = f"{local.JOB}={token}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and folder.name != str(os.getpid()):
            # Processes of others cannot be read, and some end meanwhile.
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def _tail(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]


_POLL_S = 0.5
_LEFTOVERS_S = 2.0


def main(kept: Path) -> int:
    """Run the job of a folder to its end: `python -m torchsmith.jobs.targets.local FOLDER`.

    This process alone writes that the job began and how it ended, and it begins a job only once,
    whoever asks.
    """
    run = json.loads((kept / "run.json").read_bytes())
    pid = os.getpid()
    mine = kept / f".process.{pid}"
    write_whole(
        mine, json.dumps({"pid": pid, "born": born(pid), "token": os.environ[JOB]}).encode()
    )
    try:
        # Whoever gives this name runs the job.
        (kept / PROCESS).hardlink_to(mine)
    except FileExistsError:
        return 0
    finally:
        mine.unlink()
    if failed := _failed([Path(one) for one in run["after"]]):
        _mark(kept, "cancelled", f"{failed}_did_not_succeed")
        return 1
    _mark(kept, "started", str(pid))
    job = subprocess.Popen(
        ["sh", str(kept / "job.sh")], cwd=run["folder"], stdin=subprocess.DEVNULL
    )
    # A job that is to stop is told so itself; we stay until it has.
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, lambda heard, _: job.send_signal(heard))
    code = job.wait()
    # What it left behind, as a task that did not hear that its time is up, ends with it.
    end_all(os.environ[JOB], _LEFTOVERS_S, run["container"])
    _mark(kept, "ended", str(code if code >= 0 else 128 - code))
    return 0


def _mark(kept: Path, name: str, word: str) -> None:
    write_whole(kept / name, f"{word} {time.time()}".encode())


def _failed(before: list[Path]) -> str:
    """Wait for other jobs; the id of the first that did not end well."""
    for kept in before:
        other = Submitted(TargetId(str(kept)), kept, {})
        while (status := Local().status(other)) is not None and not status.state.over:
            time.sleep(_POLL_S)
        if status is None or status.state is not State.SUCCEEDED:
            return kept.name
    return ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
