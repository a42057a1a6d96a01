"""nvcc's steps: which are understood, what is kept of them, and what comes of a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchsmith.cli.show_build import display
from torchsmith.engine.events import CompilerCacheUsed
from torchsmith.toolchain import nvcc_parts
from torchsmith.toolchain.cache import keep_newest
from torchsmith.toolchain.nvcc_parts import (
    Part,
    Shelf,
    Spelling,
    from_within,
    one_by_one,
    output_of,
    pack,
    read_dry_run,
    unpack,
)

pytestmark = pytest.mark.unit

SPELLING = Spelling(b"800_900")
# As nvcc 13.0 says it, shortened.
DRY_RUN = """\
nvcc warning : old architectures are going away
#$ _SPACE_=
#$ CICC_PATH=/opt/my cuda/nvvm/bin
#$ PATH=/opt/my cuda/bin:/usr/bin
#$ INCLUDES="-I/opt/cuda/include"
#$ gcc -D__CUDA_ARCH__=800 -E -x c++ -DTEXT="a b" "a.cu" -o "t/a.cpp1.ii"
#$ -- Filter Dependencies -- > the list.d
#$ "$CICC_PATH/cicc" -arch compute_80 "t/a.cpp1.ii" -o "t/a.ptx"
#$ ptxas -arch=sm_80 "t/a.ptx" -o "t/a.cubin"
#$ fatbinary "--image3=kind=elf,sm=80,file=t/a.cubin" --embedded-fatbin="t/a.fatbin.c"
"""


def test_steps_variables_dependencies_and_warnings_are_read_out_of_a_dry_run() -> None:
    run = read_dry_run(DRY_RUN)
    assert [step[0] for step in run.steps] == [
        "gcc",
        "/opt/my cuda/nvvm/bin/cicc",
        "ptxas",
        "fatbinary",
    ]
    assert "-DTEXT=a b" in run.steps[0]
    assert run.variables == {
        "CICC_PATH": "/opt/my cuda/nvvm/bin",
        "PATH": "/opt/my cuda/bin:/usr/bin",
    }
    assert run.dependencies == "the list.d"
    assert run.warnings == "nvcc warning : old architectures are going away\n"


@pytest.mark.parametrize(
    "line",
    [
        "-- Something New -- > file",
        '"$OTHER_PATH/cicc" a',
        'gcc -DTEXT="$HOME"',
        "gcc `flags`",
        'ptxas "a.ptx" -o "a.cubin" > out 2>err',
        'ptxas "a.ptx',
    ],
)
def test_what_is_not_understood_is_left_to_nvcc(line: str) -> None:
    with pytest.raises(nvcc_parts._NotUnderstoodError):
        read_dry_run(f"{DRY_RUN}#$ {line}\n")


def test_a_dry_run_that_makes_no_gpu_code_is_left_to_nvcc() -> None:
    with pytest.raises(nvcc_parts._NotUnderstoodError):
        read_dry_run("#$ gcc -c a.cpp\n")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("-c a.cu -o a.o", "a.o"),
        ("-c a.cu --output-file=a.o", "a.o"),
        ("-Xptxas -v -c a.cu -o a.o", "a.o"),
        ("-Xcompiler -E,-M -c a.cu -o a.o", "a.o"),
        ("-c a.cu", ""),
        ("-dc a.cu -o a.o", ""),
        ("-c -rdc=true a.cu -o a.o", ""),
        ("-c --relocatable-device-code=true a.cu -o a.o", ""),
        ("-c -v a.cu -o a.o", ""),
        ("-c --keep a.cu -o a.o", ""),
        ("-c -MMD a.cu -o a.o", ""),
        ("-shared a.o -o a.so", ""),
        ("--version", ""),
    ],
)
def test_only_ordinary_compiles_are_done_by_parts(words: str, output: str) -> None:
    assert output_of(["nvcc", *words.split()]) == output


def test_steps_are_asked_for_one_by_one() -> None:
    given = ["nvcc", "-t", "4", "--threads=2", "--threads", "8", "-t0", "-c", "a.cu", "-tt"]
    assert one_by_one(given) == ["nvcc", "-c", "a.cu", "-tt"]


def test_a_source_below_the_work_folder_is_named_as_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "build").mkdir()
    monkeypatch.chdir(tmp_path / "build")
    step = ["cicc", "--orig_src_path_name", f"{tmp_path}/a.cu", f"{tmp_path}/b"]
    assert from_within(step, str(tmp_path)) == [*step[:2], "../a.cu", step[3]]
    assert from_within(step, "") == step
    assert from_within(step, f"{tmp_path}/build") == step


def step_in(folder: Path, architecture: str, *more: str) -> Part:
    """A step of cicc, its temporary files named as nvcc would for some set of architectures."""
    (folder / f"{architecture}.ii").write_text("__global__ void f() {}")
    files = [f"{folder}/{architecture}.ii", "-o", f"{folder}/{architecture}.ptx"]
    stub = ["--stub_file_name", f"{folder}/{architecture}.stub.c"]
    return Part(["cicc", "-arch", "compute_80", *stub, *files, *more], str(folder), SPELLING)


def test_temporary_names_do_not_matter_and_everything_else_does(tmp_path: Path) -> None:
    one, other = tmp_path / "a.o.parts", tmp_path / "b.o.parts"
    one.mkdir()
    other.mkdir()
    key = step_in(one, "a").key(["tool"])
    assert step_in(other, "a.compute_80").key(["tool"]) == key
    assert step_in(one, "a", "-O3").key(["tool"]) != key
    assert step_in(one, "a").key(["another tool"]) != key
    changed = step_in(one, "a")
    (one / "a.ii").write_text("__global__ void g() {}")
    assert changed.key(["tool"]) != key


def test_a_step_with_files_that_are_not_known_to_be_read_or_written_is_not_kept(
    tmp_path: Path,
) -> None:
    for more in (["--new-result", f"{tmp_path}/a.new"], [f"--new-result={tmp_path}/a.new"]):
        with pytest.raises(OSError, match=r"a\.new"):
            step_in(tmp_path, "a", *more).key(["tool"])


def test_a_result_is_given_the_names_of_the_compile_it_is_for() -> None:
    names, others = ["t/a.stub.c", "t/a.stub"], ["u/b.compute_80.stub.c", "u/b"]
    files = [b'# 1 "t/a.stub.c"\n', b"\x7fELF\0"]
    kept = pack(files, (b"", b"t/a.stub: warning"), names, SPELLING)
    assert kept is not None
    assert unpack(kept, others, SPELLING) == [
        b'# 1 "u/b.compute_80.stub.c"\n',
        b"\x7fELF\0",
        b"",
        b"u/b: warning",
    ]


def test_a_binary_with_a_temporary_name_in_it_is_not_kept() -> None:
    assert pack([b"\x7fELF\0t/a.ptx"], (b"", b""), ["t/a.ptx"], SPELLING) is None
    assert pack([b"@torchsmith 0@"], (b"", b""), ["t/a.ptx"], SPELLING) is None


# A namespace of thrust as CUDA 13 has it, and of CUB as CUDA 12 has it.
SPELLED = """\
namespace thrust { inline namespace THRUST_300001_SM_%s_NS {
_ZN6thrust%dTHRUST_300001_SM_%s_NS5tupleIiE _ZN3cub%dCUB_200302_%s_NS11DeviceSortE
"""


def spelled(architectures: str) -> bytes:
    lengths = (len(f"THRUST_300001_SM_{architectures}_NS"), len(f"CUB_200302_{architectures}_NS"))
    values = (architectures, lengths[0], architectures, lengths[1], architectures)
    return (SPELLED % values).encode()


def test_names_with_the_list_of_architectures_are_spelled_for_another_list() -> None:
    one = Spelling(b"800").taken_out(spelled("800"))
    assert one is not None
    assert one == SPELLING.taken_out(spelled("800_900"))
    assert SPELLING.put_in(one) == spelled("800_900")
    kept = pack([spelled("800")], (b"", b""), [], Spelling(b"800"))
    assert kept is not None
    assert unpack(kept, [], SPELLING) == [spelled("800_900"), b"", b""]


@pytest.mark.parametrize(
    "text",
    [
        b"_Z99THRUST_300001_SM_800_900_NSv",
        b".b8 text[8] = {84, 72, 82, 85, 83, 84, 95, 0};",
        b".b8 text[5] = {67,85,66,95,0};",
        b"\x7fELF\0THRUST_300001_SM_800_900_NS",
    ],
)
def test_a_result_whose_names_cannot_be_spelled_otherwise_is_not_kept(text: bytes) -> None:
    assert pack([text], (b"", b""), [], SPELLING) is None


@pytest.mark.parametrize(
    "text", [b"MY_THRUST_300001_SM_800_900_NS", b"THRUST_300001_SM_800_NS", b"CUB_1_800_900", b""]
)
def test_other_names_stay_as_they_are(text: bytes) -> None:
    assert SPELLING.taken_out(text) == text


def test_a_program_that_was_changed_in_place_is_another_one(tmp_path: Path) -> None:
    shelf, program = Shelf(tmp_path / "kept"), tmp_path / "ptxas"
    program.write_text("one")
    before = shelf.digest(str(program))
    assert shelf.digest(str(program)) == before
    program.write_text("two")
    os.utime(program, ns=(1, 1))
    assert shelf.digest(str(program)) != before


def test_what_was_used_last_stays_when_there_is_too_much(tmp_path: Path) -> None:
    for number in range(4):
        file = tmp_path / f"{number}" / "part"
        file.parent.mkdir()
        file.write_bytes(b"x" * 100)
        os.utime(file, (number, number))
    Shelf(tmp_path).get("0part")
    os.utime(tmp_path / "0/part", (9, 9))
    keep_newest(tmp_path, 250)
    assert sorted(file.parent.name for file in tmp_path.glob("*/part")) == ["0", "3"]
    keep_newest(tmp_path / "nothing there", 0)


def pretended(folder: Path, cicc: str) -> list[str]:
    """A compiler that says it would run a cicc of ours."""
    says = "#$ PATH=%s\\n#$ NVVMIR_LIBRARY_DIR=%s\\n#$ cicc\\n#$ fatbinary\\n"
    (folder / "libdevice.bc").touch()
    tools = {
        "nvcc": f'printf "{says}" "$PATH" "{folder}" >&2',
        "cicc": cicc,
        "fatbinary": ":",
    }
    for name, does in tools.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    program = [sys.executable, "-I", "-S", nvcc_parts.__file__]
    return [*program, str(folder / "nvcc"), "-c", "a.cu", "-o", "a.o"]


def variables(folder: Path) -> dict[str, str]:
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, nvcc_parts.PARTS: str(folder / "kept")}


def test_a_step_the_kernel_killed_ends_the_compile_as_with_nvcc(tmp_path: Path) -> None:
    command = pretended(tmp_path, "kill -9 $$")
    done = subprocess.run(command, cwd=tmp_path, env=variables(tmp_path), check=False)
    assert done.returncode == 137
    assert not (tmp_path / "a.o.parts").exists()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_step_and_nothing_is_left(
    tmp_path: Path, kind: signal.Signals
) -> None:
    command = pretended(tmp_path, 'echo $$ > "$0.pid"; exec sleep 60')
    # Not ignored, also where the tests run under nohup.
    heeding = ["env", f"--default-signal={kind.name[3:]}", *command]
    with subprocess.Popen(heeding, cwd=tmp_path, env=variables(tmp_path)) as compile_:
        until, pid = time.monotonic() + 60, tmp_path / "cicc.pid"
        while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        assert (tmp_path / "a.o.parts").is_dir()
        compile_.send_signal(kind)
        assert compile_.wait(60) == -kind
    assert not (tmp_path / "a.o.parts").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_build_says_how_many_steps_of_nvcc_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    with display(json=False, quiet=False) as shown:
        shown.event(CompilerCacheUsed(hits=1, misses=2))
        assert "nvcc" not in capsys.readouterr().err
        shown.event(CompilerCacheUsed(hits=1, misses=2, cuda_parts_found=3, cuda_parts_compiled=2))
    said = capsys.readouterr().err
    assert "1 of 3 compiles were in the compiler cache" in said
    assert "3 of 5 steps of nvcc in the others were there, too" in said
