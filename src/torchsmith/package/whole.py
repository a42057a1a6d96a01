"""Writing a small file so that it is seen whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from torchsmith.errors import OutputError


def write_whole(path: Path, content: bytes, *, mode: int = 0o644, replace: bool = True) -> bool:
    """Write a file; without `replace`, False where there is one already, which stays."""
    try:
        # Made for its owner alone, so that a private file is never anything else.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(mode)
            if replace:
                part.replace(path)
                return True
            # Unlike renaming, linking refuses to take another's place.
            path.hardlink_to(part)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}",
            "Check the room left there and the rights on the folder.",
        ) from None
    return True
