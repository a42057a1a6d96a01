"""Debian packages a build needs: which are missing, and installing them when asked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence

from torchsmith.errors import HostError
from torchsmith.host.probe import ask


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed; none where there is no dpkg to ask."""
    if not names or shutil.which("dpkg-query") is None:
        return []
    # It complains of packages it does not know and goes on: what it does not name is missing.
    shown = "--showformat=${Package} ${db:Status-Status}\n"
    asked = ask(["dpkg-query", "--show", shown, *names], timeout=60)
    lines = asked.out.splitlines() if asked is not None else []
    installed = {line.split()[0] for line in lines if line.endswith(" installed")}
    return [name for name in names if name.partition("=")[0] not in installed]


def ensure_packages(names: Sequence[str], *, install: bool) -> None:
    """Have these packages; `install` them as root, or end with the command that does."""
    missing = missing_packages(names)
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    plain = " ".join(command)
    root = os.geteuid() == 0
    if not (install and root):
        raise HostError(
            f"{len(missing)} system packages are missing: {', '.join(missing)}",
            ("" if root else "sudo ") + plain + ("; or --install-deps" if root else ""),
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["apt-get", "update"], command):
        done = subprocess.run(words, env=environment, check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise HostError(f"{words[0]} {words[1]} failed", f"Try it by hand: {plain}")


def add_packages(names: Sequence[str]) -> None:
    """Install optional packages where this user may; a build works without them."""
    if os.geteuid() == 0:
        with contextlib.suppress(HostError):
            ensure_packages(names, install=True)
