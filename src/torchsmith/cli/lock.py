"""`torchsmith lock` and `bundle`: what a recipe takes from elsewhere, listed or packed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import answer, counted, tell
from torchsmith.errors import UsageError


@options.takes_flags
def lock(
    recipe: options.RecipeArgument = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="The file to write; default: beside the recipe.")
    ] = None,
    stay: options.Here = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    store: options.StoreFolder = None,
    *,
    overrides: dict[str, object],
) -> None:
    """Write down every file a recipe takes from elsewhere, with its hash.

    Sources and build environments are fetched now; `build` then takes these very files.
    """
    from torchsmith.cli.show_build import display
    from torchsmith.engine.build import build
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.lockfile import lock_file, what_was_taken
    from torchsmith.engine.store import Store
    from torchsmith.files import check_result, write_result
    from torchsmith.images.registry import digests
    from torchsmith.plan.lock import base_images
    from torchsmith.recipe.presets import is_shipped

    loaded = planning.read_recipe(recipe, None, overrides)
    path = Path(loaded.path)
    if output is None and (is_shipped(path) or not path.is_file()):
        raise UsageError(
            "there is no recipe file to put the lock beside", "Name the lock: --output FILE."
        )
    target = output or lock_file(path)
    check_result(target)
    here = planning.machine_for(loaded)
    place = Store(store)
    wanted = Wanted(here=stay, lock=False)
    plan = planning.make(loaded, here, json=json, store=place, wanted=wanted)
    compiled = {step.id for step in plan.steps if step.kind == "compile"}
    names = [
        step.id
        for step in plan.steps
        if step.kind in ("fetch", "environment") and not compiled & set(step.needs)
    ]
    images = digests(base_images(plan.files))
    for step in plan.steps:
        # What an earlier day brought is not what there is today.
        if step.id in names:
            place.remove(step.key)
    with display(json=False, quiet=quiet or json) as shown:
        done = build(
            plan,
            place,
            project=loaded.project,
            only=names,
            recipe=loaded.path,
            on_event=shown.event,
        )
    taken = what_was_taken(plan, done.work, images)
    write_result(target, taken.toml().encode())
    packages = {(item.name, item.version) for one in taken.install for item in one.packages}
    counts = (
        counted(len(packages), "Python package"),
        counted(len(taken.source), "source"),
        counted(len(taken.image), "base image"),
    )
    what = {"packages": len(packages), "sources": len(taken.source), "images": len(taken.image)}
    answer({"lock": str(target), **what}, f"{target}: {', '.join(counts)}", json=json)


@options.takes_flags
def bundle(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    output: Annotated[Path, Option("--output", "-o", help="The file to write.")] = Path(
        "sources.bundle"
    ),
    host: options.HostFile = None,
    dry_run: options.DryRun = False,
    no_lock: options.NoLock = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
    store: options.StoreFolder = None,
    *,
    overrides: dict[str, object],
) -> None:
    """Write all sources of a recipe into one file, for use without network.

    Sources, patches, and the Python packages of the build, the published torch among them.

    On the machine without network: torchsmith build RECIPE --bundle FILE.
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
    loaded = planning.read_recipe(recipe, preset, overrides)
    here = planning.machine_for(loaded, host)
    project = loaded.project
    place = Store(store)
    wanted = Wanted(elsewhere=host is not None, must=False, lock=not no_lock)
    plan = planning.make(loaded, here, json=json, store=place, wanted=wanted)
    if dry_run:
        show_dry_run(outlook(fetching(plan), place, project=project), json=json)
        return
    if not quiet:
        tell("fetching sources, then Python packages: torch alone takes minutes")
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
    files = [counted(len(manifest.files), "file")] if manifest.files else []
    text = f"{output}: {', '.join([*trees, *files])}; {size / (1 << 20):.1f} MiB"
    what = {"trees": trees, "files": len(manifest.files), "bytes": size}
    answer({"bundle": str(output), **what}, text, json=json)
