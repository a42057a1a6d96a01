"""The steps for libraries built against the torch of the same plan."""

from __future__ import annotations

import re
import shlex

from torchsmith.facts.files import Facts
from torchsmith.plan.costs import compile_cost
from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import in_work, sh, unless
from torchsmith.plan.sources import git_commands
from torchsmith.plan.torch import build_env, env_folder, fresh_copy, search_path
from torchsmith.resolve.models import CompanionChoice, ExtensionChoice, Resolution

_CHECKS = {
    "vision": "import torch, torchvision; "
    "boxes = torch.tensor([[0., 0., 2., 2.], [0., 0., 2., 2.1]]); "
    "assert len(torchvision.ops.nms(boxes, torch.tensor([.9, .8]), .5)) == 1",
    "audio": "import torchaudio",
    "text": "import torchtext",
}


def companion_env(resolution: Resolution, companion: CompanionChoice) -> tuple[tuple[str, str], ...]:
    """torch's own build environment, and what pins the companion to that torch."""
    env = dict(build_env(resolution))
    for name in ("PYTORCH_BUILD_VERSION", "PYTORCH_BUILD_NUMBER"):
        env.pop(name, None)
    label = resolution.version.partition("+")[2]
    env["BUILD_VERSION"] = companion.version + (f"+{label}" if label else "")
    # Companions write this into Requires-Dist: the wheel then asks for exactly this torch.
    env["PYTORCH_VERSION"] = resolution.version
    if resolution.cuda is not None:
        # Their setup.py otherwise looks for a GPU on the building machine.
        env["FORCE_CUDA"] = "1"
        if companion.name == "audio":
            env["USE_CUDA"] = "1"
    return tuple(env.items())


def install_torch(resolution: Resolution, compiled: Step) -> str:
    """Put the torch just built into the environment the companions are built in."""
    python = f'"$WORK"/{shlex.quote(env_folder(resolution.variant))}/bin/python'
    return (
        f"{python} -m pip install --quiet --force-reinstall --no-deps {in_work(compiled.outputs[0])}"
        f"; {python} -m pip install --quiet {in_work(compiled.outputs[0])}"
    )


def companion_steps(
    facts: Facts,
    resolution: Resolution,
    companion: CompanionChoice,
    source: Step,
    torch: Step,
) -> list[Step]:
    """Compile a companion against exactly this torch, then use it."""
    variant = resolution.variant
    folder = f"build/{variant}/{companion.name}"
    dist = f"dist/{variant}"
    pattern = f"{dist}/{companion.package}-{companion.version}*.whl"
    compile_step = Step(
        id=f"compile-{companion.name}-{variant}",
        kind="compile",
        title=f"Compile {companion.package} {companion.version} against torch {resolution.version}",
        why="it only works with the torch it was built against: rebuilt whenever that changes",
        project=companion.name,
        variant=variant,
        needs=(source.id, torch.id),
        env=companion_env(resolution, companion),
        path=search_path(resolution),
        commands=(
            *_torch_in_place(resolution, torch),
            fresh_copy(source.outputs[0], folder),
            f"cd {folder}",
            f"python setup.py bdist_wheel --dist-dir {in_work(dist)}",
            unless(
                f"ls {in_work(dist)}/{companion.package}-{companion.version}*.whl",
                f"the build made no {companion.package} wheel",
            ),
        ),
        outputs=(pattern,),
        cost=compile_cost(facts, companion.name, resolution),
    )
    return [compile_step, _verify(resolution, companion.name, compile_step, pattern, torch)]


def _torch_in_place(resolution: Resolution, torch: Step) -> tuple[str, ...]:
    return (install_torch(resolution, torch),) if torch.kind == "compile" else ()


def _verify(
    resolution: Resolution, name: str, compiled: Step, pattern: str, torch: Step
) -> Step:
    variant = resolution.variant
    folder = f"verify/{variant}"
    check = _CHECKS.get(name, f"import {_module_of(name)}")
    create = (
        (sh(f"{env_folder(variant)}/bin/python", "-m", "venv", "--system-site-packages", folder),)
        if torch.kind != "compile"
        else ()
    )
    if torch.kind != "compile":
        # The published torch stays where the environment has it.
        check_with = f"{env_folder(variant)}/bin/python"
        commands: tuple[str, ...] = (
            f"{check_with} -m pip install --quiet --force-reinstall --no-deps {pattern}",
            f'cd env && "$WORK"/{shlex.quote(check_with)} -c {shlex.quote(check)}',
        )
        create = ()
    else:
        commands = (
            f"{folder}/bin/python -m pip install --quiet {pattern}",
            f"cd {folder} && bin/python -c {shlex.quote(check)}",
        )
    needs = (compiled.id,) if torch.kind != "compile" else (compiled.id, f"verify-torch-{variant}")
    return Step(
        id=f"verify-{name}-{variant}",
        kind="verify",
        title=f"Verify {name}",
        why="it loads and runs beside its torch",
        project=name,
        variant=variant,
        needs=needs,
        commands=(*create, *commands),
        cost=Cost(core_seconds=20, disk_mb=100, basis="an installation"),
    )


def _module_of(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def extension_steps(
    facts: Facts, resolution: Resolution, extension: ExtensionChoice, torch: Step
) -> list[Step]:
    """Any other library: its sdist, repository or folder built against this torch."""
    variant = resolution.variant
    dist = f"dist/{variant}"
    env = {**dict(build_env(resolution)), **dict(extension.env)}
    if resolution.cuda is not None:
        env.setdefault("FORCE_CUDA", "1")
    steps: list[Step] = []
    needs: tuple[str, ...] = (torch.id,)
    if extension.git_url:
        folder = f"sources/{extension.name}"
        fetch = Step(
            id=f"fetch-{extension.name}",
            kind="fetch",
            title=f"Fetch {extension.name} at {extension.git_ref}",
            why=extension.git_url,
            project=extension.name,
            commands=tuple(git_commands(folder, extension.git_url, (), extension.git_ref, "")),
            outputs=(folder,),
            cost=Cost(core_seconds=5, disk_mb=100, basis="a shallow clone"),
        )
        steps.append(fetch)
        needs, subject = (torch.id, fetch.id), in_work(folder)
    elif extension.folder:
        subject = f'"${{PROJECT:-.}}"/{shlex.quote(extension.folder)}'
    else:
        subject = shlex.quote(extension.sdist)
    pattern = f"{dist}/{_module_of(extension.name)}-*.whl"
    wheel = ["python -m pip wheel --no-deps --no-build-isolation"]
    if extension.sdist:
        wheel.append("--no-binary :all:")
    compile_step = Step(
        id=f"compile-{extension.name}-{variant}",
        kind="compile",
        title=f"Compile {extension.name} against torch {resolution.version}",
        why=extension.sdist or extension.git_url or extension.folder,
        project=extension.name,
        variant=variant,
        needs=needs,
        env=tuple(env.items()),
        path=search_path(resolution),
        commands=(
            *_torch_in_place(resolution, torch),
            f"{' '.join(wheel)} --wheel-dir {in_work(dist)} {subject}",
        ),
        outputs=(pattern,),
        cost=compile_cost(facts, extension.name, resolution),
    )
    return [*steps, compile_step, _verify(resolution, extension.name, compile_step, pattern, torch)]
