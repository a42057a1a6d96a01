"""What a diagnosis looks like on a terminal."""

from __future__ import annotations

from torchsmith.cli.output import counted, print_json
from torchsmith.cli.terminal import Branch
from torchsmith.diagnose.diagnose import Diagnosis, Named, filled
from torchsmith.diagnose.knowledge import shipped

_MOST = 3


def show(found: Diagnosis) -> None:
    """The failures a log shows, or the first error of one that shows none."""
    if found.ended != "badly":
        _show_ending(found)
        return
    if not found.named:
        root = Branch(
            f"nothing that is known in {counted(found.lines, 'line')}; what says most:", "bold"
        )
        for line in found.first_error:
            root.add(f"line {line.number}: {line.text}", "dim")
        print("\n".join(root.lines()))
        return
    first, *others = found.named
    print("\n".join(_tree(first).lines()))
    for named in [item for item in others if not item.after][: _MOST - 1]:
        print("\n".join(_tree(named).lines()))
    follows = [item for item in others if item.after]
    for named in follows[:_MOST]:
        print(f"   {named.title}: follows from {named.after}")


def _show_ending(found: Diagnosis) -> None:
    """A log without a failure: how it ends, what came right on the way, and its warnings."""
    if found.well is None:
        print(f"no failure was found in {counted(found.lines, 'line')}")
    else:
        root = Branch("ok  this log ends well", "bold")
        root.add(f"line {found.well.number}: {found.well.text}", "dim")
        print("\n".join(root.lines()))
    for named in found.overcome[:_MOST]:
        print(f"   {named.title}: it came right after all (line {named.lines[0].number})")
    for named in found.named[:_MOST]:
        print("\n".join(_tree(named, "!").lines()))


def _tree(named: Named, mark: str = "x") -> Branch:
    root = Branch(f"{mark}  {named.title}", "bold")
    for line in named.lines:
        root.add(f"line {line.number}: {line.text}", "dim")
    if named.standing == "symptom":
        root.add("a symptom: these lines do not say what caused it")
    elif named.standing == "kind":
        root.add("a kind of failure: what caused this one is not known")
    root.add(f"means: {named.meaning}")
    for cause in named.causes:
        word = "because" if cause.certain else "perhaps"
        root.add(f"{word}: {cause.text}").add(f"cure: {cause.cure}", "green")
    root.add(f"cure: {named.cure}", "green")
    if named.fix is not None:
        root.add("in a recipe: torchsmith diagnose LOG --fix RECIPE makes the change, if it plans")
    root.add(f"{named.id}: {named.source}")
    return root


def show_list(*, json: bool) -> None:
    """Every failure that is known, by area."""
    known = shipped()
    if json:
        failures = [
            {
                "id": item.id,
                "area": area,
                "title": filled(item.title, {}),
                "source": item.source,
                "fix": item.fix is not None,
            }
            for area, items in known.areas.items()
            for item in items
        ]
        print_json({"failures": failures})
        return
    for area, items in known.areas.items():
        print(area)
        for item in items:
            print(f"  {item.id:<28} {filled(item.title, {})}")
    print(f"{len(known.failures)} failures are known")
