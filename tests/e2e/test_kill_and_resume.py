"""A build killed at random moments ends as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

ROOT = Path(__file__).parents[2]


def test_five_kills_cost_no_finished_compile_and_change_no_byte(
    tmp_path: Path, published_torch: Path
) -> None:
    arguments = ["--torch", PUBLISHED_TORCH, "--environment", str(published_torch)]
    # No seed given: it is another each time, and printed, so that a failure can be repeated.
    done = subprocess.run(
        [
            *(sys.executable, "benchmarks/kill_and_resume.py", *arguments),
            *("--folder", str(tmp_path / "bench")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed ")
    assert done.stdout.count("\nkill ") == 5
    assert "the same wheel, byte for byte" in done.stdout
