"""`torchsmith config`."""

from __future__ import annotations

from torchsmith.cli import options
from torchsmith.cli.output import print_json


def config(json: options.Json = False) -> None:
    """Show your own defaults, and whether a variable or the file sets them."""
    import os

    from torchsmith.settings import SETTINGS, read_settings, settings_file

    path, in_file = settings_file(), read_settings()
    rows = []
    for item in SETTINGS:
        value = os.environ.get(item.variable, "")
        # The file has set the variable before the command began.
        origin = "" if not value else "file" if in_file.get(item.key) == value else "variable"
        rows.append({"key": item.key, "value": value, "set_by": origin, "variable": item.variable})
    if json:
        print_json({"file": str(path), "settings": rows})
        return
    print(f"{path}{'' if path.exists() else ' (does not exist)'}")
    for item, row in zip(SETTINGS, rows, strict=True):
        shown = f"{row['value']} (from {row['set_by']})" if row["value"] else "not set"
        print(f"  {item.key:<14}  {shown:<30}  {item.meaning}; {item.variable}")
