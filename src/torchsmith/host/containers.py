"""Container tools, and whether they would work now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torchsmith.host.models import Engine
from torchsmith.host.probe import Programs, first_version, together
from torchsmith.programs import Answer

Name = Literal["podman", "buildah", "apptainer"]


def read_engines(programs: Programs) -> tuple[Engine, ...]:
    """Return the container tools that answer."""
    readers: tuple[Callable[[Programs], Engine | None], ...] = (
        read_podman,
        read_docker,
        read_buildah,
        read_apptainer,
    )
    return tuple(engine for engine in together(lambda read: read(programs), readers) if engine)


def _daemonless(programs: Programs, name: Name, *others: str) -> Engine | None:
    """A container tool that needs no daemon, under its own or an older name."""
    path = programs.find(name, *others)
    version = first_version(programs.run(path, "--version")) if path else None
    if path is None or version is None:
        return None
    detail = f"is {path.name}" if path.name in others else ""
    return Engine(name=name, version=version, path=str(path), running=True, detail=detail)


def read_podman(programs: Programs) -> Engine | None:
    """Return podman."""
    return _daemonless(programs, "podman")


def read_buildah(programs: Programs) -> Engine | None:
    """Return buildah."""
    return _daemonless(programs, "buildah")


def read_apptainer(programs: Programs) -> Engine | None:
    """Return apptainer, which was called singularity."""
    return _daemonless(programs, "apptainer", "singularity")


def read_docker(programs: Programs) -> Engine | None:
    """Return docker, with what its client says when no daemon answers."""
    path = programs.find("docker")
    output = programs.run(path, "--version") if path else None
    version = first_version(output)
    if path is None or output is None or version is None:
        return None
    if "podman" in output.lower():  # the podman-docker package
        return Engine(
            name="docker", version=version, path=str(path), running=True, detail="is podman"
        )
    answer = programs.ask(path, "version", "--format", "{{.Server.Version}}")
    running = answer is not None and answer.code == 0 and first_version(answer.out) is not None
    return Engine(
        name="docker",
        version=version,
        path=str(path),
        running=running,
        detail="" if running else _complaint(answer),
    )


def _complaint(answer: Answer | None) -> str:
    if answer is None:
        return "the docker client did not answer in time"
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    # Its last line: warnings about the client's configuration come first.
    return lines[-1][:300] if lines else "no docker daemon answers"
