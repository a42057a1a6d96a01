"""Every exit code has one line in the page about errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def test_every_exit_code_has_its_line_in_the_page_about_errors() -> None:
    sources = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = {code for text in sources for code in re.findall(r"^    exit_code = (\d+)$", text, re.M)}
    page = (ROOT / "docs/errors.md").read_text("utf-8")
    told = re.findall(r"^\| (\d+) \|", page, re.M)
    assert len(told) == len(set(told))
    assert used <= set(told)
