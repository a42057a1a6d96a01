"""Why a program in a container ended badly, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsmith.diagnose.diagnose import diagnose
from torchsmith.images.attached import Ended
from torchsmith.images.shared_memory import shown

# 128 and SIGBUS: a program that died of a full /dev/shm without a word.
_BUS_ERROR = 135
_SHM_SMALL = "shared-memory-small"


def explained(ended: Ended, shm: int | None) -> Iterator[str]:
    """Lines that say what is known of the end; `shm` is the size its /dev/shm had."""
    lines: Sequence[str] = ended.lines
    if ended.code == _BUS_ERROR:
        lines = [*lines, "the program is killed by signal: Bus error"]
    for named in [item for item in diagnose(lines).named if not item.after][:2]:
        if named.id == _SHM_SMALL and shm is not None:
            yield (
                f"known: {named.title} — /dev/shm had {shown(shm)} here. Start it again with more "
                "(--shm-size 8G), or with the machine's own (--ipc host); --workers N says how "
                "much N workers want"
            )
        else:
            yield f"known: {named.title} — {named.cure}"
