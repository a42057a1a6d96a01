"""Every call of git, in an environment where it asks nothing and runs nothing of others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.programs import Answer, apart
from torchsmith.sources.addresses import shown

if TYPE_CHECKING:
    from torchsmith.sources.tree import Progress

# What a person may have set to reach their servers; every other GIT_ variable could point git
# at another repository, configuration or program.
_KEPT = frozenset(
    {
        "GIT_SSL_CAINFO",
        "GIT_SSL_CAPATH",
        "GIT_SSL_CERT",
        "GIT_SSL_KEY",
        "GIT_SSH_COMMAND",
        "GIT_SSH",
    }
)
_SETTINGS = (
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.http.allow=always",
    "protocol.ssh.allow=always",
    "protocol.git.allow=always",
    "protocol.ext.allow=never",
    # Programs a repository or configuration could have run.
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "core.alternateRefsCommand=",
    "log.showSignature=false",
    "gpg.program=false",
    "submodule.recurse=false",
    # Housekeeping in the background would outlive us and hold the folder.
    "gc.auto=0",
    "maintenance.auto=false",
    # A server that has gone silent: give up and try again rather than wait for ever.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "advice.detachedHead=false",
    # A tree must be the same bytes on every machine.
    "core.autocrlf=false",
    "core.eol=lf",
    "core.fileMode=true",
    "core.symlinks=true",
)
_RECEIVING = re.compile(
    r"(?:remote: )?(\w[\w ]+):\s+(\d+)% \(\d+/\d+\)(?:, ([\d.]+) (bytes|KiB|MiB|GiB))?"
)
_UNIT = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Asking again changes nothing about these.
_MISSING = re.compile(
    r"not found|does not exist|not appear to be a git repository|no such file"
    r"|couldn't find remote ref|could not find remote ref",
    re.IGNORECASE,
)
_FINAL = re.compile(
    r"authentication failed|could not read (?:username|password)|permission denied"
    r"|transport '.*' not allowed|certificate|dubious ownership|host key verification",
    re.IGNORECASE,
)

# Not by this commit, or not without its history: servers differ in what may be asked for.
_REFUSED = re.compile(
    r"not our ref|unadvertised object|does not support shallow|couldn't find remote ref"
    r"|server does not support|not a valid object name",
    re.IGNORECASE,
)


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The environment git runs in."""
    env = {name: value for name, value in base.items() if not name.startswith("GIT_")}
    env |= {name: base[name] for name in _KEPT if name in base}
    env |= {"GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    env.pop("SSH_ASKPASS", None)
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    return env


def git(
    *arguments: str,
    folder: Path,
    local: bool = False,
    progress: Progress | None = None,
    label: str = "",
) -> Answer:
    """Run git in a folder. `local`: it may read repositories of this machine by path."""
    files = "user" if local else "never"
    argv = ["git", "-C", str(folder)]
    for setting in (*_SETTINGS, f"protocol.file.allow={files}"):
        argv += ["-c", setting]

    def report(line: str) -> None:
        step = read_progress(line)
        if step and progress:
            progress(f"{label}: {step[0]}", step[1], None)

    return apart(
        [*argv, *arguments],
        env=environment(os.environ),
        package="git",
        on_line=report if progress else None,
    )


def read_progress(line: str) -> tuple[str, int | None] | None:
    """What a line of `git fetch --progress` says is being done, and the bytes received."""
    found = _RECEIVING.match(line)
    if not found:
        return None
    size = int(float(found[3]) * _UNIT[found[4]]) if found[3] else None
    return f"{found[1].lower()} {found[2]}%", size


def answer(*arguments: str, folder: Path) -> str:
    """What git says, without the last line's end; an error if it fails."""
    reply = git(*arguments, folder=folder)
    if reply.code:
        raise SourceError(f"git {arguments[0]} failed: {reason(reply)}")
    return reply.out.strip()


def reason(reply: Answer) -> str:
    """The line of git's messages that tells most, passwords in addresses left out."""
    lines = [line.strip() for line in reply.err.replace("\r", "\n").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "ERROR:"))]
    line = (telling or lines or [f"exit code {reply.code}"])[0]
    return shown(re.sub(r"^(?:fatal|error|ERROR): ", "", line))


def is_refused(reply: Answer) -> bool:
    """Whether the server answered, and will not give this in this way; another may work."""
    return bool(_REFUSED.search(reply.err))


def is_final(reply: Answer) -> bool:
    """Whether trying the same again would fail the same way."""
    return bool(_MISSING.search(reply.err) or _FINAL.search(reply.err) or is_refused(reply))


def unreachable(url: str, reply: Answer) -> UnreachableError:
    """The error for a repository that could not be read."""
    if _MISSING.search(reply.err):
        return NotServedError(
            f"{shown(url)}: {reason(reply)}", "Check the address and the ref in the recipe."
        )
    return UnreachableError(
        f"{shown(url)} cannot be read: {reason(reply)}",
        "Check the network and your right to read it; source.mirrors names other places, and"
        " source.kind = 'debian' or a bundle needs no git server.",
    )
