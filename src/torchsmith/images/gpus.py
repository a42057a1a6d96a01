"""GPUs for a container: through CDI with podman, with docker's own option otherwise.

https://github.com/cncf-tags/container-device-interface
"""

from __future__ import annotations

import re
from pathlib import Path

from torchsmith.errors import HostError, UsageError

_DRIVER = "dev/nvidiactl"
_SPECIFICATIONS = ("etc/cdi", "var/run/cdi")
_CDI = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (of nvidia-container-toolkit)"


def parse_gpus(text: str) -> tuple[str, ...]:
    """The GPUs an option names: ("all",), their numbers or UUIDs, or none."""
    if text == "none":
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if names == ("all",) or all(
        re.fullmatch(r"[0-9]{1,3}(?::[0-9]{1,2})?|(?:GPU|MIG)-[0-9a-f-]{8,64}", name)
        for name in names
    ):
        return tuple(dict.fromkeys(names))
    raise UsageError(
        f"--gpus: {text!r} names no GPUs", "Write all, none, or numbers as in 0,1 (nvidia-smi -L)."
    )


def gpu_words(engine: str, gpus: tuple[str, ...]) -> list[str]:
    """The engine's options for these GPUs."""
    if not gpus:
        return []
    if engine == "docker":
        # Quoted for docker's own reading of commas, not for a shell.
        return ["--gpus", "all" if gpus == ("all",) else f'"device={",".join(gpus)}"']
    return [word for name in gpus for word in ("--device", f"nvidia.com/gpu={name}")]


def chosen_gpus(engine: str, asked: str | None, root: Path = Path("/")) -> tuple[str, ...]:
    """The GPUs a container gets: those asked for, or all there are where it can have them."""
    here = (root / _DRIVER).exists()
    described = engine == "docker" or _described(root)
    if asked is None:
        return ("all",) if here and described else ()
    gpus = parse_gpus(asked)
    if gpus and not here:
        raise HostError(
            "GPUs were asked for, and this machine has no NVIDIA driver that is loaded",
            "nvidia-smi must work here first; or run without, --gpus none.",
        )
    if gpus and not described:
        raise HostError(
            f"{engine} does not know this machine's GPUs", f"Register them once: {_CDI}."
        )
    return gpus


def withheld(engine: str, asked: str | None, root: Path = Path("/")) -> str:
    """What to say of GPUs that are here and that a container does not get unasked."""
    if asked is None and engine != "docker" and (root / _DRIVER).exists() and not _described(root):
        return f"the GPUs of this machine are not given to it: {engine} does not know them. {_CDI}"
    return ""


def _described(root: Path) -> bool:
    return any(
        "nvidia.com/gpu" in path.read_text(errors="replace")
        for place in _SPECIFICATIONS
        for path in (root / place).glob("*")
        if path.suffix in (".yaml", ".json")
    )
