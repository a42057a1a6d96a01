"""What is looked at before a long run begins: nobody should wait hours for a missing header."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence

from torchsmith.errors import HostError
from torchsmith.host.probe import ask
from torchsmith.plan.formats import header_flags, include_folders
from torchsmith.resolve.models import FormatChoice, Resolution

Install = Callable[[Sequence[str]], None]


def _missing(resolution: Resolution, item: FormatChoice) -> str:
    """What the build of a format lacks here; empty if nothing."""
    flags = header_flags(item.header, include_folders(resolution))
    answer = ask([resolution.compiler.cc, *flags, "/dev/null"])
    if answer is None or answer.code != 0:
        return item.header
    return item.program if item.program and shutil.which(item.program) is None else ""


def ensure_formats(resolutions: Iterable[Resolution], install: Install) -> None:
    """Have what the formats asked for are built with.

    `install` is given the packages that hold what is missing, and may raise.
    """
    wanted = [
        (resolution, companion.package, item)
        for resolution in resolutions
        for companion in resolution.companions
        for item in companion.formats
    ]
    lacking = [item.apt for resolution, _, item in wanted if _missing(resolution, item)]
    if lacking:
        install(list(dict.fromkeys(lacking)))
    for resolution, package, item in wanted:
        if lost := _missing(resolution, item):
            raise HostError(
                f"{package} is to read {item.name.upper()}, but {lost} is missing",
                f"Install what Debian calls {item.apt}, or leave {item.name!r} out of "
                "companions.vision_formats.",
            )
