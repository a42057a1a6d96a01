"""The first process of a container that a step runs in.

    python3 -I -S inside.py SCRIPT FOLDER

It runs the script as torchsmith would on its own machine, hands signals on, and takes everything
with it when it ends. FOLDER is shared with torchsmith and holds
  lifeline  a pipe that torchsmith keeps open: its end is torchsmith's own, however that came about
  alive     a file that is locked for as long as anything runs in here
  outcome   written at the end: CPU seconds and the largest process, in bytes

It starts in every container, from a Python that was copied there, so it imports the standard
library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from types import FrameType

# What torchsmith passes as a list, since only here it is known what stands behind it.
PATH = "TORCHSMITH_PATH"
# The store; set where compilers are to be given huge pages.
HUGE_PAGES = "TORCHSMITH_HUGE_PAGES"
# The store, and behind a line's end a compiler cache; set where every compiler is to ask the
# governor, not only those that CMake starts.
HOOK = "TORCHSMITH_HOOK"


def main(script: str, folder: str) -> int:
    """Run the script; its exit status, or 128 and the signal that ended it."""
    # The kernel lets go of it when this process is gone, and with it all others in here.
    alive = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118
    fcntl.flock(alive, fcntl.LOCK_EX)
    lifeline = os.open(os.path.join(folder, "lifeline"), os.O_RDONLY)  # noqa: PTH118
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    environment = _environment(dict(os.environ))
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", script], start_new_session=True, env=environment
    )

    def hand_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)
    status = _reap(process.pid)
    _end_all()
    _reap_rest()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = {"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}
    part = os.path.join(folder, "outcome.part")  # noqa: PTH118
    with open(part, "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(outcome, file)
    os.replace(part, os.path.join(folder, "outcome"))  # noqa: PTH105, PTH118
    return status


def _environment(env: dict[str, str]) -> dict[str, str]:
    """What the script sees: PATH complete, and what this container's gcc makes for it."""
    if before := env.pop(PATH, ""):
        env["PATH"] = f"{before}:{env.get('PATH', os.defpath)}"
    for variable, module in ((HUGE_PAGES, "huge_pages"), (HOOK, "compiler_hook")):
        if given := env.pop(variable, ""):
            words = [env["TORCHSMITH_PYTHON"], "-P", "-m", f"torchsmith.toolchain.{module}"]
            words += given.split("\n")
            asked = subprocess.run(words, stdout=subprocess.PIPE, env=env, check=False)
            if asked.returncode == 0:
                env.update(json.loads(asked.stdout or b"{}"))
    return env


def _watch(lifeline: int) -> None:
    """Take everything along when torchsmith is gone."""
    while os.read(lifeline, 1):
        pass
    _end_all()
    os._exit(137)


def _end_all() -> None:
    # Of a container's own processes, never of a machine's.
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _reap(script: int) -> int:
    """Wait for the script, and for all that others left to us meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == script:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reap_rest() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
