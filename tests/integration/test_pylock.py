"""A lock that pip and uv install from: what was built lies beside it, and all go together."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.pylock import Pylock

from torchsmith.errors import HostError
from torchsmith.package.pylock import write_lock
from torchsmith.plan.packages import Together

pytestmark = pytest.mark.integration


def wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"number = {version!r}\n")
        archive.writestr(f"{about}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A work folder with an environment, and nothing but itself to install from."""
    folder = tmp_path / "dist"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    monkeypatch.chdir(tmp_path)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def lock(*names: str, words: tuple[str, ...] = ("--ignore-installed",)) -> Pylock:
    given = Together(
        "env", "dist/pylock.toml", tuple(f"dist/{name}-*.whl" for name in names), words
    )
    write_lock(given)
    return Pylock.from_dict(tomllib.loads(Path("dist/pylock.toml").read_text("utf-8")))


def test_pip_and_uv_install_from_the_lock_wherever_the_folder_goes(dist: Path) -> None:
    wheel(dist, "base", "1.0")
    wheel(dist, "ops", "2.0+cpu", "base==1.0")
    found = lock("ops", "base")
    assert [(item.name, str(item.version)) for item in found.packages] == [
        ("base", "1.0"),
        ("ops", "2.0+cpu"),
    ]
    there = dist.rename(dist.with_name("elsewhere")) / "pylock.toml"
    for installer in (["pip"], ["uv", "pip"]):
        target = f"by-{installer[0]}"
        done = subprocess.run(
            [sys.executable, "-m", *installer, "install", "--target", target, "-r", str(there)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "2.0" in Path(target, "ops.py").read_text()


def test_a_file_that_was_changed_is_not_installed(dist: Path) -> None:
    wheel(dist, "base", "1.0")
    lock("base")
    wheel(dist, "base", "1.0", "something-else")
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--target", "t", "-r", "dist/pylock.toml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "ash" in done.stderr


def test_a_set_that_collides_is_refused_by_name_and_leaves_no_lock(
    dist: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel(dist, "base", "1.0")
    wheel(dist, "ops", "2.0", "base==2.0")
    with pytest.raises(HostError):
        lock("ops", "base")
    told = capfd.readouterr()
    assert "base==2.0" in told.out + told.err
    assert not (dist / "pylock.toml").exists()


def test_what_is_installed_already_stays_out_unless_it_is_to_be_locked(dist: Path) -> None:
    base = wheel(dist, "base", "1.0")
    wheel(dist, "ops", "2.0", "base")
    subprocess.run(["env/bin/python", "-m", "pip", "install", "--quiet", str(base)], check=True)
    assert [item.name for item in lock("ops", words=()).packages] == ["ops"]
