"""Uploading conda packages to anaconda.org, with its own client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from torchsmith.errors import OutputError
from torchsmith.ship.client import read_page, run_client, secret
from torchsmith.ship.conda_package import read_record
from torchsmith.ship.folder import Action, Change, Say

API = "https://api.anaconda.org"


def upload_packages(
    files: Sequence[Path],
    user: str,
    variable: str,
    say: Say,
    *,
    force: bool = False,
    dry_run: bool = False,
    api: str = API,
) -> list[Change]:
    """Upload packages; one that is there with the same bytes is fine, with other bytes refused.

    `variable` holds the token. With `force`, other bytes take the place of those that are there.
    """
    made: list[Change] = []
    new: list[Path] = []
    for path in files:
        record = read_record(path)
        place = f"{record['subdir']}/{path.name}"
        known = read_page(f"{api}/dist/{user}/{record['name']}/{record['version']}/{place}")
        same = known is not None and _same(known, str(record["md5"]))
        if known is not None and not same and not force:
            raise OutputError(
                f"{place} is in the channel of {user} already, with other bytes",
                "Give the new build another version or build number; or replace it: --force.",
            )
        action: Action = "same" if same else "added" if known is None else "replaced"
        made.append(Change(action, place, str(record["sha256"])))
        if not same:
            new.append(path)
    if new and not dry_run:
        token = secret(variable, API, user)
        say(f"uploading {', '.join(path.name for path in new)} to the channel of {user}")
        run_client(
            ["anaconda", "upload", "--user", user, *["--force"] * force, *map(str, new)],
            "pip install anaconda-client",
            {"ANACONDA_API_TOKEN": token},
        )
    return made


def _same(answer: bytes, md5: str) -> bool:
    try:
        table = json.loads(answer)
    except ValueError:
        return False
    return isinstance(table, dict) and table.get("md5") == md5
