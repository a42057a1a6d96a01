"""A plan on the terminal: the tree, the reasons, the conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchsmith.cli.output import counted, duration
from torchsmith.cli.terminal import Branch, say, style

if TYPE_CHECKING:
    from torchsmith.plan.models import Plan, Step
    from torchsmith.resolve.models import Refusal, Resolution

_SHOWN_VARIANTS = 12


def show_refusals(refused: Sequence[Refusal]) -> None:
    """Every conflict: what collides, where that is written, what would work."""
    for item in refused[:_SHOWN_VARIANTS]:
        subject = "What was asked for" if len(refused) == 1 else item.variant
        tree = Branch(f"{subject} {_refused(item)}:", "bold")
        for conflict in item.conflicts:
            node = tree.add(f"x {conflict.message}", "red")
            for fact in (conflict.first, conflict.second):
                line = node.add(fact.statement)
                for address in fact.source.split():
                    line.add(address, "dim")
            if conflict.cure:
                node.add(f"what works: {conflict.cure}", "green")
        if item.nearest:
            tree.add(f"nearest combination that works: {item.nearest}", "green")
        print("\n".join(tree.lines()))
    if len(refused) > _SHOWN_VARIANTS:
        say(f"… and {len(refused) - _SHOWN_VARIANTS} more")


def _refused(item: Refusal) -> str:
    from torchsmith.resolve.models import STANDINGS

    verb = "" if item.standing == "impossible" else "is "
    return verb + STANDINGS[item.standing]


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


def show_plan(plan: Plan, cores: int, *, explain: bool) -> None:
    """The whole plan for one variant; an outline for many."""
    shown = plan.variants[:_SHOWN_VARIANTS]
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
