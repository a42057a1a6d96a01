"""Which torch a wheel loads with: from the symbols it needs and those each release exports."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.tags import Tag, parse_tag
from tests.unit.conftest import Run
from tools.refresh_symbols import joined, pack, with_cuda

from torchsmith.facts.exports import (
    Build,
    exports,
    exports_in,
    exports_of,
    is_stable,
    is_torchs,
)
from torchsmith.facts.files import DATA, Facts
from torchsmith.facts.ranges import release, version_range
from torchsmith.verify.binary import Library, Symbols, demangled
from torchsmith.verify.fits import Subject, describe, judge, judge_releases, pythons
from torchsmith.verify.wheelfile import Wheel

pytestmark = pytest.mark.unit

OLD = Build("2.8.0", "x86_64", ("libc10.so", "libtorch.so", "libtorch_cpu.so"))
NEW = Build("2.9.0", "x86_64", ("libc10.so", "libtorch.so", "libtorch_cpu.so"))
KEPT = "_ZN3c105Error4whatEv"
GONE = "_ZN2at6Tensor4goneEv"
SHIM = "aoti_torch_empty_strided"
TABLE = exports_of({OLD: [KEPT, GONE, SHIM], NEW: [KEPT, SHIM]})


def subject(
    libraries: dict[str, Symbols],
    *,
    tag: str = "cp311-cp311-manylinux_2_28_x86_64",
    needed: tuple[str, ...] = ("libc10.so",),
    machine: str = "x86_64",
) -> Subject:
    read = tuple(Library(path, machine=machine, needed=needed, dynamic=True) for path in libraries)
    wheel = Wheel(Path("demo.whl"), "demo", "1.0", frozenset(parse_tag(tag)), libraries=read)
    return describe(wheel, libraries)


def needs(*names: str) -> Symbols:
    return Symbols(needed=frozenset(names))


def test_a_table_reads_as_it_was_written() -> None:
    many = {OLD: [f"_ZN2at{n}" for n in range(500)], NEW: [f"_ZN2at{n}" for n in range(9, 900)]}
    again = exports_in(pack(exports_of(many)))
    assert again.builds == (OLD, NEW)
    asked = [f"_ZN2at{n}" for n in range(1000)]
    for build, names in many.items():
        assert set(again.missing(asked, build)) == set(asked) - set(names)


def test_a_release_is_added_to_a_table_and_the_others_stay_as_they_are() -> None:
    cpu, gpu = ("libtorch_cpu.so",), ("libtorch_cpu.so", "libtorch_cuda.so")
    before = {Build("2.9.0", "aarch64", cpu): [KEPT], Build("2.10.0", "aarch64", cpu): [KEPT]}
    read = {("2.9.1", "x86_64"): {"libtorch_cpu.so": [KEPT], "libtorch_cuda.so": [GONE]}}
    read["2.10.0", "x86_64"] = read["2.9.1", "x86_64"]
    known = {("2.9.0", "aarch64"), ("2.10.0", "aarch64")}
    table = exports_in(pack(joined(exports_of(before), exports_of(with_cuda(read, known)))))
    assert [(item.torch, item.platform, item.libraries) for item in table.builds] == [
        ("2.9.0", "aarch64", cpu),
        ("2.9.1", "x86_64", gpu),
        # CUDA's names are the same on both platforms: they are lent.
        ("2.10.0", "aarch64", gpu),
        ("2.10.0", "x86_64", gpu),
    ]
    lacks = [table.missing([KEPT, GONE], build) for build in table.builds]
    assert lacks == [(GONE,), (), (), ()]


@pytest.mark.parametrize(
    "name", [KEPT, SHIM, "_ZTVN5torch8autograd4NodeE", "_ZNK2at6Tensor3dimEv", "torch_call_x"]
)
def test_a_symbol_of_torch_is_known_by_its_name(name: str) -> None:
    assert is_torchs(name)


@pytest.mark.parametrize(
    "name",
    [
        "PyTuple_New",
        "memcpy",
        "_ZNSt6vectorIN2at6TensorESaIS1_EE9push_backEOS1_",
        "_ZN6vision3opsE",
        "_ZN10torchaudio3runEv",
        "_ZN2at6nativeL3fooEvENKUlvE_clEv",
    ],
)
def test_a_symbol_of_others_or_of_a_lambda_is_not_torchs(name: str) -> None:
    assert not is_torchs(name)


def test_metadata_that_lies_about_torch_is_shown_and_not_believed() -> None:
    library = Library("demo/_C.so", machine="x86_64", needed=("libc10.so",), dynamic=True)
    tags = frozenset(parse_tag("cp311-cp311-manylinux_2_28_x86_64"))
    wheel = Wheel(
        Path("demo.whl"), "demo", "1.0", tags, requires=("torch==2.9.0",), libraries=(library,)
    )
    lying = describe(wheel, {"demo/_C.so": needs(KEPT, GONE)})
    assert lying.torch == "==2.9.0"
    assert [judge(lying, TABLE, build).fits for build in (OLD, NEW)] == [True, False]


def test_only_c_functions_are_stable() -> None:
    assert is_stable(SHIM)
    assert not is_stable(KEPT)


def test_the_first_missing_symbol_is_named() -> None:
    found = subject({"demo/_C.so": needs(KEPT, GONE)})
    assert found.kind == "bound"
    assert judge(found, TABLE, OLD).fits
    verdict = judge(found, TABLE, NEW)
    assert not verdict.fits
    assert (verdict.symbol, verdict.missing) == (GONE, 1)
    assert verdict.library == "demo/_C.so"


def test_what_the_wheel_defines_itself_is_not_looked_for_in_torch() -> None:
    own = Symbols(defined=frozenset({GONE}))
    assert judge(subject({"demo/_C.so": needs(GONE), "demo/lib.so": own}), TABLE, NEW).fits


def test_a_symbol_that_no_release_ever_had_is_missing() -> None:
    assert not judge(subject({"demo/_C.so": needs("_ZN2at5neverEv")}), TABLE, OLD).fits


def test_c_functions_alone_are_the_stable_abi() -> None:
    assert subject({"demo/_C.abi3.so": needs(SHIM)}).kind == "stable"


def test_of_libraries_for_different_torches_one_has_to_load() -> None:
    found = subject(
        {"demo/torch-2.8/lib/x.so": needs(GONE), "demo/torch-2.9/lib/x.so": needs(KEPT)}
    )
    assert judge(found, TABLE, NEW).fits
    both = subject({"demo/a/x.so": needs(GONE), "demo/b/x.so": needs(KEPT)})
    assert not judge(both, TABLE, NEW).fits


def test_a_library_for_cuda_beside_one_for_the_cpu_need_not_load() -> None:
    found = subject({"demo/x-cpu.so": needs(KEPT), "demo/x-cuda.so": needs(KEPT, GONE)})
    cpu, cuda = found.parts
    with_cuda = replace(cuda, libraries=frozenset({"libtorch_cuda.so"}))
    assert judge(replace(found, parts=(cpu, with_cuda)), TABLE, NEW).fits
    assert not replace(found, parts=(cpu, with_cuda)).needs_cuda
    assert replace(found, parts=(with_cuda,)).needs_cuda


def test_a_library_that_torch_does_not_have_is_named() -> None:
    verdict = judge(subject({"demo/_C.so": needs(KEPT)}, needed=("libc10_hip.so",)), TABLE, NEW)
    assert verdict.reason == "has no libc10_hip.so"


def test_libraries_without_torch_fit_any() -> None:
    found = subject({"demo/_C.so": needs("PyTuple_New")}, needed=("libm.so.6",))
    assert found.kind == "independent"
    assert all(item.fits for item in judge_releases(found, Facts(), version_range(":")))


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", "3.11"),
        ("cp313-cp313t-manylinux_2_28_x86_64", "3.13t"),
        ("cp310-abi3-manylinux_2_28_x86_64", "3.10 or newer (abi3)"),
        ("py3-none-any", "any 3"),
    ],
)
def test_the_pythons_of_a_wheel_are_said_in_words(tag: str, words: str) -> None:
    assert pythons(Wheel(Path("x.whl"), tags=frozenset[Tag](parse_tag(tag)))) == words


def test_a_release_without_wheels_for_its_python_does_not_fit() -> None:
    found = subject({"demo/_C.so": needs(SHIM)}, tag="cp39-cp39-manylinux_2_28_x86_64")
    verdict = judge_releases(found, Facts(), version_range("2.15"))[-1]
    assert not verdict.fits
    assert verdict.reason.startswith("published for Python 3.11")
    abi3 = subject({"demo/_C.so": needs(SHIM)}, tag="cp39-abi3-manylinux_2_28_x86_64")
    assert judge_releases(abi3, Facts(), version_range("2.15"))[-1].fits


def test_a_release_without_wheels_for_its_cuda_does_not_fit() -> None:
    found = subject({"demo/_C.so": needs(SHIM)}, needed=("libc10_cuda.so", "libcudart.so.11.0"))
    assert found.cuda == "11"
    verdict = judge_releases(found, Facts(), version_range("2.15"))[-1]
    assert verdict.reason.startswith("published for CUDA 1")


def test_the_shipped_table_has_ten_minor_releases_of_both_platforms_in_little_space() -> None:
    newest = max(release(build.torch) for build in exports().builds)
    last = {f"{newest[0]}.{newest[1] - back}" for back in range(10)}
    for platform in ("x86_64", "aarch64"):
        minors = {
            build.torch.rpartition(".")[0]
            for build in exports().builds
            if build.platform == platform
        }
        assert last <= minors
    assert (DATA / "exports.bin").stat().st_size < 1_500_000


# The published wheels of x86_64 turned to the C++11 ABI with 2.7, those of aarch64 with 2.6.
@pytest.mark.parametrize(("platform", "last"), [("x86_64", "2.6.0"), ("aarch64", "2.5.1")])
def test_the_shipped_table_knows_when_strings_changed(platform: str, last: str) -> None:
    found = subject(
        {"demo/_C.so": needs("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs")}, machine=platform
    )
    verdicts = judge_releases(found, Facts(), version_range("2.4:2.8"))
    assert [item.torch for item in verdicts if item.fits][-1] == last


def test_a_release_that_was_not_read_for_a_platform_is_not_said_to_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Build("2.9.0", "aarch64", NEW.libraries)
    table = exports_of({OLD: [KEPT], other: [KEPT]})
    monkeypatch.setattr("torchsmith.verify.fits.exports", lambda: table)
    verdicts = judge_releases(subject({"demo/_C.so": needs(KEPT)}), Facts(), version_range(":"))
    assert [(item.torch, item.fits) for item in verdicts] == [("2.8.0", True), ("2.9.0", False)]
    assert verdicts[1].reason == "not in the table for x86_64"


def test_a_c_name_has_no_other_form() -> None:
    assert demangled(SHIM) == ""
    assert demangled(KEPT) in ("c10::Error::what()", "")


def wheel_file(folder: Path, name: str) -> Path:
    path = folder / name
    stem = "-".join(name.split("-")[:2])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo/__init__.py", "")
        for file in ("METADATA", "WHEEL", "RECORD"):
            archive.writestr(f"{stem}.dist-info/{file}", "")
    return path


def test_a_pure_wheel_fits_any_torch(run: Run, tmp_path: Path) -> None:
    path = wheel_file(tmp_path, "demo-1.0-py3-none-any.whl")
    code, out, _ = run("fits", str(path))
    assert code == 0
    assert "ok fits any torch" in out
    code, out, _ = run("fits", str(path), "--json")
    told = json.loads(out)
    assert (told["version"], told["abi"]) == (1, "pure")
    assert told["fits"][-1] == exports().builds[-1].torch


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("demo-1.0-cp311-cp311-win_amd64.whl", 2, "is for win_amd64"),
        ("torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl", 2, "is torch itself"),
    ],
)
def test_other_wheels_are_refused(
    run: Run, tmp_path: Path, name: str, code: int, message: str
) -> None:
    given = run("fits", str(wheel_file(tmp_path, name)))
    assert given[0] == code
    assert message in given[2]


def test_what_is_no_wheel_is_refused(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "demo-1.0-py3-none-any.whl"
    bad.write_bytes(b"not a zip")
    code, _, err = run("fits", str(bad))
    assert (code, "is not a whole wheel" in err) == (9, True)
    assert run("fits", str(tmp_path / "none.whl"))[0] == 2
    (tmp_path / "demo.tar.gz").write_bytes(b"")
    assert "is not a wheel" in run("fits", str(tmp_path / "demo.tar.gz"))[2]


def test_a_range_that_cannot_be_is_refused(run: Run, tmp_path: Path) -> None:
    path = str(wheel_file(tmp_path, "demo-1.0-py3-none-any.whl"))
    assert run("fits", path, "--torch", ">=2")[0] == 2
    code, _, err = run("fits", path, "--torch", "0.4")
    assert code == 2
    assert "no release in the table is torch 0.4" in err
    assert run("fits", path, "--torch", "2.8", "--env", "x")[0] == 2
