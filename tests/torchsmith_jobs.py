"""The job commands as a person calls them: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.slurm_cluster import until

from torchsmith.jobs.client import Status
from torchsmith.jobs.submissions import Submission, Submissions, refreshed

# As the installed command does: nothing is imported from the folder it is called in.
COMMAND = [sys.executable, "-P", "-m", "torchsmith", "job"]


@dataclass
class Jobs:
    """Jobs submitted from one folder, with a journal of their own."""

    folder: Path
    to: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """What the commands are called with."""
        return {**os.environ, "TORCHSMITH_STORE": str(self.folder / "store"), **self.env}

    def write(self, command: str | list[str], more: str = "", name: str = "job") -> Path:
        """A job file with one role."""
        path = self.folder / f"{name}.toml"
        role = f"[[role]]\nmemory_mb = 100\ncommand = {json.dumps(command)}\n"
        path.write_text(f'name = "{name}"\n{more}\n{role}', encoding="utf-8")
        return path

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def submit(self, job: Path, *arguments: str) -> str:
        """Submit a job; its id."""
        done = self.call("submit", job, "--to", self.to, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[0]

    def status(self, job: str) -> Submission:
        """What is known of a job, without the price of a command."""
        with closing(Submissions(self.folder / "store")) as submissions:
            return refreshed(submissions.get(job), submissions)

    def list(self) -> Any:
        """What is known of all jobs."""
        done = self.call("list", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["jobs"]

    def until(self, job: str, *states: str, seconds: float = 60) -> Status:
        """Wait until a job is in one of these states."""
        end = time.monotonic() + seconds
        while (found := self.status(job).status).state not in states:
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    def says(self, job: str, words: str) -> None:
        """Wait until the output of a job holds these words."""
        kept = self.folder / "store/jobs" / job
        until(lambda: any(words in path.read_text() for path in kept.rglob("*-*.log")))


def command_lines() -> bytes:
    """What any user of this machine sees of all its processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def kept_bytes(folder: Path) -> bytes:
    """Everything in the files of a folder."""
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
