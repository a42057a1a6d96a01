"""The job commands in this process, where starting one for each would take most of the time."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.torchsmith_jobs import Jobs, command_lines

from torchsmith.cli import main
from torchsmith.jobs.states import State


class JobsHere(Jobs):
    """The same commands, called without a new Python."""

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        words = ["torchsmith", "job", *map(str, arguments)]
        said, complaints = io.StringIO(), io.StringIO()
        threshold = gc.get_threshold()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", words)
            patch.chdir(self.folder)
            for name, value in self.environ.items():
                patch.setenv(name, value)
            with (
                contextlib.redirect_stdout(said),
                contextlib.redirect_stderr(complaints),
                pytest.raises(SystemExit) as ended,
            ):
                main()
        gc.set_threshold(*threshold)
        code = ended.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(words, code, said.getvalue(), complaints.getvalue())

    def told(self, job: str) -> Any:
        """What is known of a job."""
        done = self.call("status", job, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ended(self, job: str) -> Any:
        """The same, when it is over."""
        end = time.monotonic() + 60
        while not State((found := self.told(job))["state"]).over:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found


def watched(jobs: Jobs, *arguments: str | Path) -> bytes:
    """Everything a command shows: what it says, and what others see of it while it runs."""
    seen: list[bytes] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.append(command_lines())
            over.wait(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        done = Jobs(jobs.folder, jobs.to, jobs.env).call(*arguments)
    finally:
        over.set()
        thread.join()
    assert done.returncode == 0, done.stderr
    return b"\n".join((*seen, done.stdout.encode(), done.stderr.encode()))
