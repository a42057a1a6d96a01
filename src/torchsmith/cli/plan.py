"""`torchsmith plan`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import (
    JSON_VERSION,
    Branch,
    counted,
    duration,
    print_content,
    print_json,
    say,
    show_files,
    style,
    write_tree,
)
from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from torchsmith.plan.models import Plan, Step
    from torchsmith.recipe.load import LoadedRecipe
    from torchsmith.resolve.models import Resolution


@options.takes_flags
def plan(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    host: options.HostFile = None,
    explain: Annotated[bool, Option("--explain", help="The reason for every choice.")] = False,
    json: Annotated[bool, Option("--json", help="The whole plan, for scripts.")] = False,
    render: Annotated[
        Literal["script", "dockerfile", "conda"] | None,
        Option("--as", help="Write the plan as something that needs no torchsmith."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File (script) or folder to write.")
    ] = None,
    stay: options.Here = False,
    online: options.Online = False,
    no_lock: options.NoLock = False,
    *,
    overrides: dict[str, object],
) -> None:
    """Check that a recipe can exist and show what would be done."""

    if json and render is not None:
        raise UsageError("--as and --json do not go together", "Leave one of them out.")
    if explain and (json or render is not None):
        other = "--json" if json else "--as"
        hint = "The JSON holds every reason." if json else "Leave one of them out."
        raise UsageError(f"--explain and {other} do not go together", hint)
    if output is not None and not json and render is None:
        raise UsageError(
            "--output needs --as or --json", "Say what to write: --as script, or --json."
        )
    with ThreadPoolExecutor(1) as pool:
        # Asking programs for their versions is mostly waiting: it goes on while we import.
        machine = pool.submit(planning.read_machine, host)

        loaded = planning.read_recipe(recipe, preset, overrides)
        here = machine.result()
    if host is None:
        here = planning.with_torches(here, loaded)
    from torchsmith.engine.door import Wanted

    elsewhere = host is not None
    wanted = Wanted(here=stay, online=online, elsewhere=elsewhere, must=False, lock=not no_lock)
    made = planning.make(loaded, here, json=json, wanted=wanted)
    if render is not None:
        _render(made, loaded, render, output)
    elif json:
        _print_json(made, output)
    else:
        _show_plan(made, here.cores, explain=explain)


def _print_json(made: Plan, output: Path | None) -> None:
    import json

    from torchsmith.files import write_result
    from torchsmith.plan.models import as_json

    table = as_json(made)
    if output is None:
        print_json(table)
        return
    text = json.dumps({"version": JSON_VERSION, **table}, indent=2, ensure_ascii=False)
    write_result(output, f"{text}\n".encode())
    print_json({"written": str(output)})


def _render(made: Plan, loaded: LoadedRecipe, render: str, output: Path | None) -> None:
    from torchsmith import __version__
    from torchsmith.files import write_result
    from torchsmith.plan.render.conda import render_conda
    from torchsmith.plan.render.dockerfile import dockerfile_context
    from torchsmith.plan.render.script import render_script

    if render == "script":
        text = render_script(made, __version__)
        if output is None:
            print_content(text)
        else:
            write_result(output, text.encode(), mode=0o755)
            print(f"written: {output}")
        return
    files = (
        render_conda(made)
        if render == "conda"
        else dockerfile_context(made, loaded.recipe, __version__)
    )
    if output is not None:
        write_tree(output, files)
        print(f"written: {output}/{{{', '.join(files)}}}")
    else:
        show_files(files, None)


def _headline(item: Resolution) -> str:
    cuda = f"CUDA {item.cuda.version}" if item.cuda else "no CUDA"
    if item.cuda and item.cuda.archs:
        cuda += f" ({item.cuda.arch_list})"
    where = item.board or item.platform
    system = f", {item.system}" if item.system else ""
    return f"torch {item.version}, Python {item.python}, {cuda}, {where}{system}"


def _step_line(step: Step) -> str:
    cost = ""
    if step.cost.core_seconds >= 300:
        about = "about " if step.cost.basis == "estimated" else ""
        cost = f"  [{about}{duration(step.cost.core_seconds)} of one core]"
    place = f"  in {step.place.system}" if step.place.inside else ""
    return f"{step.kind:<11} {step.title}{place}{cost}"


def _add_steps(branch: Branch, steps: Sequence[Step], *, explain: bool) -> None:
    printed: set[tuple[tuple[str, str], ...]] = set()
    for step in steps:
        node = branch.add(_step_line(step), "bold")
        if step.why:
            node.add(step.why, "dim")
        if step.network:
            node.add(f"with a network: {step.network}", "dim")
        elif explain and step.offline:
            node.add("without a network", "dim")
        for name, value in step.details:
            node.add(f"{name}: {value}")
        # Compiling happens in the environment of configuring: said once.
        if step.kind in ("configure", "compile") and step.env not in printed:
            printed.add(step.env)
            for name, value in step.env:
                node.add(f"{name}={value}", "cyan")
        if explain:
            for command in step.commands:
                node.add(f"$ {command}", "dim")
            if step.task is not None:
                node.add(f"torchsmith {step.task.name} {step.task.text}", "dim")
        for output in step.outputs if step.kind in ("compile", "package") else ():
            node.add(f"-> {output}")


def _tree(plan: Plan, shown: Sequence[Resolution], *, explain: bool) -> Branch:
    if len(plan.variants) == 1:
        tree = Branch(f"{plan.name}: {_headline(plan.variants[0])}", "bold")
        _add_steps(tree, plan.steps, explain=explain)
        return tree
    tree = Branch(f"{plan.name}: {len(plan.variants)} variants", "bold")
    shared = [step for step in plan.steps if not step.variant]
    if shared:
        _add_steps(tree.add("shared by all"), shared, explain=explain)
    for item in shown:
        steps = [step for step in plan.steps if step.variant == item.variant]
        branch = tree.add(f"{item.variant}: {_headline(item)}", "bold")
        if len(plan.variants) <= 3 or explain:
            _add_steps(branch, steps, explain=explain)
        else:
            branch.add(f"{counted(len(steps), 'step')} -> {item.wheel}")
    if len(plan.variants) > len(shown):
        tree.add(f"… and {len(plan.variants) - len(shown)} more (--json has them all)")
    return tree


def _explain(item: Resolution) -> None:
    tree = Branch(f"Why ({item.variant})", "bold")
    for choice in item.choices:
        line = tree.add(f"{choice.subject} = {choice.value}: {choice.reason}")
        for address in choice.source.split():
            line.add(address, "dim")
    print()
    print("\n".join(tree.lines()))


def _show_plan(plan: Plan, cores: int, *, explain: bool) -> None:
    """The whole plan for one variant; an outline for many."""
    shown = plan.variants[: planning.SHOWN_VARIANTS]
    print("\n".join(_tree(plan, shown, explain=explain).lines()))
    for item in shown if explain else ():
        _explain(item)
    printed: set[str] = set()
    for item in shown:
        for caution in item.cautions:
            if caution.message not in printed:
                printed.add(caution.message)
                cure = f" -> {caution.cure}" if caution.cure else ""
                say(f"{style('yellow', '!')} {caution.message}{cure}")
                for address in caution.source.split() if explain else ():
                    say(f"  {style('dim', address)}")
    total = plan.core_seconds
    disk = sum(step.cost.disk_mb for step in plan.steps) / 1024
    print()
    here = f"{duration(total / max(1, cores))} on {counted(cores, 'core')} here"
    say(
        f"{counted(len(plan.steps), 'step')}, about {duration(total)} of one core "
        f"({here}) and {disk:.0f} GB of disk."
    )
