"""`torchsmith run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import answer, note, tell
from torchsmith.errors import UsageError


def run(
    what: Annotated[str, Argument(help="An image; or a recipe that makes one.")],
    command: Annotated[
        list[str] | None, Argument(help="After --: what to run in it.", show_default=False)
    ] = None,
    shm_size: Annotated[
        str | None, Option(help="Size of /dev/shm; default: the recipe's, or 8G.")
    ] = None,
    ipc: Annotated[str | None, Option(help="host: use the machine's own /dev/shm.")] = None,
    gpus: Annotated[str | None, Option(help="all, none, or 0,1; default: all there are.")] = None,
    user: Annotated[str, Option(help="caller, a name, or UID:GID; default: the image's own.")] = "",
    mount: Annotated[
        list[str] | None, Option("--mount", "-v", help="HERE:/THERE[:ro]; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, Option("--env", "-e", help="NAME=VALUE; may be repeated.")
    ] = None,
    workers: Annotated[
        int, Option(min=0, help="DataLoader workers: warn if /dev/shm is too small.")
    ] = 0,
    batch: Annotated[
        str | None, Option(help="Bytes of one batch, such as 150M, for --workers.")
    ] = None,
    memory: Annotated[str | None, Option(help="The most memory it may use.")] = None,
    timezone: Annotated[str, Option(help="Time zone, such as Asia/Seoul.")] = "",
    network: Annotated[str, Option(help="host, none, or the engine's; default: its own.")] = "",
    engine: Annotated[str, Option(help="podman or docker.")] = "",
    dry_run: options.DryRun = False,
    json: Annotated[
        bool, Option("--json", help="With --dry-run: the command, for scripts.")
    ] = False,
) -> None:
    """Run an image with what PyTorch needs: shared memory, GPUs, folders.

    Ends with the exit code of the program in it; nothing of the container is left.
    """
    import shlex

    from torchsmith.images.running import RunOptions, explained, prepared, run_attached
    from torchsmith.images.select import one_image
    from torchsmith.images.tools import find_tool

    if json and not dry_run:
        raise UsageError("--json needs --dry-run", "What runs in the image writes its own output.")
    if not workers:
        options.unused("without --workers", "batch")
    recipe = planning.read_recipe(Path(what)).recipe if what.endswith(".toml") else None
    if recipe is not None:
        # A recipe without an image is refused first: no container tool would help.
        one_image(recipe)
    found = find_tool(engine, runs=True)
    ready = prepared(
        found,
        RunOptions(
            what=what,
            command=tuple(command or ()),
            shm_size=shm_size,
            ipc=ipc,
            gpus=gpus,
            user=user,
            mounts=tuple(mount or ()),
            env=tuple(env or ()),
            workers=workers,
            batch=batch,
            memory=memory,
            timezone=timezone,
            network=network,
        ),
        recipe,
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        piped=not sys.stdin.isatty(),
        dry_run=dry_run,
    )
    for text in ready.notes:
        note(text)
    if dry_run:
        words = [found.name, *ready.words]
        answer({"dry_run": True, "command": words}, shlex.join(words), json=json)
        return
    ended = run_attached(found, ready.words, terminal=ready.terminal)
    for line in explained(ended, ready.shm):
        tell(line)
    raise typer.Exit(ended.code)
