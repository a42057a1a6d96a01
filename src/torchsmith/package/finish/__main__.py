"""Finish a wheel of a plan, in its work folder: python -m torchsmith.package.finish < FINISHING"""

from __future__ import annotations

import shutil
from pathlib import Path

from torchsmith.inputs import one_file
from torchsmith.package.finish.design import Options
from torchsmith.package.finish.finish import UNFINISHED, Finished, finish_wheel, lines, pins_in
from torchsmith.package.finish.outside import read_pins
from torchsmith.plan.finishing import Finishing
from torchsmith.tasks import run_task


def carry_out(finishing: Finishing) -> Finished:
    """Finish the one wheel that is meant; what an earlier attempt left under its name goes."""
    wheel = one_file(finishing.wheel)
    folder = Path(finishing.output).parent
    for left in folder.glob(f"{UNFINISHED}*"):
        # Of an attempt that was killed; no other step works in this folder now.
        shutil.rmtree(left, ignore_errors=True)
    made = finish_wheel(
        wheel,
        folder,
        Options(
            libraries=finishing.libraries,
            strip=finishing.strip,
            torch=finishing.torch,
            pins=read_pins(finishing.known)
            | (pins_in(Path(finishing.pins)) if finishing.pins else {}),
        ),
        say=lambda text: print(text, flush=True),
    )
    for other in Path().glob(finishing.output):
        if other != Path(made.result):
            other.unlink()
    return made


if __name__ == "__main__":
    run_task(Finishing, lambda given: print("\n".join(lines(carry_out(given))), flush=True))
