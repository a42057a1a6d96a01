"""Who an image is made for, where the recipe says: whoever builds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from torchsmith.errors import UsageError


def caller_numbers(
    names: Sequence[str], environ: Mapping[str, str], *, uid: int, gid: int
) -> dict[str, str]:
    """The build arguments UID and GID that the caller stands for; of sudo, who called it."""
    if uid == 0 and (behind := environ.get("SUDO_UID", "")).isdigit():
        uid, gid = int(behind), int(environ.get("SUDO_GID", "") or gid)
    numbers = {"UID": uid, "GID": gid}
    if "UID" in names and uid == 0:
        raise UsageError(
            "the image's user would be root: it takes the numbers of whoever builds it",
            "Set uid and gid in [[image.train]], or build it as the person it is for.",
        )
    return {name: str(numbers[name]) for name in names}


def numbers_here(names: Sequence[str]) -> dict[str, str]:
    """The same for this process."""
    return caller_numbers(names, os.environ, uid=os.getuid(), gid=os.getgid())
