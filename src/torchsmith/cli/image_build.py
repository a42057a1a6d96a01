"""`torchsmith image build` and `torchsmith image wheels`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchsmith.cli import wishes

_MOST = 2**31 - 1


@wishes.takes_flags
def build(
    recipe: wishes.RecipeArgument = None,
    preset: wishes.Preset = None,
    engine: wishes.EngineName = "",
    variant: Annotated[str, typer.Option("--variant", help="Only this one's images.")] = "",
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only these images; may be repeated.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", help="Another name of the one image.")] = "",
    timezone: Annotated[
        str, typer.Option("--timezone", help="Of the training images, such as Asia/Seoul.")
    ] = "",
    uid: Annotated[
        int | None, typer.Option("--uid", min=1, max=_MOST, help="User number; default: yours.")
    ] = None,
    gid: Annotated[
        int | None, typer.Option("--gid", min=1, max=_MOST, help="Group number; default: yours.")
    ] = None,
    network: wishes.NetworkName = "",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer anew.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be built.")] = False,
    quiet: wishes.Quiet = False,
    json: Annotated[bool, typer.Option("--json", help="What was built, for scripts.")] = False,
    store: wishes.StoreFolder = None,
    work: Annotated[Path | None, typer.Option("--work", help="Where the steps run.")] = None,
    stay: wishes.Here = False,
    online: wishes.Online = False,
    *,
    given: dict[str, object],
) -> None:
    """Build the container images of a recipe, after what goes into them.

    What did not change is taken from the store and from the engine's own cache.
    """
    from functools import partial

    from msgspec import to_builtins
    from msgspec.structs import replace

    from torchsmith.cli import planning
    from torchsmith.cli.output import print_json
    from torchsmith.cli.show_build import display
    from torchsmith.engine.build import build as run
    from torchsmith.engine.build import waiting
    from torchsmith.engine.command import this_command
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.made_images import made_image
    from torchsmith.engine.preflight import ensure_platform, ensure_programs
    from torchsmith.engine.schedule import choose
    from torchsmith.engine.store import Store, default_root
    from torchsmith.images.find import check_name
    from torchsmith.images.select import ensure_containers, ensure_images, image_steps
    from torchsmith.recipe.compose import with_training
    from torchsmith.toolchain.packages import ensure_packages

    loaded = wishes.loaded(recipe, preset, given)
    if tag or timezone or uid or gid:
        loaded = with_training(loaded, only or (), tag=tag, timezone=timezone, uid=uid, gid=gid)
        only = [tag] if tag else only
    here = wishes.with_torches(wishes.host_for(None, brief=True), loaded)
    project = loaded.project
    root = Store(store or default_root())
    asked = Wanted(
        variant=variant,
        here=stay,
        online=online,
        tool=engine,
        network=network,
        layers=not no_cache,
    )
    whole = planning.make(loaded, here, json=json, store=root, wanted=asked)
    images = image_steps(whole, variant, only or ())
    wanted = [step.id for step in images]
    plan = replace(whole, steps=tuple(choose(whole, wanted)))
    if dry_run:
        from torchsmith.cli.show_build import show_dry_run
        from torchsmith.engine.outlook import outlook

        # Which one it would be is no matter: nothing is run.
        if engine:
            check_name(engine)
        ahead = outlook(plan, root, project=project, work=work, only=wanted)
        show_dry_run(ahead, json=json)
        return
    ensure_images(images)
    ensure_containers(plan.steps, waiting(plan, root, work), engine)
    ensure_programs(plan, partial(ensure_packages, install=False))
    ensure_platform(plan, here)
    with display(plan, json=False, quiet=quiet or json) as shown:
        result = run(
            plan,
            root,
            project=project,
            work=work,
            only=wanted,
            recipe=loaded.path,
            command=this_command(),
            host=f"{here.platform} {here.system}",
            on_event=shown.event,
            on_memory=shown.memory,
        )
    made = [image for step in images if (image := made_image(step, result.work)) is not None]
    if json:
        print_json({"images": [to_builtins(image) for image in made]})
        return
    for image in made:
        print(f"{image.name}  {image.id[:12]}")


def wheels(
    image: Annotated[str, typer.Argument(help="An image torchsmith made.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder they are written to.")
    ] = Path(),
    engine: wishes.EngineName = "",
    json: wishes.Json = False,
) -> None:
    """Take the wheels out of an image."""
    from torchsmith.cli.output import answer
    from torchsmith.images.find import find_engine
    from torchsmith.images.wheels import extract_wheels

    paths = [str(path) for path in extract_wheels(find_engine(engine), image, output)]
    answer({"wheels": paths}, "\n".join(paths), json=json)
