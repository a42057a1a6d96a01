"""What a bundle holds is enough: an extension is built from it where there is no network at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith

from torchsmith.sources.bundle import open_bundle, read_manifest

pytestmark = pytest.mark.e2e

RECIPE = """
name = "tiny"
torch = {{ release = "{release}", {use} }}
python = "host"

[[companions.extension]]
name = "tiny"
folder = "tiny"
check = "import tiny; assert tiny.twice(torch.ones(2)).tolist() == [2.0, 2.0]"
"""


@pytest.fixture(scope="session")
def alone() -> list[str]:
    """A program that starts another one with no network: it must exist, or nothing is proven."""
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        tried = subprocess.run([*words, "true"], capture_output=True, check=False)
        if tried.returncode == 0:
            return words
    raise AssertionError(
        "no network namespace can be made here: run as root, or allow user namespaces"
    )


def test_an_extension_is_built_from_a_bundle_without_a_network(
    tiny: Path,
    torchsmith: Torchsmith,
    alone: list[str],
    published_torch: Path,
    published_is_small: bool,
    tmp_path: Path,
) -> None:
    # With CUDA in it the wheel and what it requires are gigabytes, which only repeat what the
    # other packages show: there the torch of this test run is used where it lies.
    use = 'use = "wheel"'
    if not published_is_small:
        use = f'use = "installed", environment = "{published_torch}"'
    text = RECIPE.format(release=PUBLISHED_TORCH, use=use)
    (tiny / "recipe.toml").write_text(text, encoding="utf-8")

    written = torchsmith(tiny, "bundle", "--output", "all.bundle")
    assert written.returncode == 0, written.stderr
    assert "wheels" in read_manifest(tiny / "all.bundle").trees
    held = tmp_path / "held"
    held.mkdir()
    open_bundle(tiny / "all.bundle", held, only="wheels")
    names = {path.name.partition("-")[0] for path in held.iterdir()}
    assert {"ninja", "setuptools", "numpy", "wheel"} <= names
    assert ("torch" in names) == published_is_small

    # Nothing pip knows of this machine may serve instead of the bundle.
    bare = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1", "PIP_FIND_LINKS": ""}
    without = torchsmith(tiny, "build", store="empty", before=alone, env=bare)
    assert without.returncode == 6, without.stderr

    built = torchsmith(
        tiny, "build", "--bundle", "all.bundle", store="far away", before=alone, env=bare
    )
    assert built.returncode == 0, built.stderr
    wheel = Path(built.stdout.strip())
    assert wheel.name.startswith("tiny-1.0-cp3")
