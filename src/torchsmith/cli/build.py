"""`torchsmith build`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from torchsmith.cli import options, planning
from torchsmith.errors import UsageError


def _cluster(name: str | None) -> str | None:
    """Refuse a cluster that builds no variants before anything else is done."""
    known = ("slurm", "kubernetes", "local")
    if name is not None and name not in known:
        from torchsmith.names import did_you_mean

        raise UsageError(f"--on: {name!r} cannot build variants", did_you_mean(name, known))
    return name


@options.takes_flags
def build(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    step: Annotated[
        list[str] | None, Option(help="Only these steps: ids, or how they begin; repeatable.")
    ] = None,
    jobs: options.Jobs = None,
    memory: options.Memory = None,
    fresh: Annotated[
        bool, Option("--fresh", help="Compile in new trees, not in those of earlier builds.")
    ] = False,
    no_accel: Annotated[
        bool, Option("--no-accel", help="Compile every file by itself, not in batches.")
    ] = False,
    reproducible: Annotated[
        bool, Option("--reproducible", help="The same bytes on any number of cores.")
    ] = False,
    dry_run: options.DryRun = False,
    install_deps: Annotated[
        bool, Option("--install-deps", help="As root, install missing system packages.")
    ] = False,
    quiet: options.Quiet = False,
    json: Annotated[bool, Option("--json", help="Events, one JSON document a line.")] = False,
    store: options.StoreFolder = None,
    bundle: Annotated[Path | None, Option(help="Take everything out of this file.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Where results are put; default: dist.")
    ] = None,
    stay: options.Here = False,
    engine: options.EngineName = "",
    network: options.NetworkName = "",
    online: options.Online = False,
    no_lock: options.NoLock = False,
    work: Annotated[Path | None, Option(help="Where the steps run.")] = None,
    variant: Annotated[str, Option(help="Only this one of the recipe's matrix.")] = "",
    build_only: Annotated[
        bool, Option("--build-only", help="No images, no publishing, no jobs.")
    ] = False,
    on: Annotated[
        str | None,
        Option(
            callback=_cluster, help="Build each variant as a job of a cluster: slurm, kubernetes."
        ),
    ] = None,
    partition: Annotated[str, Option(help="With --on: the partition or queue of the jobs.")] = "",
    time_limit: Annotated[
        str, Option(help="With --on: the most a variant may take, e.g. 12h.")
    ] = "",
    image: Annotated[
        str, Option(help="With --on kubernetes: an image with torchsmith in it.")
    ] = "",
    claim: Annotated[str, Option(help="With --on kubernetes: the volume claim of the store.")] = "",
    detach: Annotated[
        bool, Option("--detach", help="With --on: do not wait for the jobs.")
    ] = False,
    *,
    overrides: dict[str, object],
) -> None:
    """Build what a recipe asks for; a stopped build goes on.

    What was built before with the same inputs is taken from the store.
    """
    from functools import partial

    from torchsmith.cli.show_build import display
    from torchsmith.engine.build import build as run
    from torchsmith.engine.build import deliver, memory_budget, pending_steps
    from torchsmith.engine.command import this_command
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.preflight import (
        add_packages,
        ensure_formats,
        ensure_packages,
        ensure_platform,
        ensure_programs,
        ensure_toolkits,
        lacks_cache,
    )
    from torchsmith.engine.schedule import choose, part
    from torchsmith.engine.store import Store, default_root
    from torchsmith.engine.wheels import unpack
    from torchsmith.images.select import ensure_containers, ensure_images
    from torchsmith.plan.models import shipping
    from torchsmith.toolchain.preload import ALLOCATOR

    if on is None:
        hint = "Name the cluster: --on slurm."
        of_jobs = ("partition", "time_limit", "image", "claim", "detach")
        options.unused("without --on", *of_jobs, hint=hint)
    else:
        whole = ("variant", "step", "work", "bundle", "fresh", "output")
        options.unused("with --on", *whole, hint="A farm builds every variant, into the store.")
        elsewhere = {"local": ("partition", "image", "claim"), "slurm": ("claim",)}
        options.unused(f"with --on {on}", *elsewhere.get(on, ()))
    loaded = planning.read_recipe(recipe, preset, overrides)
    here = planning.machine_for(loaded)
    project = loaded.project
    root = Store(store or default_root())
    wanted = Wanted(
        variant=variant,
        here=stay,
        accel=not no_accel,
        reproducible=reproducible,
        build_only=build_only,
        bundle=bundle,
        tool=engine,
        network=network,
        online=online,
        lock=not no_lock,
    )
    plan = planning.make(loaded, here, json=json, store=root, wanted=wanted)
    if not any(step.place.inside or step.kind == "image" for step in plan.steps):
        hint = 'Name a distribution to build in: system = "ubuntu-22.04".'
        options.unused("where no step runs in a container", "engine", "network", hint=hint)
    ensure = partial(ensure_packages, install=install_deps)
    acts = not dry_run and on is None
    if acts:
        ensure_toolkits(plan, here)
    if acts and install_deps and not no_accel and not plan.inside:
        add_packages([ALLOCATOR])
    if on is None and lacks_cache(plan):
        if acts and install_deps:
            ensure(["ccache"])
        else:
            planning.warn("without ccache each of these compiles all of torch")
    if acts and ensure_programs(part(plan, step), ensure):
        # With a compiler there now, the plan is another.
        here = planning.machine_for(loaded)
        plan = planning.make(loaded, here, json=json, store=root, wanted=wanted)
    recipes = loaded.recipe.build
    budget = memory_budget(memory or recipes.memory)
    if on is not None:
        from torchsmith.cli import farm

        words = options.as_arguments(overrides) if Path(loaded.path).is_file() else []
        words += ["--no-accel"] * no_accel + ["--reproducible"] * reproducible
        words += ["--install-deps"] * install_deps + ["--here"] * stay
        words += ["--online"] * online + ["--no-lock"] * no_lock
        # Jobs make no images; without a container they would refuse these.
        words += ["--engine", engine] * bool(engine and plan.inside)
        words += ["--network", network] * bool(network and plan.inside)
        cores = jobs or recipes.jobs
        cluster = farm.Cluster(on, partition, time_limit, image, claim, detach, cores, budget)
        built = farm.run(
            plan, loaded, root, cluster, words, overrides, dry_run=dry_run, json=json, quiet=quiet
        )
        step = list(shipping(plan))
        if not built or not step or build_only:
            return
        root = Store(root.root)
        farm.check_built(plan, pending_steps(plan, root))
    chosen_steps = choose(plan, step)
    compiled = {item.variant for item in chosen_steps if item.kind in ("configure", "compile")}
    here_built = [item for item in plan.variants if item.variant in compiled - set(plan.inside)]
    packages = list(dict.fromkeys(name for item in here_built for name in item.apt))
    if dry_run:
        from torchsmith.cli.show_build import show_dry_run, tell_refusals
        from torchsmith.engine.runner import outlook

        tell_refusals(
            partial(ensure_toolkits, plan, here),
            partial(ensure_platform, plan, here),
            partial(ensure_images, chosen_steps),
            lambda: ensure_containers(chosen_steps, pending_steps(plan, root, work), engine),
            lambda: None if install_deps else ensure_programs(part(plan, step), ensure),
            lambda: None if install_deps else ensure(packages),
        )
        ahead = outlook(
            plan,
            root,
            project=project,
            work=work,
            only=step,
            cores=jobs or recipes.jobs,
            fresh=fresh,
        )
        show_dry_run(ahead, json=json)
        return
    # Refuse before hours of compiling, not after them.
    if emulated := ensure_platform(plan, here):
        planning.warn(emulated)
    ensure_images(chosen_steps)
    ensure_containers(chosen_steps, pending_steps(plan, root, work), engine)
    ensure(packages)
    ensure_formats(here_built, ensure)
    wheels = unpack(bundle, root) if bundle is not None else None
    with display(json=json, quiet=quiet) as shown:
        result = run(
            plan,
            root,
            project=project,
            work=work,
            only=step,
            fresh=fresh,
            wheels=wheels,
            jobs=jobs or recipes.jobs,
            memory=budget,
            recipe=loaded.path,
            command=this_command(),
            host=f"{here.platform} {here.system}",
            on_event=shown.event,
            on_memory=shown.memory,
        )
    made = [path for paths in result.artifacts.values() for path in paths]
    for path in deliver(made, (output or project / "dist").absolute()):
        if not json:
            print(path)
