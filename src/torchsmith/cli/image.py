"""`torchsmith image`: container images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.app import App
from torchsmith.cli.output import answer, print_json, show_files, tell, write_tree

if TYPE_CHECKING:
    from torchsmith.images.reference import Reference
    from torchsmith.images.tools import ContainerTool


app = App("Build, push, pull and write down container images.")
_MOST = 2**31 - 1


@app.command("build")
@options.takes_flags
def build(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    engine: options.EngineName = "",
    variant: Annotated[str, Option(help="Only this one's images.")] = "",
    only: Annotated[list[str] | None, Option(help="Only these images; may be repeated.")] = None,
    tag: Annotated[str, Option(help="Give the one image another name.")] = "",
    timezone: Annotated[
        str, Option(help="Time zone of the training images, such as Asia/Seoul.")
    ] = "",
    uid: Annotated[
        int | None, Option(min=1, max=_MOST, help="User number; default: yours.")
    ] = None,
    gid: Annotated[
        int | None, Option(min=1, max=_MOST, help="Group number; default: yours.")
    ] = None,
    network: options.NetworkName = "",
    no_cache: Annotated[bool, Option("--no-cache", help="Build every layer anew.")] = False,
    dry_run: options.DryRun = False,
    quiet: options.Quiet = False,
    json: Annotated[bool, Option("--json", help="What was built, for scripts.")] = False,
    store: options.StoreFolder = None,
    work: Annotated[Path | None, Option(help="Where the steps run.")] = None,
    stay: options.Here = False,
    online: options.Online = False,
    *,
    overrides: dict[str, object],
) -> None:
    """Build what goes into a recipe's container images, then the images.

    What did not change is taken from the store and from the engine's own cache.
    """
    from functools import partial

    from msgspec import to_builtins

    from torchsmith.cli.show_build import display
    from torchsmith.engine.build import build as run
    from torchsmith.engine.build import pending_steps
    from torchsmith.engine.command import this_command
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.made_images import made_image
    from torchsmith.engine.preflight import ensure_packages, ensure_platform, ensure_programs
    from torchsmith.engine.schedule import part
    from torchsmith.engine.store import Store, default_root
    from torchsmith.images.select import ensure_containers, ensure_images, image_steps
    from torchsmith.recipe.compose import with_training

    loaded = planning.read_recipe(recipe, preset, overrides)
    if tag or timezone or uid or gid:
        loaded = with_training(loaded, only or (), tag=tag, timezone=timezone, uid=uid, gid=gid)
        only = [tag] if tag else only
    here = planning.machine_for(loaded)
    project = loaded.project
    root = Store(store or default_root())
    wish = Wanted(
        variant=variant, here=stay, online=online, tool=engine, network=network, layers=not no_cache
    )
    whole = planning.make(loaded, here, json=json, store=root, wanted=wish)
    images = image_steps(whole, variant, only or ())
    wanted = [step.id for step in images]
    plan = part(whole, wanted)
    if dry_run:
        from torchsmith.cli.show_build import show_dry_run, tell_refusals
        from torchsmith.engine.runner import outlook

        tell_refusals(partial(ensure_images, images), partial(ensure_platform, plan, here))
        ahead = outlook(plan, root, project=project, work=work, only=wanted)
        show_dry_run(ahead, json=json)
        return
    ensure_images(images)
    ensure_containers(plan.steps, pending_steps(plan, root, work), engine)
    ensure_programs(plan, partial(ensure_packages, install=False))
    ensure_platform(plan, here)
    with display(json=False, quiet=quiet or json) as shown:
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


@app.command("wheels")
def wheels(
    image: Annotated[str, Argument(help="An image torchsmith made.")],
    output: Annotated[
        Path, Option("--output", "-o", help="The folder they are written to.")
    ] = Path(),
    engine: options.EngineName = "",
    json: options.Json = False,
) -> None:
    """Take the wheels out of an image."""
    from torchsmith.images.build import extract_wheels
    from torchsmith.images.tools import find_tool

    paths = [str(path) for path in extract_wheels(find_tool(engine), image, output)]
    answer({"wheels": paths}, "\n".join(paths), json=json)


@app.command("push")
def push(
    what: Annotated[str, Argument(help="An image; or a recipe: all its images.")],
    to: Annotated[
        str, Option(help="REGISTRY/NAME:TAG; of a recipe, the registry they go to.")
    ] = "",
    replace: Annotated[
        bool, Option("--replace", help="Push even if the tag belongs to another image.")
    ] = False,
    dry_run: options.DryRun = False,
    engine: options.EngineName = "",
    insecure: Insecure = False,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Push an image and check that it arrived; the journal keeps its digest.

    Logins are the engine's own: podman login, docker login.
    """
    from dataclasses import asdict

    from torchsmith.images.tools import find_tool
    from torchsmith.images.transfer import push_all, targets

    recipe = planning.read_recipe(Path(what)).recipe if what.endswith(".toml") else None
    wanted = targets(what, to, recipe)
    done = push_all(
        find_tool(engine),
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
        words = {"same": "already there", "pushed": "pushed", "would push": "would be pushed"}
        print(f"{words[item.action]:<15} {item.name}")
        if item.digest:
            print(f"{'':<15} {item.pinned}")


@app.command("pull")
def pull(
    name: Annotated[str, Argument(help="NAME:TAG, or NAME@sha256:… for just that image.")],
    verify: Annotated[
        Path | None, Option(metavar="RECIPE", help="Prove inside it what this recipe asks.")
    ] = None,
    engine: options.EngineName = "",
    insecure: Insecure = False,
    store: options.StoreFolder = None,
    json: options.Json = False,
) -> None:
    """Pull an image by tag or digest; --verify compares it with a recipe."""
    from torchsmith.images.reference import at_registry
    from torchsmith.images.tools import find_tool
    from torchsmith.images.transfer import pull as pulled

    place = at_registry(name)
    found = find_tool(engine, runs=verify is not None)
    done = pulled(found, place, store=store, insecure=insecure, on_line=tell)
    if json and verify is None:
        print_json({"name": done.name, "digest": done.digest, "id": done.info.id})
    elif not json:
        print(f"pulled {done.name}\n       {place.at(done.digest)}")
    if verify is not None:
        _verify(found, place.at(done.digest), verify, json=json)


def _verify(engine: ContainerTool, image: Reference, recipe: Path, *, json: bool) -> None:
    from torchsmith.cli.verify import show_report
    from torchsmith.images.proving import verify_image
    from torchsmith.plan.expects import expected

    loaded = planning.read_recipe(recipe)
    resolutions = planning.resolutions(loaded, planning.machine_for(loaded))
    expectations = [expected(item) for item in resolutions]
    show_report(verify_image(engine, str(image), expectations), json=json)


@app.command("render")
def render(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    runtime: Annotated[
        str, Option("--as", help="compose, apptainer or dockerfile.")
    ] = "dockerfile",
    start: Annotated[
        str, Option("--from", help="With apptainer: the pushed image, or wheels.")
    ] = "",
    output: options.OutputFolder = None,
    host: options.HostFile = None,
    json: options.Json = False,
) -> None:
    """Write the images of a recipe for compose, Apptainer or docker build."""
    from torchsmith import __version__
    from torchsmith.engine.door import Wanted
    from torchsmith.images.render import render as rendered

    loaded = planning.read_recipe(recipe, preset)
    here = planning.machine_for(loaded, host)
    wanted = Wanted(elsewhere=host is not None, must=False)
    plan = planning.make(loaded, here, json=json, wanted=wanted)
    files = rendered(plan, loaded.recipe, runtime, __version__, start)
    if json:
        if output is not None:
            write_tree(output, files)
        print_json({"files": {name: content.decode() for name, content in files.items()}})
        return
    show_files(files, output)


Insecure = Annotated[bool, Option("--insecure", help="Accept plain HTTP, and any certificate.")]
