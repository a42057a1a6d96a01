"""A plan on the terminal: the tree, the reasons, the conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.tree import Tree

from torchsmith.cli.output import console, duration

if TYPE_CHECKING:
    from torchsmith.plan.models import Plan, Step
    from torchsmith.resolve.models import Refusal, Resolution

_SHOWN_VARIANTS = 12


def show_refusals(refused: Sequence[Refusal]) -> None:
    """Every conflict: what collides, where that is written, what would work."""
    out = console()
    for item in refused[:_SHOWN_VARIANTS]:
        subject = "What was asked for" if len(refused) == 1 else item.variant
        out.print(f"[bold]{escape(subject)}[/bold] cannot exist:")
        for conflict in item.conflicts:
            out.print(f"  [red]x[/red] {escape(conflict.message)}")
            for fact in (conflict.first, conflict.second):
                source = f"  [dim]{escape(fact.source)}[/dim]" if fact.source else ""
                out.print(f"      {escape(fact.statement)}{source}")
            if conflict.cure:
                out.print(f"      [green]what works:[/green] {escape(conflict.cure)}")
        if item.nearest:
            out.print(f"  [green]nearest combination that works:[/green] {escape(item.nearest)}")
    if len(refused) > _SHOWN_VARIANTS:
        out.print(f"… and {len(refused) - _SHOWN_VARIANTS} more")


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
        cost = f"  [yellow]{about}{duration(step.cost.core_seconds)} of one core[/yellow]"
    return f"[bold]{step.kind:<11}[/bold] {escape(step.title)}{cost}"


def _add_steps(branch: Tree, steps: Sequence[Step], *, explain: bool) -> None:
    told: set[tuple[tuple[str, str], ...]] = set()
    for step in steps:
        node = branch.add(_step_line(step))
        if step.why:
            node.add(f"[dim]{escape(step.why)}[/dim]")
        for name, value in step.details:
            node.add(f"{escape(name)}: {escape(value)}")
        # Compiling happens in the environment of configuring: said once.
        if step.kind in ("configure", "compile") and step.env not in told:
            told.add(step.env)
            for name, value in step.env:
                node.add(f"[cyan]{escape(name)}={escape(value)}[/cyan]")
        if explain:
            for command in step.commands:
                node.add(f"[dim]$ {escape(command)}[/dim]")
        for output in step.outputs if step.kind in ("compile", "package") else ():
            node.add(f"-> {escape(output)}")


def show_plan(plan: Plan, cores: int, *, explain: bool) -> None:
    """The whole plan for one variant; an outline for many."""
    out = console()
    shown = plan.variants[:_SHOWN_VARIANTS]
    shared = [step for step in plan.steps if not step.variant]
    many = len(plan.variants) > 1
    if many:
        tree = Tree(f"[bold]{escape(plan.name)}[/bold]: {len(plan.variants)} variants")
        if shared:
            _add_steps(tree.add("shared by all"), shared, explain=explain)
        for item in shown:
            steps = [step for step in plan.steps if step.variant == item.variant]
            branch = tree.add(f"[bold]{escape(item.variant)}[/bold]: {escape(_headline(item))}")
            if len(plan.variants) <= 3 or explain:
                _add_steps(branch, steps, explain=explain)
            else:
                branch.add(f"{len(steps)} steps -> {escape(item.wheel)}")
        if len(plan.variants) > len(shown):
            tree.add(f"… and {len(plan.variants) - len(shown)} more (--json has them all)")
    else:
        tree = Tree(f"[bold]{escape(plan.name)}[/bold]: {escape(_headline(plan.variants[0]))}")
        _add_steps(tree, plan.steps, explain=explain)
    out.print(tree)
    for item in shown if explain else ():
        out.print(f"\n[bold]Why[/bold] ({escape(item.variant)})")
        for choice in item.choices:
            source = f"  [dim]{escape(choice.source)}[/dim]" if choice.source else ""
            out.print(
                f"  {escape(choice.subject)} = [bold]{escape(choice.value)}[/bold]: "
                f"{escape(choice.reason)}{source}"
            )
    said: set[str] = set()
    for item in shown:
        for caution in item.cautions:
            if caution.message not in said:
                said.add(caution.message)
                cure = f" -> {escape(caution.cure)}" if caution.cure else ""
                out.print(f"[yellow]![/yellow] {escape(caution.message)}{cure}")
    total = plan.core_seconds
    disk = sum(step.cost.disk_mb for step in plan.steps) / 1024
    out.print(
        f"\n{len(plan.steps)} steps, about {duration(total)} of one core "
        f"({duration(total / max(1, cores))} on {cores} cores here) and {disk:.0f} GB of disk."
    )
