"""Steps of a plan: what each is given, and running it as torchsmith does and as a shell does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from torchsmith.engine.shell import step_environment, step_script
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.twins import Twin, twin
from torchsmith.sources.download import DOWNLOADS

T = TypeVar("T", bound=Struct)
Ended = subprocess.CompletedProcess[str]


def arguments(step: Step, kind: type[T]) -> T:
    """The arguments of a step's task."""
    assert isinstance(step.arguments, kind), step.id
    return step.arguments


def twin_of(plan: Plan, step: Step) -> Twin:
    """What does in plain shell what a step does."""
    resolution = next((item for item in plan.variants if item.variant == step.variant), None)
    return twin(step, resolution)


def shell_lines(plan: Plan, step: Step) -> tuple[str, ...]:
    """The commands that do in plain shell what a step does."""
    return twin_of(plan, step).commands


def run_step(step: Step, work: Path, **env: str) -> Ended:
    """Run a step in a work folder as torchsmith does."""
    base = {**os.environ, DOWNLOADS: str(work / "downloads"), **env}
    told = step_environment(step, work, base, frozenset(), resume=False)
    return _run(step_script(step), work / step.folder, told)


def run_twin(plan: Plan, step: Step, work: Path, **env: str) -> Ended:
    """Run a step in a work folder as those do who have no torchsmith."""
    shell = twin_of(plan, step)
    for name, content in {**plan.files, **shell.files}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    told = step_environment(step, work, {**os.environ, **env}, frozenset(), resume=False)
    # Nothing of torchsmith's is there.
    del told["TORCHSMITH_PYTHON"]
    told.pop("PYTHONPATH", None)
    return _run("\n".join(shell.commands), work / step.folder, told)


def _run(script: str, folder: Path, env: Mapping[str, str]) -> Ended:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        # The leave to start that a step of torchsmith's waits for.
        input="\n",
        capture_output=True,
        text=True,
        check=False,
    )
