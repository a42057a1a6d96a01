"""A wheel that is not sound is refused whole: nothing is written, nothing is left."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import warnings
import zipfile
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.verify.binary import read_bytes

pytestmark = pytest.mark.unit

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"


def build(
    folder: Path,
    files: dict[str, bytes] | None = None,
    *,
    record: str = "",
    twice: str = "",
    link: str = "",
) -> Path:
    content = {
        "demo/__init__.py": b"__version__ = '1.0'\n",
        f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n\nA demo.\n",
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(files or {}),
    }
    rows = []
    for name, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows.append(f"{name},sha256={digest},{len(data)}")
    text = "\n".join([*rows, f"{INFO}/RECORD,,"])
    content[f"{INFO}/RECORD"] = (record or text).encode()
    path = folder / NAME
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in content.items():
            archive.writestr(name, data)
        if twice:
            archive.writestr(twice, b"again")
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
    return path


def refused(run: Run, path: Path) -> str:
    before = path.read_bytes()
    code, out, err = run("finish", str(path), "--output", "out")
    assert (code, out) == (9, "")
    assert "Traceback" not in err
    assert path.read_bytes() == before
    assert not Path("out").exists()
    return err


@pytest.mark.parametrize(
    "name",
    [
        "../outside.py",
        "/etc/outside.py",
        "demo/../../outside.py",
        "demo\\outside.py",
        "demo/./inside.py",
        "demo//inside.py",
        "demo/__INIT__.py",
        "DEMO-1.0.dist-info/x",
        "demo/__init__.py/inside.py",
        "other-2.0.dist-info/METADATA",
    ],
)
def test_a_name_that_means_another_place(run: Run, tmp_path: Path, name: str) -> None:
    files = {name: b"x"}
    if name == "DEMO-1.0.dist-info/x":
        files = {f"{INFO.upper()}/METADATA": b"x"}
    assert "not a sound wheel" in refused(run, build(tmp_path, files))


def test_one_file_twice(run: Run, tmp_path: Path) -> None:
    assert "file names" in refused(run, build(tmp_path, twice="demo/__init__.py"))


def test_a_link(run: Run, tmp_path: Path) -> None:
    assert "file names" in refused(run, build(tmp_path, link="demo/link"))


def test_a_record_that_does_not_fit(run: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(build(tmp_path)) as archive:
        text = archive.read(f"{INFO}/RECORD").decode()
    lines = text.splitlines()
    for wrong in (
        text.replace("sha256=", "sha256=A", 1),
        text.replace(",20", ",21", 1),
        "\n".join(lines[1:]),
        f"{text}\ndemo/gone.py,sha256=x,1",
        text.replace("sha256=", "md5=", 1),
    ):
        assert wrong != text
        assert "record" in refused(run, build(tmp_path, record=wrong))


def test_an_archive_that_is_cut_short_at_any_place(run: Run, tmp_path: Path) -> None:
    whole = build(tmp_path).read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        (tmp_path / NAME).write_bytes(whole[:size])
        refused(run, tmp_path / NAME)


@pytest.mark.parametrize(("place", "value"), [(8, 0x01), (10, 14), (10, 99), (9, 0x08)], ids=str)
def test_a_list_of_members_that_lies(run: Run, tmp_path: Path, place: int, value: int) -> None:
    """One that calls a member encrypted, packed in another way, or named in other letters."""
    path = build(tmp_path, {"demo/more.py": b"x" * 99})
    whole = bytearray(path.read_bytes())
    start = whole.index(b"PK\1\2")
    whole[start + place] = value
    if place == 9:
        whole[start + 46] = 0xFF
    path.write_bytes(whole)
    assert "archive" in refused(run, path)


def test_a_library_that_is_broken(run: Run, tmp_path: Path) -> None:
    for data in (b"\x7fELF", b"\x7fELF\2\1\1" + b"\xff" * 200):
        error = refused(run, build(tmp_path, {"demo/a.so": data}))
        assert "demo/a.so" in error


def test_what_is_no_wheel(run: Run, tmp_path: Path) -> None:
    code, _, err = run("finish", "gone.whl")
    assert code == 2
    assert "gone.whl does not exist" in err
    (tmp_path / "demo.whl").write_bytes(build(tmp_path).read_bytes())
    assert "file name" in refused(run, tmp_path / "demo.whl")


def test_a_library_of_any_bytes_is_read_or_called_broken() -> None:
    chance = random.Random(1)
    whole = Path("/proc/self/exe").read_bytes()[:20000]
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 40)):
            data[chance.randrange(4, 2000)] = chance.randrange(256)
        library = read_bytes("a.so", bytes(data))
        assert library is not None


def test_a_wheel_without_libraries_gets_its_label(run: Run, tmp_path: Path) -> None:
    path = build(tmp_path)
    code, out, err = run("finish", str(path), "--label", "lab.2", "--json")
    assert (code, err.strip().splitlines()[0]) == (0, f"reading {NAME}")
    (told,) = json.loads(out)["wheels"]
    made = tmp_path / "finished" / "demo-1.0+lab.2-py3-none-any.whl"
    assert Path(told["result"]) == made
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        assert archive.read("demo/__init__.py") == b"__version__ = '1.0+lab.2'\n"
        info = archive.read("demo-1.0+lab.2.dist-info/METADATA")
    assert info == b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0+lab.2\n\nA demo.\n"
    assert not any(name.startswith(INFO) for name in names)
    code, _, err = run("finish", str(made), "--dry-run")
    assert code == 0, err


def test_nothing_is_written_over_itself_or_by_a_rehearsal(run: Run, tmp_path: Path) -> None:
    path = build(tmp_path)
    code, _, err = run("finish", str(path), "--output", str(tmp_path))
    assert code == 2
    assert "over itself" in err
    code, out, _ = run("finish", str(path), "--label", "x", "--dry-run")
    assert code == 0
    assert "would make" in out
    assert not (tmp_path / "finished").exists()


def test_a_place_that_cannot_be_written_is_told(run: Run, tmp_path: Path) -> None:
    path = build(tmp_path)
    (tmp_path / "file").write_text("")
    code, _, err = run("finish", str(path), "--label", "x", "--output", "file")
    assert code == 5
    assert "cannot be written" in err
