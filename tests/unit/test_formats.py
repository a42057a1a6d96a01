"""What torchvision must read is looked for before it is built, in the wheel, and in use."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.plans import shell_lines

from torchsmith.engine.preflight import ensure_formats
from torchsmith.errors import HostError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Compiler, Host, Python
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Outcome, Refusal, Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

WISH: dict[str, Any] = {
    "torch": {"release": "2.6.0", "use": "wheel"},
    "python": "3.11",
    "companions": {"vision": "match", "vision_formats": ["png"]},
}


def host(compiler: str = "/usr/bin/gcc") -> Host:
    return Host(
        platform="linux-aarch64",
        pythons=(Python(version="3.11.4", path="/usr/bin/python3", headers=True),),
        compilers=(Compiler(kind="gcc", version="12.2.0", path=compiler, cxx="/usr/bin/g++"),),
    )


def outcome(machine: Host, **parts: Any) -> tuple[Recipe, Outcome]:
    recipe = Recipe.model_validate({**WISH, **parts})
    (variant,) = expand(recipe)
    return recipe, resolve(variant, shipped(), machine)


def resolved(machine: Host | None = None, **parts: Any) -> Resolution:
    _, found = outcome(machine or host(), **parts)
    assert isinstance(found, Resolution), found
    return found


def planned(**parts: Any) -> Plan:
    recipe, found = outcome(host(), **parts)
    assert isinstance(found, Resolution), found
    return make_plan(recipe, [found], shipped(), "test")


def step(plan: Plan, kind: str) -> Step:
    return next(item for item in plan.steps if item.kind == kind)


def test_only_the_formats_asked_for_are_switched_on() -> None:
    env = dict(step(planned(), "compile").env)
    assert (env["TORCHVISION_USE_PNG"], env["TORCHVISION_USE_JPEG"]) == ("1", "0")


def test_without_a_wish_torchvision_decides_itself() -> None:
    plan = planned(companions={"vision": "match"})
    assert not [name for name, _ in step(plan, "compile").env if name.startswith("TORCHVISION")]
    assert "png" not in " ".join(shell_lines(plan, step(plan, "verify")))


def test_the_recipes_own_variables_win() -> None:
    plan = planned(build={"env": {"TORCHVISION_USE_JPEG": "1"}})
    assert dict(step(plan, "compile").env)["TORCHVISION_USE_JPEG"] == "1"


def test_a_release_that_cannot_read_it_is_refused() -> None:
    _, found = outcome(
        host(), torch={"release": "1.6.0", "use": "wheel"}, python="3.8", platform="linux-x86_64"
    )
    assert isinstance(found, Refusal)
    assert "vision-format" in [conflict.kind for conflict in found.conflicts]


def test_where_git_cannot_be_reached_debian_has_the_source() -> None:
    source = step(planned(), "fetch").source
    assert source is not None
    assert (source.kind, source.suite, source.package) == ("git", "trixie", "pytorch-vision")
    source = step(planned(source={"kind": "git"}), "fetch").source
    assert source is not None
    assert source.suite == ""


def compiler_without(header: str, folder: Path) -> str:
    """A compiler that answers as the real one does where a header is missing."""
    program = folder / "cc"
    program.write_text(f'#!/bin/sh\ncase "$*" in *{header}*) exit 1;; esac\nexit 0\n')
    program.chmod(0o755)
    return str(program)


def test_a_missing_header_ends_it_before_anything_is_built(tmp_path: Path) -> None:
    asked: list[str] = []
    lacking = resolved(host(compiler_without("png.h", tmp_path)))
    with pytest.raises(HostError, match=r"read PNG, but png\.h is missing"):
        ensure_formats([lacking], asked.extend)
    assert asked == ["libpng-dev"]


def test_a_header_that_nobody_asked_for_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "libpng-config").write_text("#!/bin/sh\n")
    (tmp_path / "libpng-config").chmod(0o755)
    asked: list[str] = []
    ensure_formats([resolved(host(compiler_without("jpeglib.h", tmp_path)))], asked.extend)
    assert asked == []
    (tmp_path / "libpng-config").unlink()
    with pytest.raises(HostError, match="libpng-config is missing"):
        ensure_formats([resolved(host(compiler_without("jpeglib.h", tmp_path)))], asked.extend)


@pytest.mark.parametrize(("content", "status"), [(b"..png_create_read_struct..", 0), (b"..", 1)])
def test_a_wheel_without_it_does_not_pass(tmp_path: Path, content: bytes, status: int) -> None:
    dist = tmp_path / "dist/torch"
    dist.mkdir(parents=True)
    with zipfile.ZipFile(dist / "torchvision-0.21.0-cp311.whl", "w") as wheel:
        wheel.writestr("torchvision/image.so", content)
        wheel.writestr("torchvision/_C.so", b"png_create_read_struct")
    looked = next(line for line in step(planned(), "compile").commands if "zipfile" in line)
    done = subprocess.run(
        ["sh", "-c", looked.replace("python -c", f"{sys.executable} -c", 1)],
        env={"WORK": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert ("built without png" in done.stderr) == bool(status)
