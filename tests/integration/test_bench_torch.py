"""The published torch is compared with itself, with other settings, and with broken copies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH

from torchsmith.bench.parity import Parity, read_parity
from torchsmith.bench.result import Result, read_result

pytestmark = pytest.mark.integration

QUICK = ("--threads", "1", "--repeat", "6")


def torchsmith(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsmith", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def compared(folder: Path, *arguments: str | Path) -> Result:
    place = folder / "result.json"
    done = torchsmith("bench", *arguments, "--output", place, "--html", folder / "page.html")
    assert done.returncode == 0, done.stderr
    return read_result(place)


def agreed(folder: Path, code: int, *arguments: str | Path) -> Parity:
    place = folder / "parity.json"
    done = torchsmith("parity", *arguments, "--output", place)
    assert done.returncode == code, done.stdout + done.stderr
    return read_parity(place)


@pytest.fixture(scope="module")
def shim(published_torch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real torch behind one that crashes, lacks, lies and is fickle."""
    folder = tmp_path_factory.mktemp("shim") / "env"
    subprocess.run(
        [published_torch / "bin/python", "-m", "venv", "--without-pip", folder], check=True
    )
    (site,) = folder.glob("lib/python*/site-packages")
    (real,) = published_torch.glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"{real}\n")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text(
        "import ctypes, importlib, os, sys, time\n"
        "here = os.path.dirname(os.path.dirname(__file__))\n"
        "sys.path.remove(here)\n"
        "del sys.modules['torch']\n"
        "torch = importlib.import_module('torch')\n"
        "sys.path.insert(0, here)\n"
        "torch.fft.rfft2 = lambda *rest: ctypes.string_at(0)\n"
        "del torch.topk\n"
        "erf, tanh = torch.erf, torch.tanh\n"
        "torch.erf = lambda x: erf(x) * 1.001\n"
        "torch.tanh = lambda x: tanh(x) + time.time() * 1e-12\n"
    )
    return folder


def test_two_settings_of_one_torch_are_compared(published_torch: Path, tmp_path: Path) -> None:
    result = compared(
        tmp_path,
        f"one={published_torch}",
        f"plain={published_torch}/bin/python,set:mkldnn=0,env:TORCHSMITH=1",
        *("--group", "fft", "--group", "overhead", "--threads", "1", "--repeat", "8"),
    )
    found = {item.case: item for item in result.compared}
    assert result.stopped == ""
    assert found["rfft2 256 f32"].rounds == 8
    assert all(item.low <= item.speedup <= item.high for item in result.compared)
    assert [side.facts.torch.partition("+")[0] for side in result.sides] == [PUBLISHED_TORCH] * 2
    assert result.sides[1].environ == {"TORCHSMITH": "1"}
    assert result.noise[0].cases == len(result.compared)
    assert [side.facts.threads for side in result.sides] == [1, 1]
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_the_published_torch_is_fetched_once_and_compared(
    published_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = (f"ours={published_torch}", "pip", "--group", "fft", "--no-control", *QUICK)
    first, second = (compared(tmp_path, *words).sides for _ in range(2))
    assert [side.name for side in first] == [side.name for side in second] == ["ours", "pip"]
    assert {side.facts.torch.partition("+")[0] for side in first} == {PUBLISHED_TORCH}
    (env,) = tmp_path.glob("cache/torchsmith/bench/pip-*/env")
    assert not list(tmp_path.glob("cache/torchsmith/bench/*.wheels"))
    assert env.parent.name.startswith(f"pip-{PUBLISHED_TORCH}-3.")
    done = torchsmith("bench", f"ours={published_torch}", "pip:0.0.1")
    assert (done.returncode, "pip brings no torch 0.0.1 for Python 3" in done.stderr) == (4, True)


def test_a_crash_and_a_lack_are_each_one_cases_result(
    published_torch: Path, shim: Path, tmp_path: Path
) -> None:
    result = compared(
        tmp_path,
        f"whole={published_torch}",
        f"shim={shim}",
        *("--group", "fft", "--group", "sort", "--no-control", *QUICK),
    )
    cases = {case.name: case for case in result.cases}
    assert "SIGSEGV" in cases["rfft2 256 f32"].failed["shim"]
    assert "topk" in cases["topk of rows f32"].missing["shim"]
    assert len(cases["fft 16x4096 f32"].times["shim"]) == 6
    assert {item.case for item in result.compared} == {"fft 16x4096 f32", "sort 100 000 f32"}


def test_an_interrupt_keeps_what_was_measured(published_torch: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torchsmith", "bench", f"a={published_torch}"),
            *(f"b={published_torch}", "--no-control", "--json", *QUICK),
            *("--group", "overhead", "--group", "indexing", "--group", "reduction"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert " of " in process.stderr.readline()
    # As a terminal does: everybody in the foreground is told.
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["stopped"] == "interrupted"
    assert told["compared"]


def test_the_same_torch_gives_the_same_bits(published_torch: Path, tmp_path: Path) -> None:
    names = ("exp", "mm", "conv2d", "softmax", "fft.rfft", "LSTM", "Adam steps", "integer gcd")
    chosen = [word for name in names for word in ("--operator", name)]
    found = agreed(tmp_path, 0, f"a={published_torch}", f"b={published_torch}", *chosen)
    assert {item.status for item in found.compared} == {"identical"}
    assert {item.dtype for item in found.compared} >= {"float32", "bfloat16", "int64"}


def test_a_wrong_result_is_found_and_a_fickle_one_left_out(
    published_torch: Path, shim: Path, tmp_path: Path
) -> None:
    chosen = [word for name in ("erf", "tanh", "topk", "sin") for word in ("--operator", name)]
    found = agreed(
        tmp_path, 9, f"shim={shim}", f"b={published_torch}", *chosen, "--dtype", "float64"
    )
    results = {item.operator: item for item in found.compared}
    assert results["erf"].status == "beyond"
    assert results["erf"].relative == pytest.approx(0.001, rel=0.01)
    assert results["tanh"].status == "unstable"
    assert results["topk"].status == "missing"
    assert results["sin"].status == "identical"


def test_what_has_no_torch_or_a_broken_one_is_named(published_torch: Path, tmp_path: Path) -> None:
    bare, broken = tmp_path / "bare", tmp_path / "broken"
    for folder in (bare, broken):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = broken.glob("lib/python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("raise ImportError('libmagic.so: cannot open')\n")
    done = torchsmith("bench", f"a={bare}", f"b={published_torch}")
    assert (done.returncode, "a: there is no torch in it" in done.stderr) == (2, True)
    done = torchsmith("bench", f"a={published_torch}", f"b={broken}")
    assert (done.returncode, "b: its torch cannot be imported: libmagic" in done.stderr) == (
        4,
        True,
    )
    done = torchsmith("bench", f"a={published_torch}", "b=image:localhost/no/such:image")
    assert done.returncode in (2, 4)
    assert "no/such" in done.stderr


@pytest.mark.parametrize("tag", ["cp27-cp27mu-manylinux1_x86_64", "cp311-cp311-win_amd64"])
def test_a_wheel_for_something_else_is_refused(tag: str, tmp_path: Path) -> None:
    wheel = tmp_path / f"torch-1.0-{tag}.whl"
    info = "torch-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    done = torchsmith("bench", wheel, f"b={sys.prefix}")
    assert done.returncode == 4
    assert wheel.name in done.stderr
