"""`torchsmith image push` and `torchsmith image pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchsmith.cli import wishes

if TYPE_CHECKING:
    from torchsmith.images.engine import Engine
    from torchsmith.images.reference import Reference

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Take plain HTTP, and any certificate."),
]


def push(
    what: Annotated[str, typer.Argument(help="An image; or a recipe: all its images.")],
    to: Annotated[
        str,
        typer.Option("--to", help="REGISTRY/NAME:TAG; of a recipe, the registry they go to."),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where the tag is another image's now.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the registry; push nothing.")
    ] = False,
    engine: wishes.EngineName = "",
    insecure: Insecure = False,
    store: wishes.StoreFolder = None,
    json: wishes.Json = False,
) -> None:
    """Push an image and check that it arrived; the journal keeps its digest.

    Logins are the engine's own: podman login, docker login.
    """
    from dataclasses import asdict

    from torchsmith.cli.output import print_json, tell
    from torchsmith.images.find import find_engine
    from torchsmith.images.push import push_all, targets

    recipe = wishes.loaded(Path(what), None, {}).recipe if what.endswith(".toml") else None
    wanted = targets(what, to, recipe)
    done = push_all(
        find_engine(engine),
        wanted,
        store=store,
        recipe=what if recipe else "",
        replace=replace,
        insecure=insecure,
        dry_run=dry_run,
        on_line=tell,
    )
    if json:
        print_json({"images": [{**asdict(item), "pinned": item.pinned} for item in done]})
        return
    for item in done:
        said = {"same": "already there", "pushed": "pushed", "would push": "would be pushed"}
        print(f"{said[item.action]:<15} {item.name}")
        if item.digest:
            print(f"{'':<15} {item.pinned}")


def pull(
    name: Annotated[str, typer.Argument(help="NAME:TAG, or NAME@sha256:… for just that image.")],
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="RECIPE", help="Prove inside it what this recipe asks."),
    ] = None,
    engine: wishes.EngineName = "",
    insecure: Insecure = False,
    store: wishes.StoreFolder = None,
    json: wishes.Json = False,
) -> None:
    """Pull an image by tag or digest; --verify compares it with a recipe."""
    from torchsmith.cli.output import print_json, tell
    from torchsmith.images.find import find_engine
    from torchsmith.images.pull import pull_recorded
    from torchsmith.images.reference import at_registry

    place = at_registry(name)
    found = find_engine(engine, runs=verify is not None)
    done = pull_recorded(found, place, store=store, insecure=insecure, on_line=tell)
    if json and verify is None:
        print_json({"name": done.name, "digest": done.digest, "id": done.info.id})
    elif not json:
        print(f"pulled {done.name}\n       {place.at(done.digest)}")
    if verify is not None:
        _verify(found, place.at(done.digest), verify, json=json)


def _verify(engine: Engine, image: Reference, recipe: Path, *, json: bool) -> None:
    from torchsmith.cli import planning
    from torchsmith.cli.verify import show_report
    from torchsmith.images.inside import verify_image
    from torchsmith.plan.expects import expected

    loaded = wishes.loaded(recipe, None, {})
    here = wishes.host_for(None, brief=True)
    asked = [expected(item) for item in planning.resolutions(loaded, here)]
    show_report(verify_image(engine, str(image), asked), json=json)
