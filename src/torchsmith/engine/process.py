"""Running one script: its own session, its output to a log, its end in good order.

A script's processes are in a session of their own, so a Ctrl-C at the terminal reaches them only
through us, in order. They would therefore outlive us: a guard, a small bash that holds the work
folder's lock, ends them when we are killed, and releases the folder only then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.engine.places import Vessel
from torchsmith.errors import InterruptedRunError
from torchsmith.redact import LineReader, Redactor
from torchsmith.toolchain.processes import session_members


@contextlib.contextmanager
def hearing(signals: Iterable[signal.Signals], on_signal: Callable[[int], None]) -> Iterator[None]:
    """Call a function for each of these signals, for as long as this lasts."""
    if threading.current_thread() is not threading.main_thread():
        # Python lets only the main thread listen.
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    try:
        for number, handler in before.items():
            # `nohup` and a shell's `&` set signals to be ignored: they stay so.
            if handler != signal.SIG_IGN:
                signal.signal(number, lambda number, _: on_signal(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GRACE_S = 10.0
_POLL_S = 0.1
_CHUNK = 1 << 16

# Whether anything lives is read from /proc: a dead process nobody reaps (a container without an
# init) still answers `kill -0`.
_GUARD = """
members() {
  local file line pid
  for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    pid=${line%% *}
    line=(${line##*) })
    if [ "${line[3]}" = "$1" ] && [ "${line[0]}" != Z ]; then echo "$pid"; fi
  done
}
trap '' INT TERM HUP
declare -A groups tools names
while read -r sign group tool name file; do
  if [ "$sign" = + ]; then groups[$group]=$file; tools[$group]=$tool; names[$group]=$name
  else unset "groups[$group]"; fi
done
for group in "${!groups[@]}"; do kill -TERM -- "-$group"; done
for group in "${!groups[@]}"; do
  tries=40
  # A container ends by itself, and lets go of this when it has. What started it then puts it away,
  # and would leave half of it if it were killed meanwhile.
  if [ -n "${groups[$group]}" ]; then flock "${groups[$group]}" true; tries=600; fi
  while [ $((tries--)) -gt 0 ] && [ -n "$(members "$group")" ]; do sleep 0.05; done
  # Some may be in groups of their own by now, as ninja's commands are.
  kill -KILL -- "-$group" $(members "$group")
  if [ -n "${groups[$group]}" ]; then "${tools[$group]}" rm --force "${names[$group]}"; fi
done
"""


class Stop:
    """A request to stop; a second request stops at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = False

    def request(self, number: int = signal.SIGTERM) -> None:
        """Request the end."""
        self.at_once = self.signal is not None
        self.signal = self.signal or number

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take Ctrl-C, SIGTERM and SIGHUP as requests to stop, for as long as this lasts."""
        with hearing(_STOPPING, self.request):
            yield


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guard:
    """Ends the processes of our scripts should we be killed."""

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def _send(self, line: str) -> None:
        with self._turn:
            if self._process is None:
                self._process = subprocess.Popen(
                    ["bash", "-c", _GUARD],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(self._lock,),
                    start_new_session=True,
                    bufsize=0,
                )
            with contextlib.suppress(BrokenPipeError):
                assert self._process.stdin is not None
                self._process.stdin.write(line.encode())

    @contextlib.contextmanager
    def over(self, group: int, vessel: Vessel | None = None) -> Iterator[None]:
        """Watch over a process group, and over the container that it started."""
        about = f"{Path(vessel.tool).name} {vessel.name} {vessel.alive}" if vessel else "- -"
        self._send(f"+ {group} {about}\n")
        try:
            yield
        finally:
            self._send(f"- {group}\n")

    def close(self) -> None:
        """End the guard: nothing runs any more."""
        if self._process is not None:
            self._process.communicate()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended; a negative status is a signal.

    `lost`: its container disappeared before it ended.
    """

    status: int
    seconds: float
    cpu_seconds: float
    peak_rss: int
    stopped: bool
    lost: bool = False


@dataclass
class _Script:
    process: subprocess.Popen[bytes]
    stop: Stop
    grace: float
    deadline: float | None = None
    insisted: bool = False

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def heed(self) -> None:
        """Pass on a request to stop; kill a script that ignores it."""
        if self.stop.signal is None:
            return
        if self.deadline is None:
            self.deadline = time.monotonic() + self.grace
            self.send(self.stop.signal)
        elif self.stop.at_once or time.monotonic() > self.deadline:
            self.insisted = True
            self.send(signal.SIGKILL)

    def ended(self) -> bool:
        """Whether the shell has ended; what it left in the background may hold its output open."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def reap(self) -> tuple[int, float, int]:
        # Until the shell is reaped nobody else has its number. Its children may have groups of
        # their own, as ninja's commands do.
        self.send(signal.SIGKILL)
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        # Linux counts the largest process in KiB.
        return self.process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def run_script(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    *,
    redactor: Redactor,
    on_line: Callable[[str], None],
    stop: Stop,
    guard: Guard,
    grace: float = GRACE_S,
    vessel: Vessel | None = None,
) -> Outcome:
    """Run a script to its end, or until told to stop; a `vessel` is a container, ended with it."""
    began = time.monotonic()
    lost = False
    with room(log.parent), log.open("ab", buffering=0) as file:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        running = _Script(process, stop, grace)
        with process.stdin, process.stdout, guard.over(process.pid, vessel):
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(b"\n")
                    process.stdin.close()
                _follow(running, process.stdout.fileno(), LineReader(redactor), file.write, on_line)
            finally:
                status, cpu, peak = running.reap()
                if vessel is not None:
                    vessel.close(remove=running.insisted)
                    used = vessel.used()
                    lost = used is None
                    cpu, peak = used or (cpu, peak)
    seconds = time.monotonic() - began
    return Outcome(status, seconds, cpu, peak, running.deadline is not None, lost)


def _follow(
    running: _Script,
    output: int,
    lines: LineReader,
    keep: Callable[[bytes], int],
    on_line: Callable[[str], None],
) -> None:
    """Write a script's output to the log, and pass it on line by line."""

    def hand_on(content: bytes) -> None:
        rest = content
        while rest:
            rest = rest[keep(rest) :]
        for line in content.splitlines():
            on_line(line.decode(errors="replace"))

    os.set_blocking(output, False)
    talking = True
    while True:
        running.heed()
        over = running.ended()
        if talking:
            select.select([output], [], [], 0 if over else _POLL_S)
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(output, _CHUNK)
                talking = bool(chunk)
                hand_on(lines.feed(chunk))
                # There may be more output, even of a script that has ended.
                continue
        elif not over:
            time.sleep(0.005)
        if over:
            break
    hand_on(lines.finish())


# Ctrl-C is an error in Python already.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def heeding_signals(*more: signal.Signals) -> Iterator[None]:
    """Raise an error for signals that would otherwise end us and leave a program behind."""

    def stop(number: int) -> None:
        raise InterruptedRunError(number)

    with hearing((*_SIGNALS, *more), stop):
        yield
