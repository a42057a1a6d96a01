"""From what was seen of an environment to what is wrong with it; pure."""

from __future__ import annotations

from torchsmith.diagnose.environment.gpus import judge_gpus
from torchsmith.diagnose.environment.libraries import judge_libraries
from torchsmith.diagnose.environment.machine import judge_machine
from torchsmith.diagnose.environment.packages import judge_packages
from torchsmith.diagnose.environment.seen import Seen
from torchsmith.facts.files import Facts
from torchsmith.findings import Finding


def examine(seen: Seen, facts: Facts) -> list[Finding]:
    """Every finding: what is installed, the GPUs, the libraries, the machine."""
    return [
        *judge_packages(seen, facts),
        *judge_gpus(seen, facts),
        *judge_libraries(seen),
        *judge_machine(seen),
    ]
