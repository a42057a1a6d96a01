"""The step that locks a stack: torch, what was built against it, and all they need."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from torchsmith.plan.companions import distribution_version
from torchsmith.plan.models import Cost, Step, Task
from torchsmith.plan.ship import wheel_folder
from torchsmith.resolve.models import Resolution


class Together(Struct, frozen=True, omit_defaults=True):
    """What pip is to install together, as paths of the work folder, and where the lock goes.

    `words` are its options and torch; `wheels` are patterns of those that were built.
    """

    environment: str
    output: str
    wheels: tuple[str, ...]
    words: tuple[str, ...] = ()


def pylock_step(resolution: Resolution, environ: Step, proofs: Sequence[Step]) -> Step:
    """Resolve everything once more, as an installer does, and write down each file."""
    variant = resolution.variant
    output = f"{wheel_folder(proofs)}/pylock.toml"
    words: list[str] = []
    if resolution.installed is None:
        # What is in the environment already belongs to the lock as well.
        words.append("--ignore-installed")
    if resolution.use == "wheel":
        if resolution.wheel_index:
            words += ["--extra-index-url", resolution.wheel_index]
        words.append(f"torch=={distribution_version(resolution)}")
    wheels = tuple(proof.expects.wheel for proof in proofs if proof.expects is not None)
    return Step(
        id=f"lock-{variant}",
        kind="package",
        title="Lock the stack: pylock.toml",
        why="pip and uv install the same files from it anywhere",
        variant=variant,
        needs=(environ.id, *(proof.id for proof in proofs)),
        task=Task("pylock", Together(environ.outputs[0], output, wheels, tuple(words))),
        outputs=(output,),
        cost=Cost(core_seconds=20, disk_mb=1, basis="reading an index"),
    )
