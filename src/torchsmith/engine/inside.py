"""The first process of a container that a step runs in.

    python3 -I -S inside.py SCRIPT FOLDER

It runs the script as torchsmith would on its own machine, passes signals on, and ends everything
else when it ends. FOLDER is shared with torchsmith and holds
  lifeline  a pipe that torchsmith keeps open: it ends when torchsmith ends, in whatever way
  alive     a file that is locked for as long as anything runs in here
  outcome   written at the end: CPU seconds and the largest process, in bytes
  resolver  there if the container has no network: the file in which programs look for a name server

A Python copied into the container starts it, so it imports only the standard library.
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

# Folders for the front of PATH: only the container knows the rest.
PATH = "TORCHSMITH_PATH"
# The store; set where compilers are to be given huge pages.
HUGE_PAGES = "TORCHSMITH_HUGE_PAGES"
# The store and, on the next line, a compiler cache; set if every compiler is to ask the governor,
# not only those that CMake starts.
HOOK = "TORCHSMITH_HOOK"


def main(script: str, folder: str) -> int:
    """Run the script; its exit status, or 128 and the signal that ended it."""
    # The kernel releases it when this process and all others in the container are gone.
    alive = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(alive, fcntl.LOCK_EX)
    lifeline = os.open(os.path.join(folder, "lifeline"), os.O_RDONLY)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    environment = _environment(dict(os.environ))
    words = ["bash", "-euo", "pipefail", script]
    if os.path.exists(os.path.join(folder, "resolver")):
        # It prints the names that the script asks the network for.
        listener = os.path.join(os.path.dirname(__file__), "hermetic.py")
        words = [sys.executable, "-I", "-S", listener, os.devnull, *words]
    process = subprocess.Popen(words, start_new_session=True, env=environment)

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    status = _reap(process.pid)
    _end_all()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = {"cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss * 1024}
    part = os.path.join(folder, "outcome.part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump(outcome, file)
    os.replace(part, os.path.join(folder, "outcome"))
    return status


def _environment(env: dict[str, str]) -> dict[str, str]:
    """The script's environment: with all of PATH, and libraries made by this container's gcc."""
    if before := env.pop(PATH, ""):
        env["PATH"] = f"{before}:{env.get('PATH', os.defpath)}"
    for variable, library in ((HUGE_PAGES, "huge_pages"), (HOOK, "compiler_hook")):
        if arguments := env.pop(variable, ""):
            words = [env["TORCHSMITH_PYTHON"], "-P", "-m", "torchsmith.toolchain.preload", library]
            words += arguments.split("\n")
            answer = subprocess.run(words, stdout=subprocess.PIPE, env=env, check=False)
            if answer.returncode == 0:
                env.update(json.loads(answer.stdout or b"{}"))
    return env


def _watch(lifeline: int) -> None:
    """End everything when torchsmith is gone."""
    while os.read(lifeline, 1):
        pass
    _end_all()
    os._exit(137)


def _end_all() -> None:
    # Only in a container, never on a machine itself.
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _reap(script: int) -> int:
    """Wait for the script, and meanwhile reap processes that lost their parent."""
    while True:
        pid, status = os.wait()
        if pid == script:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
