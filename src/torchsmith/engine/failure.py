"""Finding, in the log of a failed step, the few lines that give the reason."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

_MOST_LINES = 15
_CONTEXT = 3
_TAIL = 60

# Written by the program that failed. The first such line is the cause, the others follow from it.
_CAUSE = re.compile(
    r"""
      ^\S.*?(:\d+|\(\d+\))\s*:\s+(fatal\ |internal\ compiler\ )?error\b   # file:12:3: error: …
    | \b(cc1plus|cc1|c\+\+|g\+\+|gcc|clang(\+\+)?|nvcc|nvlink|ptxas|collect2)\S*(?:\ *:)?\ +
      (fatal\ )?(error\ *:|fatal\ *:)
    | ^(nvcc\ fatal|ptxas\ fatal)\b
    | \bundefined\ reference\ to\b | \bmultiple\ definition\ of\b
    | ^(\S*/)?(ld|mold|lld|ld\.\w+)(\.\w+)?:\ .*(error|cannot\ find|undefined)
    | ^CMake\ Error\b
    | ^ninja:\ (error|fatal):
    | \bNo\ space\ left\ on\ device\b | \bDisk\ quota\ exceeded\b | \bFile\ size\ limit\ exceeded\b
    | \bKilled\ signal\ terminated\ program\b
    | ^(fatal|E):\ \S                                                      # git, apt
    | ^curl:\ \(\d+\)
    """,
    re.VERBOSE,
)
# Written by any program, often without consequence: the last such line counts.
_MAYBE = re.compile(
    r"(?<![-\w])(\w*Error|error|ERROR|\w*Exception|\w+Expired|\w+Failed|fatal|FAILED|Killed)(:|\b.*:)"
    r"|^\w+Error\s+Traceback \(most recent call last\)"
)
# Written about another program or process, whose own words are better.
_RELAYED = re.compile(
    r"CalledProcessError|ChildFailedError|ProcessRaisedException|ProcessExitedException"
    r"|Error (?:compiling objects for|building) extension|subprocess-exited-with-error"
    r"|Failed building wheel|failed-wheel-build|metadata-generation-failed|legacy-install-failure"
    r"|error_file|Command errored out|failed \(exitcode|[Ee]xited with exit code"
    r"|completed with exit|Engine core|EngineDeadError"
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What ninja and make write about a program whose own words stand above.
_ECHO = re.compile(r"^(FAILED: |ninja: build stopped|make(\[\d+\])?: \*\*\*)")
_NO_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|File size limit exceeded|File too large"
)


def explain(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines of a log that give the reason, in order, at most a screen of them."""
    before: deque[str] = deque(maxlen=2)
    tail: deque[str] = deque(maxlen=_TAIL)
    found: list[str] = []
    wanted = 0
    for raw in lines:
        line = _ANSI.sub("", raw.rstrip("\r\n"))
        if not line.strip():
            continue
        line = line if len(line) <= 400 else line[:397] + "..."
        tail.append(line)
        if len(found) >= _MOST_LINES:
            continue
        # pip indents what its programs print.
        text = line.lstrip()
        if _CAUSE.search(text) and not _ECHO.match(text):
            if not found:
                found += [item for item in before if _is_position(item)]
            found.append(line)
            wanted = _CONTEXT
        elif wanted:
            if _ECHO.match(text):
                wanted = 0
                continue
            found.append(line)
            wanted -= 1
        before.append(line)
    return tuple(found[:_MOST_LINES]) or _ending(list(tail))


def _is_position(line: str) -> bool:
    """Whether a line tells where the compiler was: `x.cpp: In function ‘int main()’:`."""
    text = line.lstrip()
    return text.startswith("In file included") or (text.endswith(":") and ": In " in text)


def _ending(tail: list[str]) -> tuple[str, ...]:
    """No program named its error: the end of the log, from the last line that sounds like one."""
    errors = [index for index, line in enumerate(tail) if _MAYBE.search(line)]
    own = [index for index in errors if not _RELAYED.search(tail[index])]
    if not errors:
        return tuple(tail[-8:])
    start = max(0, (own or errors)[-1] - _CONTEXT)
    return tuple(tail[start : start + _MOST_LINES])


def fatal_line(found: Sequence[str]) -> int | None:
    """Which of the lines that `explain` found names the failure: the first of a compiler or tool,
    else the last."""
    causes = [
        index
        for index, line in enumerate(found)
        if _CAUSE.search(line.lstrip()) and not _ECHO.match(line.lstrip())
    ]
    if causes:
        return causes[0]
    own = [
        index
        for index, line in enumerate(found)
        if _MAYBE.search(line) and not _RELAYED.search(line)
    ]
    return own[-1] if own else None


def explain_log(log: Path) -> tuple[str, ...]:
    """The lines of a log file that say why its step failed."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return explain(file)
    except OSError:
        return ()


def ran_out_of_room(excerpt: Iterable[str]) -> bool:
    """Whether the program says that the disk is full."""
    return any(_NO_ROOM.search(line) for line in excerpt)


def describe_exit(status: int) -> str:
    """How a process ended, in words: negative is a signal, as Python writes it."""
    if status == -9 or status == 137:
        return "it was killed (signal 9): most often because memory ran out"
    if status < 0:
        return f"it was ended by signal {-status}"
    return f"it ended with exit status {status}"
