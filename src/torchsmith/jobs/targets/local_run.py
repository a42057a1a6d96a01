"""`python -m torchsmith.jobs.targets.local_run FOLDER`: one job of this machine, to its end.

It alone writes that the job began and how it ended, and it begins a job only once, whoever asks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from torchsmith.engine.disk import write_whole
from torchsmith.engine.journal import born
from torchsmith.jobs.client import Submitted, TargetId
from torchsmith.jobs.local import JOB
from torchsmith.jobs.states import State
from torchsmith.jobs.targets.local import PROCESS, Local, end_all

_POLL_S = 0.5
_GRACE_S = 2.0


def main(kept: Path) -> int:
    """Run the job that is written down in a folder."""
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
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda heard, _: job.send_signal(heard))
    code = job.wait()
    # What it left behind, as a task that did not hear that its time is up, ends with it.
    end_all(os.environ[JOB], _GRACE_S, run["container"])
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
