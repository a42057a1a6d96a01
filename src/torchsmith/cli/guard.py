"""`torchsmith guard`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.errors import UsageError


def guard(
    command: Annotated[list[str], Argument(help="Behind `--`: the command, with its own options.")],
    jobs: options.Jobs = None,
    memory: options.Memory = None,
    dry_run: options.DryRun = False,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Only the command's output, and errors.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Events, one JSON document a line.")] = False,
    store: options.StoreFolder = None,
) -> None:
    """Run any build within the memory there is: pip, CMake, make.

    Each compiler waits until there is memory for it. Ends with the command's own exit code.
    """
    import sys

    from torchsmith.cli.show_build import guard_display, show_guarded
    from torchsmith.engine.build import memory_budget
    from torchsmith.engine.guard import guard as run
    from torchsmith.engine.guard import preview
    from torchsmith.engine.store import Store, default_root

    if "--" not in sys.argv:
        # Options of the command would silently be taken for ours.
        raise UsageError(
            "-- is missing before the command", "Write: torchsmith guard -- pip install ..."
        )
    place = Store(store or default_root())
    budget = memory_budget(memory)
    if dry_run:
        show_guarded(preview(place, jobs, budget), command, json=json)
        return
    shown = guard_display(json=json, quiet=quiet)
    run(command, place, jobs=jobs, memory=budget, on_event=shown.event, on_memory=shown.memory)
