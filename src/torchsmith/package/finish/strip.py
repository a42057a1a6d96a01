"""strip: symbols and debug information that no loader reads."""

from __future__ import annotations

import shutil
from pathlib import Path

from torchsmith.errors import HostError
from torchsmith.host.system import read_platform
from torchsmith.package.programs import change


def strip_program(machine: str) -> str:
    """A strip that knows this machine's libraries."""
    names = [f"{machine}-linux-gnu-strip", "llvm-strip"]
    if read_platform().partition("-")[2] == machine:
        names.insert(0, "strip")
    for name in names:
        if found := shutil.which(name):
            return found
    raise HostError(
        f"no strip here knows libraries for {machine}",
        "Install binutils, or finish with --no-strip.",
    )


def strip(file: Path, program: str) -> None:
    """Strip a library that is loaded; its dynamic symbols, and so what it offers, stay."""
    change(
        [program, "--strip-unneeded"],
        file,
        "Finish with --no-strip: the library stays as large as it is.",
    )
