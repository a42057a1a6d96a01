"""Building one image of a plan in its work folder, and taking wheels out of an image.

As a program it runs one step of a plan; $PROJECT is the recipe's folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchsmith.engine.disk import room
from torchsmith.engine.made_images import MadeImage, note
from torchsmith.engine.places import certificates, pip_conf
from torchsmith.engine.process import heeding_signals
from torchsmith.errors import ContainerToolError, OutputError, TorchsmithError, UsageError
from torchsmith.images.select import numbers_here
from torchsmith.images.tools import Build, ContainerTool, ImageInfo, Secret, find_tool
from torchsmith.plan.images import ImageTask
from torchsmith.plan.render.dockerfile import WHEELS_IMAGE_LABEL, WHEELS_LABEL
from torchsmith.plan.render.instructions import SECRETS_FOLDER
from torchsmith.programs import OnLine
from torchsmith.tasks import run_task
from torchsmith.temporary import temporary_folder

# A platform as torchsmith writes it, and as registries do.
_PLATFORMS = {"linux-x86_64": "linux/amd64", "linux-aarch64": "linux/arm64"}


def engine_platform(wanted: str, machine: str) -> str:
    """The platform to name to a tool; none where it is this machine's own."""
    return "" if wanted in ("", f"linux-{machine}") else _PLATFORMS.get(wanted, wanted)


def build_image(task: ImageTask, project: Path, say: OnLine) -> MadeImage:
    """Build what a task describes, note what came of it, and return that."""
    context = Path(task.context)
    args = numbers_here(task.caller)
    tool = find_tool(task.engine, runs=task.base)
    if task.base and task.cache and (there := tool.find(task.name)) is not None:
        # Its name says what it was made of.
        return _noted(task, tool, there)
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
        return _built(task, tool, args, secrets_of(task, private), say)


def secrets_of(task: ImageTask, private: Path) -> tuple[Secret, ...]:
    """What the recipe names, and how this machine's pip reaches its index."""
    secrets = [Secret(name, name) for name in task.secrets]
    trusted = certificates()
    if trusted is not None:
        secrets.append(Secret("certificates", file=str(trusted)))
    conf = private / "pip.conf"
    conf.touch(mode=0o600)
    conf.write_text(pip_conf(os.environ, f"{SECRETS_FOLDER}/certificates" if trusted else ""))
    return (*secrets, Secret("pip.conf", file=str(conf)))


def _built(
    task: ImageTask,
    tool: ContainerTool,
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
        identity = tool.build(wanted, say)
    except ContainerToolError as error:
        raise explained(error, tool, wanted) from None
    return _noted(task, tool, tool.inspect(identity))


def _noted(task: ImageTask, tool: ContainerTool, info: ImageInfo) -> MadeImage:
    """Note an image for the steps that use it."""
    digest = next((text.partition("@")[2] for text in info.digests), "")
    made = MadeImage(task.name, info.id, digest, tool.name, info.layers, info.bytes)
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
    # The same file costs no room; tools keep times in what they hash, and so must we.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


_FROM = re.compile(r"^FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.MULTILINE | re.I)
# What tools print when they do not have an image and cannot pull it.
_NOT_BROUGHT = re.compile(
    r"short-name .* did not resolve|manifest unknown|pull access denied"
    r"|requested access to the resource is denied|repository does not exist"
    r"|(?:failed to (?:resolve|load|do request|create LLB definition)|initializing source)"
    r"|pinging container registry",
    re.I,
)
_NO_ROOM = re.compile(r"no space left on device|disk quota exceeded|enough free space in /", re.I)
_NO_NETWORK = re.compile(
    r"temporary failure (?:resolving|in name resolution)|name or service not known"
    r"|could not resolve|something wicked happened resolving|no address associated with hostname"
    r"|network is unreachable|no route to host|unable to connect to|could not connect to",
    re.I,
)
_INSTRUCTION = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+(?:/\d+)?: |#\d+ \[")


def bases(file: Path) -> tuple[str, ...]:
    """The images a Dockerfile starts from: not its own stages, not nothing."""
    stages = {"scratch"}
    found: dict[str, None] = {}
    for name, stage in _FROM.findall(file.read_text()):
        if name not in stages:
            found[name] = None
        stages.add(stage)
    return tuple(found)


def explained(error: ContainerToolError, tool: ContainerTool, wanted: Build) -> TorchsmithError:
    """The error to show for a build that failed."""
    output = "\n".join(error.output)
    if _NO_ROOM.search(output):
        # As the C library says it, by which a full disk is known.
        return ContainerToolError(
            f"No space left on device, where {tool.name} keeps its images",
            f"`{tool.name} system df` says what takes it; `{tool.name} system prune` frees it.",
            error.output,
        )
    absent = [name for name in bases(wanted.file) if not _has_image(tool, name)]
    if absent and _NOT_BROUGHT.search(output):
        return ContainerToolError(
            f"the base image {absent[0]} is not here and could not be pulled: {error.output[-1]}",
            f"Is the name right? `{tool.name} pull {absent[0]}` tries it alone; "
            "image.base in the recipe names another.",
            error.output,
        )
    # The first such line: what fails for want of a list of packages comes after it.
    if lost := next(filter(_NO_NETWORK.search, _last_instruction(error.output)), ""):
        return ContainerToolError(
            f"a server could not be reached from inside the build of {wanted.tag}: {lost.strip()}",
            "If this machine reaches it, --network host lends the build its network; behind a "
            "proxy, HTTPS_PROXY and HTTP_PROXY name it. Layers that are done are kept.",
            error.output,
        )
    return ContainerToolError(
        f"{tool.name} could not build {wanted.tag}",
        "The lines before this one say why; layers that are done are kept for the next try.",
        error.output,
    )


def _last_instruction(output: Sequence[str]) -> Sequence[str]:
    """What the instruction that failed printed; earlier ones lost servers and found them again."""
    starts = [number for number, line in enumerate(output) if _INSTRUCTION.match(line)]
    return output[starts[-1] :] if starts else output


def _has_image(tool: ContainerTool, image: str) -> bool:
    try:
        return tool.find(image) is not None
    except ContainerToolError:
        return False


def _holder(tool: ContainerTool, image: str) -> tuple[str, str]:
    """The image that holds the wheels, and where in it."""
    labels = tool.inspect(image).labels
    if place := labels.get(WHEELS_LABEL):
        return image, place
    sibling = labels.get(WHEELS_IMAGE_LABEL, "")
    if not sibling:
        raise UsageError(
            f"{image} holds no wheels that torchsmith built",
            "Images of a recipe that builds something are; this one has what was published.",
        )
    found = tool.find(sibling)
    if found is None:
        raise ContainerToolError(
            f"{image} has its wheels installed; the image that keeps them, {sibling}, is not here",
            f"Pull {sibling}, or run `torchsmith image build --only wheels` with the recipe.",
        )
    return sibling, found.labels.get(WHEELS_LABEL, "/")


def extract_wheels(tool: ContainerTool, image: str, output: Path) -> list[Path]:
    """Write the wheels of an image into a folder, each whole or not at all."""
    holder, place = _holder(tool, image)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written: {error.strerror}", "Name another place."
        ) from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(room(output))
        # Beside their target, so that a rename brings them there.
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=output, prefix=".wheels-"))
        tool.copy_out(holder, f"{place.rstrip('/')}/.", Path(folder))
        found = sorted(Path(folder).rglob("*.whl"))
        made = [wheel.replace(output / wheel.name) for wheel in found]
    if not made:
        raise ContainerToolError(f"{holder} holds no wheels at {place}")
    return made


def _build(task: ImageTask) -> None:
    project = Path(os.environ.get("PROJECT", "."))
    with heeding_signals(signal.SIGINT):
        made = build_image(task, project, lambda line: print(line, flush=True))
    print(f"{made.name} is {made.id[:12]}", flush=True)


if __name__ == "__main__":
    run_task(ImageTask, _build)
