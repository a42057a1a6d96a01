"""Small libraries of ours that programs of a build load first; compiled once, kept in the store."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from pathlib import Path

from torchsmith.host.probe import ask, read_text
from torchsmith.owners import make_folder, who_else_writes

# The loader takes these for the end of a name.
_SEPARATORS = {" ", ":"}


def preloaded(store: Path, source: Path, compiler: str) -> Path | None:
    """The library of a C file, compiled if it is not there; None if that cannot be."""
    folder = (store / "tools").absolute()
    # A library made on one distribution may want a newer C library than another has.
    system = (read_text(Path("/etc/os-release")) or "").encode()
    identity = platform.machine().encode() + system + source.read_bytes()
    name = f"{source.stem.replace('_', '-')}-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    library = folder / name
    if not _SEPARATORS.isdisjoint(str(library)):
        return None
    try:
        make_folder(folder)
        # Every compiler runs what is in it: another user's is replaced, or left alone.
        if who_else_writes(folder):
            return None
        if library.is_file() and not who_else_writes(library):
            return library
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / library.name
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source)]
            done = ask(command, timeout=60)
            if done is None or done.code:
                return None
            made.chmod(0o755)
            made.replace(library)
    except OSError:
        return None
    return library
