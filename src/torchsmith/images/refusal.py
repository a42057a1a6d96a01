"""Saying what an engine's refusal to build means, where that is known."""

from __future__ import annotations

import re
from pathlib import Path

from torchsmith.errors import ContainerToolError, TorchsmithError
from torchsmith.images.engine import Build, Engine

_FROM = re.compile(r"^FROM\s+(?:--platform=\S+\s+)?(\S+)(?:\s+AS\s+(\S+))?", re.MULTILINE | re.I)
# What engines say of an image they have not and cannot bring.
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
    r"|could not resolve|network is unreachable|unable to connect to|could not connect to",
    re.I,
)


def bases(file: Path) -> tuple[str, ...]:
    """The images a Dockerfile starts from: not its own stages, not nothing."""
    stages = {"scratch"}
    found: dict[str, None] = {}
    for name, stage in _FROM.findall(file.read_text()):
        if name not in stages:
            found[name] = None
        stages.add(stage)
    return tuple(found)


def explained(error: ContainerToolError, engine: Engine, wanted: Build) -> TorchsmithError:
    """The error a person is shown for a build that failed."""
    said = "\n".join(error.said[-40:])
    if _NO_ROOM.search(said):
        # As the C library says it, by which a full disk is known.
        return ContainerToolError(
            f"No space left on device, where {engine.name} keeps its images",
            f"`{engine.name} system df` says what takes it; `{engine.name} system prune` frees it.",
            error.said,
        )
    absent = [name for name in bases(wanted.file) if not _has(engine, name)]
    if absent and _NOT_BROUGHT.search(said):
        return ContainerToolError(
            f"the base image {absent[0]} is not here and could not be brought: {error.said[-1]}",
            f"Is the name right? `{engine.name} pull {absent[0]}` tries it alone; "
            "image.base in the recipe names another.",
            error.said,
        )
    if (lost := next(filter(_NO_NETWORK.search, error.said[-40:]), "")) and not absent:
        return ContainerToolError(
            f"a server could not be reached from inside the build of {wanted.tag}: {lost.strip()}",
            "If this machine reaches it, --network host lends the build its network; behind a "
            "proxy, HTTPS_PROXY and HTTP_PROXY name it. Layers that are done are kept.",
            error.said,
        )
    return ContainerToolError(
        f"{engine.name} could not build {wanted.tag}",
        "The lines before this one say why; layers that are done are kept for the next try.",
        error.said,
    )


def _has(engine: Engine, image: str) -> bool:
    try:
        return engine.find(image) is not None
    except ContainerToolError:
        return False
