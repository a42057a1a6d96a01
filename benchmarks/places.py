"""CPU-seconds of a compile in a container, as a ratio to the same compile on the machine itself.

    python -m benchmarks.places [RECIPE] [--files 50] [--seed 1] [--system debian-12]

RECIPE asks for torch from source (default: the preset quickstart). Its torch is configured on this
machine, then files of it are drawn and compiled without a compiler cache, as steps of a plan: each
here and in a container of the named distribution, in two builds at the same time with one compile
each, so that both meet the machine in the same state, were it busy. The two should be the same
distribution, so that only the place differs.
The store is --store. What was measured is kept there: the same command goes on where it was
stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import shlex
import subprocess
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace as with_fields
from pathlib import Path

from msgspec.structs import replace

from torchsmith.engine.build import build
from torchsmith.engine.door import Wanted, plan_recipe
from torchsmith.engine.events import Event, StepFinished
from torchsmith.engine.store import Store, default_root
from torchsmith.errors import StepFailed
from torchsmith.host import read_host
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import HERE, Place, Plan, Step
from torchsmith.recipe.load import LoadedRecipe, load_recipe
from torchsmith.recipe.presets import find_preset

# So many are compiled in one step.
_AT_ONCE = 5
_GENERATORS = ("generate-torch-sources", "ATEN_CPU_FILES_GEN_TARGET")


def drawn(tree: Path, count: int, seed: int) -> list[str]:
    """Compile commands of files of a configured tree, each to an object nobody keeps."""
    listed = json.loads((tree / "build/compile_commands.json").read_text())
    # What includes this machine's Python does not compile in a container, which has its own.
    listed = [
        entry
        for entry in listed
        if entry["file"].endswith((".cpp", ".cc", ".c"))
        and not re.search(r"include/python3", entry["command"])
    ]
    chosen = random.Random(seed).sample(listed, min(count, len(listed)))
    return [f"cd {shlex.quote(entry['directory'])}; {_to_nowhere(entry)}" for entry in chosen]


def generate(tree: Path) -> None:
    """Have PyTorch's generators write the sources and headers that others include."""
    folder = tree / "build"
    cache = (folder / "CMakeCache.txt").read_text("utf-8")
    (ninja,) = re.findall(r"^CMAKE_MAKE_PROGRAM:\w+=(.+)$", cache, re.M)
    subprocess.run([ninja, "-C", folder, *_GENERATORS], check=True, stdout=subprocess.DEVNULL)


def _to_nowhere(entry: dict[str, str]) -> str:
    words = shlex.split(entry["command"])
    words[words.index("-o") + 1] = "/dev/null"
    return shlex.join(words)


def step(place: Place, commands: list[str], needs: tuple[str, ...]) -> Step:
    """A step that compiles a few files, one after the other."""
    lines = "\n".join(commands)
    where = "container" if place.inside else "here"
    return Step(
        id=f"compile-{where}",
        kind="compile",
        title=f"{len(commands)} files, {place.system or 'this machine'}",
        place=place,
        needs=needs,
        # What an earlier run took is not what is asked.
        env=(("ROUND", uuid.uuid4().hex),),
        commands=(
            f"cat > round.sh <<'END_OF_ROUND'\n{lines}\nEND_OF_ROUND",
            "xargs --delimiter='\\n' --max-args=1 bash -c < round.sh",
            f"echo done > done-{where}",
        ),
        outputs=(f"done-{where}",),
    )


def planned(loaded: LoadedRecipe, store: Store, *, here: bool = False) -> Plan:
    """The plan of a recipe on this machine."""
    return plan_recipe(loaded, read_host(Path.cwd()), store, Wanted(build_only=True, here=here))


def measured(plan: Plan, store: Store, project: Path, work: Path) -> float:
    """The CPU-seconds of the last step of a plan."""
    took: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, StepFinished):
            took[event.step] = event.cpu_seconds

    try:
        build(with_keys(plan, {}), store, project=project, work=work, on_event=note)
    except StepFailed as failed:
        # The error itself does not travel between processes.
        raise RuntimeError(f"{failed.title}: {failed.reason}; {failed.log}") from None
    return took[plan.steps[-1].id]


def main() -> None:
    """Configure, compile, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", type=Path)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--system", default="debian-12")
    parser.add_argument("--store", type=Path)
    given = parser.parse_args()
    store = Store(given.store or default_root())
    loaded = load_recipe(given.recipe or find_preset("quickstart").path)
    project = Path(loaded.path).parent
    plan = planned(loaded, store, here=True)
    configure = next(item for item in plan.steps if item.kind == "configure")
    configured = build(plan, store, project=project, only=[configure.id])
    generate(configured.work / configure.outputs[0])
    commands = drawn(configured.work / configure.outputs[0], given.files, given.seed)
    recipe = loaded.recipe.model_copy(update={"system": given.system})
    boxed = planned(with_fields(loaded, recipe=recipe), store)
    base = next(item for item in boxed.steps if item.kind == "base")
    place = next(item.place for item in boxed.steps if item.place.inside)
    kept = store.root / f"places-{given.system}-{given.seed}.json"
    results: dict[str, dict[str, float]] = json.loads(kept.read_text()) if kept.exists() else {}
    total = {"here": 0.0, "container": 0.0}
    for begin in range(0, len(commands), _AT_ONCE):
        few = commands[begin : begin + _AT_ONCE]
        files = f"{begin + 1}-{begin + len(few)}"
        if files not in results:
            plans = {
                "here": replace(boxed, name="here", steps=(step(HERE, few, ()),)),
                "container": replace(
                    boxed, name="there", steps=(base, step(place, few, (base.id,)))
                ),
            }
            # Forked, one could inherit a lock of the other's that nobody opens again.
            spawned = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(len(plans), mp_context=spawned) as both:
                took = {
                    where: both.submit(
                        measured, one, store, project, store.root / "work" / one.name
                    )
                    for where, one in plans.items()
                }
                results[files] = {where: running.result() for where, running in took.items()}
            kept.write_text(json.dumps(results))
        here, there = results[files]["here"], results[files]["container"]
        total = {"here": total["here"] + here, "container": total["container"] + there}
        ratio = total["container"] / total["here"]
        print(f"files {files}: {here:.1f} and {there:.1f} CPU-s; so far {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main()
