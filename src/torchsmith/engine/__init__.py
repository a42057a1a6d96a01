"""Running a plan: which steps, where their results live, what is told and remembered.

``run_plan`` is the door. ``store`` keeps results by key, ``journal`` what was run, ``events``
what happens while it is; ``schedule`` decides and is pure, ``process`` alone starts programs.
"""

from torchsmith.engine.events import Event, as_json
from torchsmith.engine.journal import Journal, RunRecord, StepRecord
from torchsmith.engine.process import Stop
from torchsmith.engine.runner import RunResult, default_work, run_plan
from torchsmith.engine.store import Store, default_root

__all__ = [
    "Event",
    "Journal",
    "RunRecord",
    "RunResult",
    "StepRecord",
    "Stop",
    "Store",
    "as_json",
    "default_root",
    "default_work",
    "run_plan",
]
