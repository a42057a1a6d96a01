"""What travels to a machine without a network is cut, and is whole again where it arrives."""

from __future__ import annotations

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from importlib.metadata import distribution
from pathlib import Path

import pytest
from benchmarks import gpu_ship, gpu_torch
from benchmarks.gpu_extension import SETTINGS

pytestmark = pytest.mark.unit


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three megabytes in pieces of one."""
    monkeypatch.setattr(gpu_torch, "PIECE_MIB", 1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for name, content in {SETTINGS: b"{}", "inside/data": bytes(range(256)) * 10_000}.items():
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        (whole / name).write_bytes(content)
    cut.mkdir()
    gpu_torch.cut(whole, cut)
    return sorted(cut.iterdir())


def test_pieces_in_any_order_make_the_whole(pieces: list[Path], tmp_path: Path) -> None:
    assert len(pieces) == 3
    place = tmp_path / "place"
    assert [gpu_torch.keep(piece, place) for piece in reversed(pieces)] == [False, False, True]
    assert (place / "inside/data").read_bytes() == bytes(range(256)) * 10_000
    assert sorted(path.name for path in place.iterdir()) == ["inside", SETTINGS]


def test_a_piece_that_changed_on_its_way_is_refused(pieces: list[Path], tmp_path: Path) -> None:
    (pieces[1] / "piece").write_bytes(b"other")
    place = tmp_path / "place"
    for piece in pieces[:-1]:
        gpu_torch.keep(piece, place)
    with pytest.raises(SystemExit, match="do not make what was cut"):
        gpu_torch.keep(pieces[-1], place)
    assert not (place / SETTINGS).exists()


def test_a_recipe_for_it_asks_for_a_whole_torch_with_nccl(tmp_path: Path) -> None:
    settings = {"torch": "2.6.0", "python": "3.12", "gpu": "9.0", "cuda": "13.0", "suite": "trixie"}
    settings |= {"vision": "0.21.0"}
    recipe = gpu_torch.write_project(tmp_path, settings).read_text("utf-8")
    assert 'nccl = "system"' in recipe
    assert 'toolkit = "system"' in recipe


def test_a_recipe_for_nvidias_wheels_differs_in_nothing_else(tmp_path: Path) -> None:
    settings = {"torch": "2.6.0", "python": "3.12", "gpu": "9.0", "cuda": "13.0", "suite": "trixie"}
    settings |= {"vision": "0.21.0"}
    system = gpu_torch.write_project(tmp_path / "system", settings).read_text("utf-8")
    wheels = gpu_torch.write_project(tmp_path / "wheels", settings, "wheels").read_text("utf-8")
    assert wheels == system + '\n[packages]\nlibraries = "wheels"\n'


def test_an_installed_distribution_becomes_a_wheel_again(tmp_path: Path) -> None:
    wheel = gpu_ship.repack(distribution("packaging"), tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith("/RECORD"))
        lines = archive.read(record).decode().split()
        assert sorted(line.split(",")[0] for line in lines) == sorted(names)
        for name, digest, size in (line.split(",") for line in lines if ",," not in line):
            data = archive.read(name)
            known = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (f"sha256={known}", str(len(data))) == (digest, size)
    assert not any(name.endswith(("INSTALLER", ".pyc")) for name in names)
