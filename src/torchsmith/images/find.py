"""Which container engine is used: the one asked for, or the first that would work."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchsmith.errors import NoContainerToolError, UsageError
from torchsmith.host.containers import read_buildah, read_docker, read_podman
from torchsmith.host.models import Engine as Found
from torchsmith.host.probe import Programs
from torchsmith.images.engine import Buildah, Docker, Engine, Podman
from torchsmith.names import did_you_mean

# In the order they are tried. podman first: it needs nothing to be running.
ENGINES: Mapping[str, type[Engine]] = {"podman": Podman, "docker": Docker, "buildah": Buildah}
_READERS = {"podman": read_podman, "docker": read_docker, "buildah": read_buildah}
VARIABLE = "TORCHSMITH_ENGINE"

_INSTALL = "Install one: apt-get install podman (or docker.io, or buildah)."


def find_engine(
    wanted: str = "", environ: Mapping[str, str] | None = None, *, runs: bool = False
) -> Engine:
    """The engine of this name, or the one $TORCHSMITH_ENGINE names, or the first that answers.

    With `runs`, one that can start containers.
    """
    variables = os.environ if environ is None else environ
    programs = Programs(variables, timeout=20.0)
    name = wanted or variables.get(VARIABLE, "")
    if name:
        return _named(name, "--engine" if wanted else VARIABLE, programs, environ, runs=runs)
    silent: list[Found] = []
    for known, engine in ENGINES.items():
        if runs and not engine.runs:
            continue
        found = _READERS[known](programs)
        if found is not None and found.running:
            return engine(found.path, found.version, environ)
        silent += [found] if found is not None else []
    if silent:
        raise _not_running(silent[0])
    raise NoContainerToolError("no container engine is installed here", _INSTALL)


def check_name(name: str, origin: str = "--engine") -> None:
    """Refuse a container tool that torchsmith does not know."""
    if name not in ENGINES:
        raise UsageError(
            f"{origin}: {name!r} is not a container tool that torchsmith knows",
            did_you_mean(name, ENGINES),
        )


def _named(
    name: str, origin: str, programs: Programs, environ: Mapping[str, str] | None, *, runs: bool
) -> Engine:
    check_name(name, origin)
    if runs and not ENGINES[name].runs:
        raise NoContainerToolError(
            f"{origin}: {name} builds images and starts none", "Use podman or docker."
        )
    found = _READERS[name](programs)
    if found is None:
        there = [other for other in ENGINES if other != name and programs.find(other)]
        instead = f" Or use {there[0]}, which is here." if there else ""
        raise NoContainerToolError(
            f"{name} is not installed, or does not answer",
            f"apt-get install {'docker.io' if name == 'docker' else name}.{instead}",
        )
    if not found.running:
        raise _not_running(found)
    return ENGINES[name](found.path, found.version, environ)


def _not_running(found: Found) -> NoContainerToolError:
    said = f": {found.detail}" if found.detail else ""
    denied = "permission denied" in found.detail.lower()
    return NoContainerToolError(
        f"{found.name} is installed but not running{said}"
        if not denied
        else f"this user may not talk to {found.name}{said}",
        "Add the user to the group docker and log in again, or use podman."
        if denied
        else f"Start it: systemctl start {found.name}; or use podman, which needs no daemon.",
    )
