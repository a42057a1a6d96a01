"""A wheel that says two things, or is not whole, is caught before anything is installed."""

from __future__ import annotations

import base64
import hashlib
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from packaging.tags import Tag

from torchsmith.errors import HostError, UsageError
from torchsmith.host.models import Python
from torchsmith.host.system import read_platform
from torchsmith.verify.binary import Library
from torchsmith.verify.target import Environment, Options, choose_python, fits, sort_targets
from torchsmith.verify.verify import verify
from torchsmith.verify.wheelfile import Wheel, read_wheel, torch_pin

pytestmark = pytest.mark.unit

MACHINE = read_platform().partition("-")[2]


def build(
    folder: Path,
    name: str = "demo-1.0-py3-none-any.whl",
    *,
    metadata: str = "Name: demo\nVersion: 1.0\n",
    tag: str = "py3-none-any",
    files: dict[str, bytes] | None = None,
    spoil: str = "",
    unlisted: str = "",
) -> Path:
    inside = "demo-1.0.dist-info"
    content = {
        "demo/__init__.py": b"",
        **(files or {}),
        f"{inside}/METADATA": f"Metadata-Version: 2.1\n{metadata}".encode(),
        f"{inside}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n".encode(),
    }
    rows = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        if path != unlisted:
            rows.append(f"{path},sha256={'0' * 43 if path == spoil else digest},{len(data)}")
    content[f"{inside}/RECORD"] = "\n".join([*rows, f"{inside}/RECORD,,"]).encode()
    wheel = folder / name
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return wheel


def failed(wheel: Path) -> list[str]:
    return [check.name for check in read_wheel(wheel).checks if check.status == "fail"]


def test_a_sound_wheel_passes(tmp_path: Path) -> None:
    wheel = read_wheel(build(tmp_path))
    assert {check.status for check in wheel.checks} == {"pass"}
    assert wheel.modules == ("demo",)


def test_a_wrong_hash_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, spoil="demo/__init__.py")) == ["record"]


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha512", ""])
def test_a_hash_that_proves_nothing_is_caught(tmp_path: Path, kind: str) -> None:
    wheel = build(tmp_path)
    again = tmp_path / "again" / wheel.name
    again.parent.mkdir()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(again, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("RECORD"):
                content = content.replace(b"sha256=", f"{kind}=".encode() if kind else b"")
            new.writestr(name, content)
    assert failed(again) == ["record"]


def test_a_file_nobody_recorded_is_caught(tmp_path: Path) -> None:
    path = build(tmp_path, files={"demo/more.py": b"1"}, unlisted="demo/more.py")
    assert failed(path) == ["record"]


@pytest.mark.parametrize("name", ["../outside.py", "/etc/passwd", "demo/../../x", "a\\b.py"])
def test_a_name_that_leaves_the_folder_is_caught(tmp_path: Path, name: str) -> None:
    wheel = read_wheel(build(tmp_path, files={name: b"x"}))
    assert [check.name for check in wheel.checks if check.status == "fail"] == ["file names"]
    assert not wheel.installable


def test_a_link_is_caught(tmp_path: Path) -> None:
    path = build(tmp_path)
    info = zipfile.ZipInfo("demo/link")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    assert failed(path) == ["file names"]


def test_another_version_inside_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, metadata="Name: demo\nVersion: 1.1\n")) == ["version"]


def test_another_name_inside_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, metadata="Name: other\nVersion: 1.0\n")) == ["name"]


def test_another_tag_inside_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, tag="py2-none-any")) == ["tag"]


def test_a_truncated_wheel_is_caught(tmp_path: Path) -> None:
    path = build(tmp_path)
    path.write_bytes(path.read_bytes()[:-60])
    wheel = read_wheel(path)
    assert [check.name for check in wheel.checks if check.status == "fail"] == ["archive"]
    assert not wheel.installable


def test_a_damaged_file_inside_is_caught(tmp_path: Path) -> None:
    path = build(tmp_path, files={"demo/data.py": b"A" * 1000})
    path.write_bytes(path.read_bytes().replace(b"A" * 1000, b"B" * 1000))
    assert failed(path) == ["archive"]


def test_a_bomb_is_refused_by_what_it_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchsmith.sources.unfolding._FREE_BYTES", 1 << 16)
    bomb = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(9):
            archive.writestr(f"demo/{number}", bytes(1 << 20))
    tracemalloc.start()
    assert failed(bomb) == ["archive"]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_large_file_is_hashed_without_being_held_in_memory(tmp_path: Path) -> None:
    wheel = build(tmp_path, files={"demo/data": bytes(32 << 20)})
    tracemalloc.start()
    assert failed(wheel) == []
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_name_in_letters_that_look_like_others_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, "tоrch-1.0-py3-none-any.whl")) == ["file name"]


def test_a_file_with_no_wheels_name_is_caught(tmp_path: Path) -> None:
    assert failed(build(tmp_path, name="demo.whl")) == ["file name"]


def test_a_module_of_another_python_is_caught(tmp_path: Path) -> None:
    path = build(
        tmp_path,
        "demo-1.0-cp311-cp311-linux_x86_64.whl",
        tag="cp311-cp311-linux_x86_64",
        files={"demo/_C.cpython-310-x86_64-linux-gnu.so": b"\x7fELF"},
    )
    assert failed(path) == ["extension names"]


@pytest.mark.parametrize(
    ("requires", "torch", "status"),
    [
        ("torch==2.6.0", "2.6.0+cpu", "pass"),
        ("torch (==2.6.0)", "2.6.0", "pass"),
        ("torch==2.5.1", "2.6.0", "fail"),
        ("torch", "2.6.0", "fail"),
        ("torch>=2.0", "2.6.0", "fail"),
        ("numpy", "2.6.0", "fail"),
        ("torch==2.6.0", "", "pass"),
    ],
)
def test_a_companion_asks_for_exactly_its_torch(requires: str, torch: str, status: str) -> None:
    compiled = (Library("torchvision/_C.so", needed=("libc10.so",)),)
    wheel = Wheel(Path("v.whl"), "torchvision", "0.21.0", requires=(requires,), libraries=compiled)
    check = torch_pin(wheel, torch)
    assert check is not None
    assert check.status == status


def test_other_libraries_rarely_pin_and_are_only_warned_about() -> None:
    compiled = (Library("torch_scatter/_s.so", needed=("libc10.so",)),)
    wheel = Wheel(Path("s.whl"), "torch-scatter", "2.1", requires=("torch",), libraries=compiled)
    check = torch_pin(wheel, "2.6.0")
    assert check is not None
    assert check.status == "warn"
    assert torch_pin(Wheel(Path("n.whl"), "numpy", "2.0"), "2.6.0") is None


def test_metadata_that_lies_about_torch_is_told_and_brings_no_other_torch(tmp_path: Path) -> None:
    metadata = "Name: demo\nVersion: 1.0\nRequires-Dist: torch (==2.1.0)\n"
    torch = tmp_path / "torch-2.6.0+cpu-py3-none-any.whl"
    # That wheel does not exist: whoever would install anything fails for it.
    report = verify([build(tmp_path, metadata=metadata)], options=Options(beside=(torch,)))
    assert report.rating == "fail"
    (check,) = (check for check in report.checks if check.status == "fail")
    assert (check.name, check.found, check.wanted) == (
        "demo's torch",
        "torch==2.1.0",
        "torch==2.6.0+cpu",
    )


@pytest.mark.parametrize(
    ("tag", "version", "expected"),
    [
        (("cp311", "cp311"), "3.11.7", True),
        (("cp311", "cp311"), "3.12.1", False),
        (("cp37", "abi3"), "3.12.1", True),
        (("cp313", "abi3"), "3.12.1", False),
        (("py3", "none"), "3.6.15", True),
        (("pp310", "pypy310_pp73"), "3.10.13", False),
        (("cp36", "cp36m"), "3.6.15", True),
    ],
)
def test_a_tag_says_which_pythons_fit(tag: tuple[str, str], version: str, expected: bool) -> None:
    assert fits(Tag(*tag, "linux_x86_64"), version) == expected


def test_without_a_fitting_python_it_is_said_which_are_here() -> None:
    tags = frozenset({Tag("cp35", "cp35m", f"linux_{MACHINE}")})
    here = [Python(version="3.11.7", path="/usr/bin/python3.11", headers=True)]
    with pytest.raises(HostError, match="no Python here") as caught:
        choose_python([Wheel(Path("torch.whl"), "torch", "1.5.0", tags)], "", here)
    assert "cp35" in caught.value.hint
    assert "3.11.7" in caught.value.hint


def test_a_wheel_for_another_machine_is_refused_with_the_way_out() -> None:
    tags = frozenset({Tag("cp311", "cp311", "linux_riscv64")})
    with pytest.raises(HostError, match="not for this machine") as caught:
        choose_python([Wheel(Path("torch.whl"), "torch", "2.6.0", tags)], "", [])
    assert "--no-run" in caught.value.hint


def test_what_cannot_be_verified_together_is_refused(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    with pytest.raises(UsageError, match="go together"):
        sort_targets([wheel, tmp_path])
    with pytest.raises(UsageError, match="does not exist"):
        sort_targets([tmp_path / "none.whl"])


@pytest.mark.parametrize(
    ("platform", "glibc"),
    [
        ("manylinux_2_28_x86_64", "2.28"),
        ("manylinux2014_aarch64", "2.17"),
        ("linux_x86_64", ""),
    ],
)
def test_a_manylinux_tag_promises_a_glibc(platform: str, glibc: str) -> None:
    assert Wheel(Path("x"), tags=frozenset({Tag("cp311", "cp311", platform)})).glibc == glibc


@pytest.mark.parametrize(("flags", "short"), [("", "3.13"), ("t", "3.13t"), ("td", "3.13t")])
def test_a_free_threaded_python_has_folders_of_its_own_name(flags: str, short: str) -> None:
    assert Environment(Path("python"), "3.13.5", Path("/usr"), (), flags).short == short
