"""`torchsmith bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import answer, counted


@options.takes_flags
def bundle(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    output: Annotated[Path, Option("--output", "-o", help="The file to write.")] = Path(
        "sources.bundle"
    ),
    host: Annotated[
        Path | None, Option(help="For the machine this file describes (doctor --json).")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be fetched.")] = False,
    no_lock: options.NoLock = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    store: options.StoreFolder = None,
    *,
    given: dict[str, object],
) -> None:
    """Write all sources of a recipe into one file, for use without network.

    Sources, patches, and the Python packages of the build, the published torch among them.

    There: torchsmith build RECIPE --bundle FILE.
    """
    from torchsmith.cli.show_build import display, show_dry_run
    from torchsmith.engine.build import bundle as write
    from torchsmith.engine.build import fetching
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.runner import outlook
    from torchsmith.engine.store import Store
    from torchsmith.files import check_result

    if not dry_run:
        check_result(output)
    loaded = options.loaded(recipe, preset, given)
    here = options.host_for(host, brief=True)
    if host is None:
        here = options.with_torches(here, loaded)
    project = loaded.project
    place = Store(store)
    wanted = Wanted(elsewhere=host is not None, must=False, lock=not no_lock)
    plan = planning.make(loaded, here, json=json, store=place, wanted=wanted)
    if dry_run:
        show_dry_run(outlook(fetching(plan), place, project=project), json=json)
        return
    with display(json=False, quiet=quiet or json) as shown:
        manifest = write(
            plan,
            place,
            output,
            project=project,
            elsewhere=here if host is not None else None,
            on_event=shown.event,
        )
    size, trees = output.stat().st_size, sorted(manifest.trees)
    files = counted(len(manifest.files), "file")
    text = f"{output}: {', '.join(trees)} and {files}, {size / (1 << 20):.1f} MiB"
    what = {"trees": trees, "files": len(manifest.files), "bytes": size}
    answer({"bundle": str(output), **what}, text, json=json)
