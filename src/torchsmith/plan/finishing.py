"""The step between a wheel that was compiled and its proof: finished for other machines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.plan.companions import distribution_version
from torchsmith.plan.models import Cost, Step, Task
from torchsmith.plan.toolkit import from_wheels, toolkit_folder, toolkit_step
from torchsmith.plan.torch import loader_env
from torchsmith.recipe.outcome import Libraries, Packages
from torchsmith.resolve.models import Resolution


class Finishing(Struct, frozen=True, omit_defaults=True):
    """The arguments of `torchsmith.package.finish`; paths are those of the work folder.

    `wheel` and `output` may be patterns, since a wheel's whole name is the build's choice and its
    tag is found out. `torch` is the version a library built against it is held to; `pins` a file
    with the versions of NVIDIA's wheels, and `known` those that are known beforehand.
    """

    wheel: str
    output: str
    libraries: Libraries = "vendor"
    strip: bool = True
    torch: str = ""
    pins: str = ""
    known: tuple[str, ...] = ()


def finished(
    packages: Packages,
    resolution: Resolution,
    steps: Sequence[Step],
    beside: Sequence[Step] = (),
) -> list[Step]:
    """The steps of a project with its wheel finished before it is verified, if that is wanted.

    `beside` are the steps of the torch it is verified with, finished already.
    """
    if packages.libraries == "system":
        return list(steps)
    *before, compiled, verify = steps
    finish = _step(packages, resolution, compiled)
    instead = {compiled.outputs[0]: finish.outputs[0]}
    needs = [finish.id]
    if beside:
        *_, torch, ready, _ = beside
        instead[torch.outputs[0]] = ready.outputs[0]
        needs.append(ready.id)
    return [*before, compiled, finish, _verified_instead(verify, instead, needs)]


def finishes(step: Step) -> bool:
    """Whether a step finishes a wheel."""
    return step.task is not None and step.task.name == "finish"


def _verified_instead(verify: Step, instead: Mapping[str, str], needs: Sequence[str]) -> Step:
    """The same proof of other wheels."""

    def renamed(text: str) -> str:
        for old, new in instead.items():
            text = text.replace(old, new)
        return text

    assert verify.expects is not None
    return replace(
        verify,
        needs=(*verify.needs, *needs),
        outputs=tuple(map(renamed, verify.outputs)),
        task=Task(
            "verify",
            replace(
                verify.expects,
                wheel=renamed(verify.expects.wheel),
                beside=tuple(map(renamed, verify.expects.beside)),
            ),
        ),
    )


def _step(packages: Packages, resolution: Resolution, compiled: Step) -> Step:
    variant = resolution.variant
    wheel = compiled.outputs[0]
    folder, _, name = wheel.rpartition("/")
    # Only the platform of torch's name is not known beforehand.
    known = re.sub(r"-linux_\w+\.whl$", "-*.whl", name)
    output = f"{folder}/finished/{known}"
    toolkit = toolkit_step(resolution)
    finishing = Finishing(
        wheel=wheel,
        output=output,
        libraries=packages.libraries,
        strip=packages.strip,
        torch="" if compiled.project == "torch" else distribution_version(resolution),
        pins=f"{toolkit_folder(resolution)}/packages.txt" if from_wheels(resolution) else "",
        known=_known(resolution) if packages.libraries == "wheels" else (),
    )
    return Step(
        id=f"package-wheel-{compiled.project}-{variant}",
        kind="package",
        title=f"Finish {name}",
        why="its libraries come along, none of this machine's folders do, its tag is what is true",
        project=compiled.project,
        variant=variant,
        needs=(compiled.id, *([toolkit.id] if toolkit else [])),
        env=loader_env(resolution),
        outputs=(output,),
        task=Task("finish", finishing),
        cost=Cost(core_seconds=60, disk_mb=1500, basis="reading every symbol, and compression"),
        details=(("libraries", packages.libraries),),
    )


def _known(resolution: Resolution) -> tuple[str, ...]:
    """What the resolution says of the toolkit it is compiled with, wherever that comes from."""
    cuda = resolution.cuda
    if cuda is None:
        return ()
    major = cuda.version.partition(".")[0]
    parts = (("cudnn", cuda.cudnn), ("nccl", cuda.nccl))
    return (
        f"cuda-toolkit=={cuda.version}.*",
        *(f"nvidia-{name}-cu{major}=={version}.*" for name, version in parts if version),
    )
