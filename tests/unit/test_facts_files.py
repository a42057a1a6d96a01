"""Every facts file obeys its model, and every entry says where it comes from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from torchsmith.facts.files import DATA, Facts

pytestmark = pytest.mark.unit

NAMES = sorted(path.stem for path in DATA.glob("*.toml"))


def entries(table: Any) -> Iterator[dict[str, Any]]:
    """Every table that names a source, however deep."""
    if isinstance(table, dict):
        if "source" in table:
            yield table
        for value in table.values():
            yield from entries(value)
    elif isinstance(table, list):
        for item in table:
            yield from entries(item)


@pytest.mark.parametrize("name", NAMES)
def test_a_facts_file_obeys_its_model(name: str) -> None:
    assert getattr(Facts(), name)


@pytest.mark.parametrize("name", NAMES)
def test_every_source_named_is_described_and_every_source_described_is_used(name: str) -> None:
    table = tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))
    described = set(table["sources"])
    used = {key for entry in entries(table) for key in entry["source"].split()}
    assert used == described
