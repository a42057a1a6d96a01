"""A Python that nobody packs for the distribution, built from its source and compiled with."""

from __future__ import annotations

import hashlib
import urllib.request

import pytest
from tests.containers import EngineHere
from tests.integration.test_render_sources import debian_mirror
from tests.lab import in_folder

from torchsmith.facts.files import shipped
from torchsmith.resolve.build_rules import source_of_python

pytestmark = [pytest.mark.integration, pytest.mark.long]

RECIPE = """
name = "old"
system = "debian-12"
python = "3.9"
torch = {{ release = "2.8.0", use = "wheel" }}
build.python_source = {{ url = "{url}", sha256 = "{sha256}" }}
[[companions.extension]]
name = "near"
folder = "near"
check = 'import near, ssl, sys; assert sys.base_prefix == "/opt/python"; near.answer()'
"""


def test_an_extension_is_compiled_with_a_python_built_for_it(
    podman: EngineHere, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Debian 11's own: the source of an old Python that can be had wherever Debian can.
    url = f"{debian_mirror().rstrip('/')}/pool/main/p/python3.9/python3.9_3.9.2.orig.tar.xz"
    with urllib.request.urlopen(url) as answer:
        sha256 = hashlib.sha256(answer.read()).hexdigest()
    folder = tmp_path_factory.mktemp("old")
    here = in_folder(folder, RECIPE.format(url=url, sha256=sha256), podman)
    here("build", "--quiet")
    (wheel,) = (here.project / "dist").glob("near-*.whl")
    assert "-cp39-cp39-" in wheel.name

    (here.project / "recipe.toml").write_text(RECIPE.format(url=url, sha256="0" * 64))
    other = here.tried("build", "--quiet")
    assert other.returncode != 0
    assert "python.tar: FAILED" in other.stdout + other.stderr


OLDER = """
name = "older"
system = "debian-12"
python = "3.6"
torch = { release = "1.5.1", use = "wheel" }
[[companions.extension]]
name = "near"
folder = "near"
check = 'import near, ssl, sys; assert sys.base_prefix == "/opt/python"; near.answer()'
"""
# Only Python is old here: headers of torch 1.5.1 are another matter.
WITHOUT_TORCH = """
from setuptools import Extension, setup
setup(name="near", version="1.0", ext_modules=[Extension("near", ["near.cpp"])])
"""


def test_cpython_3_6_of_python_org_is_built_once_and_compiled_with(
    podman: EngineHere, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = source_of_python(shipped(), "3.6")
    assert source is not None
    # It is what is tried here: a site that does not answer is a failure.
    urllib.request.urlopen(source.url, timeout=20).close()
    here = in_folder(tmp_path_factory.mktemp("older"), OLDER, podman)
    (here.project / "near/setup.py").write_text(WITHOUT_TORCH)
    here("build", "--quiet")
    (wheel,) = (here.project / "dist").glob("near-*.whl")
    assert "-cp36-cp36m-" in wheel.name
    assert "to be run" not in here("build", "--dry-run")
