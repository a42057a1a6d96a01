"""When gcc collects garbage: later than it would by itself, where there is memory to spare.

A compiler of gcc's begins to look for garbage at 128 MB at most, and again whenever its heap has
grown by a third. A file of PyTorch takes ten times that, and hardly anything of it is garbage.
What is compiled is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from torchsmith.host.probe import ask
from torchsmith.toolchain.compiles import Compile
from torchsmith.toolchain.memory_book import MIB

COLLECTION = "--param=ggc-"
# From here on gcc collects whenever its heap has doubled.
_FIRST = 1024 * MIB
LATE = (f"{COLLECTION}min-heapsize={_FIRST // 1024}", f"{COLLECTION}min-expand=100")
# For each compiler that may run at once; a batch of PyTorch's files takes up to that much.
ROOM_FOR_LATE_COLLECTION = 4096 * MIB


def collect_late(unit: Compile) -> Sequence[str]:
    """The options that make gcc collect later; none for what is not gcc's."""
    compiled = unit.language in ("c", "c++")
    return LATE if compiled and unit.compiler and is_gcc(unit.compiler) else ()


@cache
def is_gcc(compiler: str) -> bool:
    """Whether a compiler is gcc; c++ may be another's name."""
    answer = ask([compiler, "--version"])
    return answer is not None and "Free Software Foundation" in answer.out
