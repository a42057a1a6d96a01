"""A person's own defaults: $XDG_CONFIG_HOME/torchsmith/config.toml.

Each key gives an environment variable its value where it has none. So a flag comes before the
variable, the variable before the file, and programs that torchsmith starts see the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import UsageError

_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the file: the variable it stands for, its kind, and what it says."""

    key: str
    variable: str
    kind: type
    meaning: str


SETTINGS = (
    Setting("store", "TORCHSMITH_STORE", str, "where results are kept"),
    Setting("jobs", "TORCHSMITH_BUILD_JOBS", int, "compilers at once"),
    Setting("memory", "TORCHSMITH_BUILD_MEMORY", str, "memory for all compilers, such as 8G"),
    Setting("container_tool", "TORCHSMITH_ENGINE", str, "podman, docker or buildah"),
    Setting("jobs_to", "TORCHSMITH_JOBS_TO", str, "where jobs go that name no place"),
)


def settings_file() -> Path:
    """The file, whether it exists or not."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "torchsmith" / "config.toml"


def read_settings() -> dict[str, str]:
    """What the file holds, by key; a mistake in it is named."""
    path = settings_file()
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "Mend it, or move it away."
        ) from None
    from torchsmith.foreign import MalformedError, decode_toml  # Most people have no such file.

    try:
        table = decode_toml(content, dict[str, object], _MOST_BYTES)
    except MalformedError as error:
        raise UsageError(f"{path} cannot be read: {error}", "Mend it, or move it away.") from None
    return dict(_checked(path, table))


def apply_settings(environ: MutableMapping[str, str]) -> None:
    """Give every variable that is not set what the file says."""
    found = read_settings()
    for item in SETTINGS:
        if item.key in found:
            environ.setdefault(item.variable, found[item.key])


def _checked(path: Path, table: dict[str, object]) -> Iterator[tuple[str, str]]:
    known = {item.key: item for item in SETTINGS}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{path}: {key} is not a setting", f"It knows {', '.join(known)}.")
        # A bool is an int to Python.
        if type(value) is not known[key].kind or value in ("", 0):
            kind = "a whole number" if known[key].kind is int else "a text in quotes"
            raise UsageError(f"{path}: {key} must be {kind}", f"It means: {known[key].meaning}.")
        is_path = key == "store"
        yield key, str(Path(str(value)).expanduser()) if is_path else str(value)
