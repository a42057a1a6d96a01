"""Python packages in a bundle: what is asked for, how it comes out, and that pip asks nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from torchsmith.engine.store import Store
from torchsmith.engine.wheels import offline, platform_tags, requirements, unpack
from torchsmith.errors import SourceError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Compiler, Host, Libc, Python
from torchsmith.plan.build import make_plan, with_keys
from torchsmith.plan.models import Plan
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.sources.bundle import write_bundle
from torchsmith.sources.sdist import required

pytestmark = pytest.mark.unit

HOST = Host(
    platform="linux-aarch64",
    pythons=(Python(version="3.11.4", path="/usr/bin/python3", headers=True),),
    compilers=(Compiler(kind="gcc", version="12.2.0", path="/usr/bin/gcc", cxx="/usr/bin/g++"),),
)


def planned(use: str, **parts: Any) -> Plan:
    wish = {"torch": {"release": "2.6.0", "use": use}, "companions": {"vision": "match"}, **parts}
    recipe = Recipe.model_validate(wish)
    outcomes = [resolve(variant, shipped(), HOST) for variant in expand(recipe)]
    resolved = [outcome for outcome in outcomes if isinstance(outcome, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(recipe, resolved, shipped(), "test")


def asked(plan: Plan) -> set[str]:
    (resolution,) = plan.variants
    return {text for packages in requirements(plan, resolution) for text in packages}


def test_everything_the_commands_install_is_asked_for() -> None:
    plan = planned("wheel")
    listed = " ".join(asked(plan))
    assert {"torch==2.6.0", "ninja", "wheel"} <= asked(plan)
    assert "pillow" in listed
    environment = next(step for step in plan.steps if step.kind == "environment")
    installed = next(command for command in environment.commands if " pip install " in command)
    for text in environment.pip:
        assert text in installed.replace("'", "")


def test_a_torch_that_is_built_is_not_asked_for() -> None:
    assert not [text for text in asked(planned("source")) if text.startswith("torch=")]


def test_what_is_bundled_is_no_part_of_a_key() -> None:
    """Whoever builds from a bundle finds what was built without one, and the other way round."""
    plan = planned("wheel")
    assert any(step.pip for step in plan.steps)
    without = replace(plan, steps=tuple(replace(step, pip=()) for step in plan.steps))
    found = [step.key for step in with_keys(without, {}).steps]
    assert found == [step.key for step in plan.steps]


def test_pip_may_take_packages_from_the_folder_alone() -> None:
    before = {"PIP_INDEX_URL": "https://a/", "PIP_EXTRA_INDEX_URL": "https://b/", "HOME": "/h"}
    found = offline(before, Path("/the wheels"))
    assert found == {
        "HOME": "/h",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "file:///the%20wheels",
        "PIP_CONFIG_FILE": "/dev/null",
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "ninja-1.13.0-py3-none-any.whl").write_bytes(b"a wheel")
    write_bundle({"wheels": folder}, {}, tmp_path / "all.bundle")
    return tmp_path / "all.bundle"


def test_the_packages_come_out_once(bundle: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    place = unpack(bundle, store)
    assert place is not None
    assert [path.name for path in place.iterdir()] == ["ninja-1.13.0-py3-none-any.whl"]
    (place / "mark").touch()
    assert unpack(bundle, store) == place
    assert (place / "mark").exists()


def test_a_damaged_bundle_leaves_no_packages(bundle: Path, tmp_path: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[-30] ^= 0xFF
    bundle.write_bytes(content)
    store = Store(tmp_path / "store")
    with pytest.raises(SourceError):
        unpack(bundle, store)
    assert not list((tmp_path / "store").rglob("*.whl"))
    assert not list((tmp_path / "store").rglob("*wheels-*"))


def test_a_bundle_of_sources_alone_leaves_pip_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    write_bundle({"torch-2.6.0": tmp_path / "torch"}, {}, tmp_path / "all.bundle")
    assert unpack(tmp_path / "all.bundle", Store(tmp_path / "store")) is None


def test_an_sdist_says_what_it_requires_besides_torch(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: tiny\nVersion: 1\nRequires-Dist: torch>=2\n"
        "Requires-Dist: scipy>=1.5\nRequires-Dist: pytest; extra == 'test'\n"
    )
    assert required(tmp_path) == ["scipy>=1.5"]
    assert required(tmp_path / "no") == []


def test_a_setup_script_is_read_not_run(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "raise SystemExit\n"
        "def main():\n"
        "    install_requires = ['filelock', 'sympy==1.13.1', TRITON, 'torch', 'not one, surely']\n"
        "    setup(install_requires=install_requires)\n"
        "setup(name='tiny', install_requires=('jinja2',))\n"
    )
    assert required(tmp_path) == ["filelock", "sympy==1.13.1", "jinja2"]
    (tmp_path / "setup.py").write_text("print 'Python 2'\n")
    assert required(tmp_path) == []


def test_for_another_machine_pip_is_told_of_its_glibc() -> None:
    ubuntu = HOST.model_copy(update={"libc": Libc(kind="glibc", version="2.39")})
    names = platform_tags(ubuntu)
    assert names[0] == "manylinux_2_39_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64"} <= set(names)
    assert platform_tags(HOST)[0] == "manylinux_2_28_aarch64"
