"""Building one image of a plan, in its work folder."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.engine.made_images import MadeImage, note
from torchsmith.engine.reach import certificates, pip_conf
from torchsmith.errors import ContainerToolError, UsageError
from torchsmith.images.caller import numbers_here
from torchsmith.images.engine import Build, Engine, ImageInfo, Secret
from torchsmith.images.find import find_engine
from torchsmith.images.process import OnLine
from torchsmith.images.refusal import explained
from torchsmith.plan.images import ImageTask
from torchsmith.plan.render.instructions import SECRETS_FOLDER
from torchsmith.temporary import temporary_folder

# A platform as torchsmith writes it, and as registries do.
_PLATFORMS = {"linux-x86_64": "linux/amd64", "linux-aarch64": "linux/arm64"}


def engine_platform(wanted: str, machine: str) -> str:
    """The platform an engine has to be told; none where it is this machine's own."""
    return "" if wanted in ("", f"linux-{machine}") else _PLATFORMS.get(wanted, wanted)


def build_image(task: ImageTask, project: Path, say: OnLine) -> MadeImage:
    """Build what a task describes, note what came of it, and return that."""
    context = Path(task.context)
    args = numbers_here(task.caller)
    engine = find_engine(task.engine, runs=task.base)
    if task.base and task.cache and (there := engine.find(task.name)) is not None:
        # Its name says what it was made of.
        return _noted(task, engine, there)
    if task.wheels:
        wheels = sorted(Path().glob(task.wheels))
        if not wheels:
            raise UsageError(
                f"there is no {task.wheels} to put into the image",
                "`torchsmith build` makes the wheels first.",
            )
        put_wheels(wheels, context)
    put_project_files(task.reads, project, context)
    with temporary_folder("pip") as private:
        return _built(task, engine, args, secrets_of(task, private), say)


def secrets_of(task: ImageTask, private: Path) -> tuple[Secret, ...]:
    """What the recipe names, and how this machine's pip reaches its index."""
    given = [Secret(name, name) for name in task.secrets]
    trusted = certificates()
    if trusted is not None:
        given.append(Secret("certificates", file=str(trusted)))
    conf = private / "pip.conf"
    conf.touch(mode=0o600)
    conf.write_text(pip_conf(os.environ, f"{SECRETS_FOLDER}/certificates" if trusted else ""))
    return (*given, Secret("pip.conf", file=str(conf)))


def _built(
    task: ImageTask,
    engine: Engine,
    args: Mapping[str, str],
    secrets: tuple[Secret, ...],
    say: OnLine,
) -> MadeImage:
    context = Path(task.context)
    wanted = Build(
        context,
        task.name,
        context / task.file,
        target=task.stage,
        args=args,
        secrets=secrets,
        platform=engine_platform(task.platform, platform.machine()),
        network=task.network,
        cache=task.cache,
    )
    try:
        identity = engine.build(wanted, say)
    except ContainerToolError as error:
        raise explained(error, engine, wanted) from None
    return _noted(task, engine, engine.inspect(identity))


def _noted(task: ImageTask, engine: Engine, info: ImageInfo) -> MadeImage:
    """Leave word of an image for whoever uses it."""
    digest = next((text.partition("@")[2] for text in info.digests), "")
    made = MadeImage(task.name, info.id, digest, engine.name, info.layers, info.bytes)
    note(Path(task.record), made)
    return made


def put_wheels(wheels: Sequence[Path], context: Path) -> None:
    """Have these wheels in the context, and no others."""
    folder = context / "wheels"
    with room(context):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for wheel in wheels:
            _link(wheel, folder / wheel.name)


def put_project_files(paths: Sequence[str], project: Path, context: Path) -> None:
    """Have copies of what the Dockerfile takes of the recipe's folder."""
    for path in paths:
        source, target = project / path, context / path.lstrip("/")
        if not source.exists():
            raise UsageError(
                f"there is no {source}", "The recipe names it: it is looked for beside the recipe."
            )
        with room(context):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target)


def _link(source: Path, target: Path) -> None:
    # The same file costs no room; engines keep times in what they hash, and so must we.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
