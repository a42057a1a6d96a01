"""Container tools, and whether they would work now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torchsmith.host.models import Engine
from torchsmith.host.probe import Programs, first_version, together
from torchsmith.programs import Answer

Name = Literal["podman", "buildah", "apptainer"]


def read_engines(programs: Programs) -> tuple[Engine, ...]:
    """Return the container tools that answer."""
    return tuple(filter(None, together(lambda read: read(programs), READERS.values())))


def _daemonless(name: Name, *others: str) -> Callable[[Programs], Engine | None]:
    """How a container tool is read that needs no daemon, under its own or an older name."""

    def read(programs: Programs) -> Engine | None:
        path = programs.find(name, *others)
        version = first_version(programs.run(path, "--version")) if path else None
        if path is None or version is None:
            return None
        detail = f"is {path.name}" if path.name in others else ""
        return Engine(name=name, version=version, path=str(path), running=True, detail=detail)

    return read


def _read_docker(programs: Programs) -> Engine | None:
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


READERS: Mapping[str, Callable[[Programs], Engine | None]] = {
    "podman": _daemonless("podman"),
    "docker": _read_docker,
    "buildah": _daemonless("buildah"),
    "apptainer": _daemonless("apptainer", "singularity"),
}
