"""TOML tables, kept compiled beside their source the way Python keeps its own modules.

Parsing 200 kB of TOML takes as long as importing half of torchsmith; the same as JSON takes
two milliseconds. The compiled copy is a cache in the sense of ``__pycache__``: it is used only
while it matches its source, and where it cannot be written nothing is lost but time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from torchsmith.files import write_whole


def load_table(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    status = path.stat()
    stamp = [status.st_mtime_ns, status.st_size]
    compiled = path.parent / "__pycache__" / f"{path.name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(compiled.read_bytes())
        if kept["source"] == stamp:
            table: dict[str, Any] = kept["table"]
            return table
    with path.open("rb") as file:
        table = tomllib.load(file)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError, TypeError):
            kept = json.dumps({"source": stamp, "table": table})
            write_whole(compiled, kept.encode(), mode=0o644, sync=False)
    return table
