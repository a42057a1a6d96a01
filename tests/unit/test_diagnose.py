"""A failure is known again by its log; the first cause is named, and nothing that is not there."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

import pytest
from benchmarks.diagnosis import overlaps

from torchsmith.diagnose.diagnose import Diagnosis, diagnose, explained
from torchsmith.diagnose.knowledge import required_literal, shipped, texts_of
from torchsmith.diagnose.models import Failure
from torchsmith.diagnose.scan import scan_file
from torchsmith.host.models import Host, InstalledGpu, InstalledTorch
from torchsmith.recipe.load import parse_recipe

pytestmark = pytest.mark.unit

FAILURES = list(shipped().failures.values())
HELD_OUT = Path(__file__).parents[1] / "data" / "held_out_logs.toml"
KILLED = "c++: fatal error: Killed signal terminated program cc1plus"
ERROR_804 = (
    "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: "
    "forward compatibility was attempted on non supported HW"
)
# Lines of a build that succeeded.
NEUTRAL = """\
-- The CXX compiler identification is GNU 12.2.0
-- Performing Test C_HAS_AVX_1 - Failed
CMake Warning at cmake/Dependencies.cmake:95 (message):
  Not compiling with XPU.  Could NOT find SYCL.Suppress this warning with
CMake Warning at cmake/Dependencies.cmake:1093 (message):
  Not using CUDA/ROCM, so disabling USE_NCCL.  Suppress this warning with
CMake Warning at cmake/Dependencies.cmake:1408 (message):
  Not compiling with MAGMA.  Suppress this warning with -DUSE_MAGMA=OFF.
-- Configuring done (24.5s)
adding 'torch-2.6.0+cpu.dist-info/RECORD'
removing build/bdist.linux-x86_64/wheel
""".splitlines()


def ids(found: Diagnosis) -> list[str]:
    return [named.id for named in found.named]


# --------------------------------------------------------------------- what is known


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.id)
def test_every_entry_comes_first_for_its_own_excerpt(failure: Failure) -> None:
    found = diagnose(failure.excerpt.splitlines())
    assert ids(found)[:1] == [failure.id]
    shown = found.named[0]
    assert "{" not in f"{shown.title}{shown.meaning}{shown.cure}".replace("{'", "")
    assert shown.lines


def test_ids_are_told_once_and_what_is_hidden_exists() -> None:
    written = [item.id for items in shipped().areas.values() for item in items]
    assert len(written) == len(set(written)) >= 220
    for failure in FAILURES:
        assert set(failure.hides) <= set(written) - {failure.id}
        for hidden in failure.hides:
            assert failure.id not in shipped().failures[hidden].hides


def test_every_pattern_is_an_expression_whose_text_can_be_looked_for() -> None:
    for pattern in shipped().patterns:
        assert len(pattern.literal) >= 6, pattern.text
        assert not pattern.expression.search("")


def test_every_gap_in_a_text_is_caught_or_has_words() -> None:
    derived = {"arch", "arch_cuda"}
    for failure in FAILURES:
        always = set.intersection(*(set(re.compile(text).groupindex) for text in failure.any_of))
        always |= {name for text in failure.all_of for name in re.compile(text).groupindex}
        texts = [failure.title, failure.meaning, failure.cure]
        texts += [part for cause in failure.cause for part in (cause.text, cause.cure)]
        for gap in re.findall(r"\{(\w+)\}", " ".join(texts)):
            assert gap in always, f"{failure.id}: {gap}"
        known = {name for text in texts_of(failure) for name in re.compile(text).groupindex}
        for gap in re.findall(r"\{(\w+)\|", " ".join(texts)):
            assert gap in known | derived, f"{failure.id}: {gap}"


def test_every_change_of_a_recipe_is_one_that_a_recipe_takes() -> None:
    for failure in FAILURES:
        fix = failure.fix
        if fix is None or fix.how == "halve":
            continue
        value = re.sub(r"\{\w+\}", "8.6" if fix.key in ("gpus", "cuda") else "12", str(fix.value))
        table, _, key = f"x.{fix.key}".rpartition(".")
        table = table.removeprefix("x").lstrip(".")
        written = f'["{value}"]' if fix.how == "append" else f'"{value}"'
        header = f"[{table}]\n" if table else ""
        value_line = f"{key} = {written}\n"
        cuda = 'cuda = "12.4"\n' if fix.key in ("gpus", "features.magma") else ""
        text = f'torch = "2.6.0"\n{cuda}{"" if table else value_line}'
        text += f"{header}{value_line}" if table else ""
        if fix.key == "cuda":
            text = text.replace('"8.6"', '"12.4"')
        parse_recipe(text, failure.id, None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"nvcc fatal\s+: Unsupported gpu", ": Unsupported gpu"),
        (r"No module named '?torch\._C\b", "No module named "),
        (r"lib(?:cuda|nvidia-ml)\.so[.\d]*: cannot open", ": cannot open"),
        (r"a+bcdef*", "bcde"),
        (r"one|other", ""),
        (r"[^]x]end", "end"),
    ],
)
def test_the_text_every_match_contains_is_found(pattern: str, text: str) -> None:
    assert required_literal(pattern) == text


# ------------------------------------------------------------------- naming failures


def test_a_build_that_succeeds_has_no_failure() -> None:
    assert diagnose(NEUTRAL).named == ()


def test_no_held_out_log_is_named_wrongly() -> None:
    logs = tomllib.loads(HELD_OUT.read_text(encoding="utf-8"))["log"]
    assert len(logs) >= 349
    wrong = []
    for log in logs:
        found = ids(diagnose(log["text"].splitlines()))
        if found and found[0] != log["expects"]:
            wrong.append((log["url"], log["expects"], found))
    assert wrong == []


def test_no_entry_claims_what_is_anothers_and_noise_changes_no_name() -> None:
    assert overlaps([(item.id, item.excerpt) for item in FAILURES]) == []


def test_what_a_symptom_is_says_so() -> None:
    line = "ImportError: x/_crop.so: undefined symbol: state"
    assert diagnose([line]).named[0].standing == "symptom"
    assert diagnose([KILLED]).named[0].standing == "cause"


@pytest.mark.parametrize(
    "line",
    [
        "ninja: error: 'CUDA_X_LIB-NOTFOUND', needed by 'libx.so', missing and no known rule",
        "make: *** No rule to make target 'CUDA_X_LIB-NOTFOUND', needed by 'libx.so'.  Stop.",
    ],
)
def test_a_library_cmake_did_not_find_is_no_missing_file(line: str) -> None:
    (named,) = diagnose([line]).named
    assert named.id == "cmake-variable-not-found"
    assert "CUDA_X_LIB" in named.title


def test_the_name_of_a_source_file_in_a_command_is_no_failure() -> None:
    command = "c++ -c torch/csrc/generic/StorageSharing.cpp -o StorageSharing.cpp.o"
    assert diagnose([command, KILLED]).named[0].id == "compiler-killed"
    assert len(diagnose([command, KILLED]).named) == 1


def test_of_a_cascade_the_cause_comes_first() -> None:
    found = diagnose(
        [
            *NEUTRAL,
            "OSError: /x/torchvision/_C.so: undefined symbol: _ZN3c1017RegisterOperators6checkEv",
            "RuntimeError: operator torchvision::nms does not exist",
        ]
    )
    assert found.named[0].id == "extension-for-another-torch"
    assert all(named.after for named in found.named[1:])


def test_a_warning_before_the_failure_does_not_hide_it() -> None:
    found = diagnose(["A module that was compiled using NumPy 1.x cannot be run in", KILLED])
    assert ids(found) == ["compiler-killed", "numpy-2"]


def test_the_lines_are_named_by_the_numbers_an_editor_shows() -> None:
    found = diagnose([*NEUTRAL, KILLED, *NEUTRAL, KILLED])
    numbers = [line.number for line in found.named[0].lines]
    assert numbers[0] == len(NEUTRAL) + 1


def test_names_are_filled_in() -> None:
    found = diagnose(["nvcc fatal   : Unsupported gpu architecture 'compute_120'"])
    assert "12.0" in found.named[0].title
    assert "12.8" in found.named[0].meaning
    found = diagnose(
        ["#error -- unsupported GNU version! gcc versions later than 12 are not supported!"]
    )
    assert found.named[0].fix is not None
    assert found.named[0].fix.value == "gcc-12"


def test_a_change_whose_value_is_not_known_is_not_offered() -> None:
    found = diagnose(
        ["RuntimeError: CUDA error: no kernel image is available for execution on the device"]
    )
    assert found.named[0].fix is None


def test_versions_a_failure_cannot_have_exclude_it() -> None:
    line = ["multiple definition of `gloo::rendezvous::Store::kDefaultTimeout'"]
    assert ids(diagnose(line))[0] == "gloo-defined-twice"
    assert ids(diagnose(line, versions={"torch": "2.6.0"})) == ["multiple-definition"]


# ------------------------------------------------------------------ telling causes apart


def host(driver: str, gpu: str | None, cuda: str) -> Host:
    torch = InstalledTorch(version="1", cuda=cuda, python="3.11", path="/p", module="/m")
    gpus = (InstalledGpu(name=gpu),) if gpu else ()
    return Host(platform="linux-x86_64", driver=driver, gpus=gpus, torches=(torch,))


@pytest.mark.parametrize(
    ("machine", "word"),
    [
        (host("440.33", "NVIDIA GeForce RTX 3090", "11.8"), "older than this CUDA"),
        (host("535.54.03", None, "11.8"), "kernel module is still the old one"),
        (host("535.54.03", "NVIDIA GeForce RTX 3090", "11.8"), "cuda-compat"),
    ],
)
def test_the_three_causes_of_error_804_are_told_apart(machine: Host, word: str) -> None:
    (cause,) = diagnose([ERROR_804], machine).named[0].causes
    assert cause.certain
    assert word in cause.text


def test_without_a_machine_every_cause_of_error_804_is_possible() -> None:
    causes = diagnose([ERROR_804]).named[0].causes
    assert len(causes) == 3
    assert not any(cause.certain for cause in causes)


def test_a_line_of_the_log_tells_causes_apart_too() -> None:
    lines = [ERROR_804, "Failed to initialize NVML: Driver/library version mismatch"]
    (cause,) = diagnose(lines).named[0].causes
    assert cause.certain


# --------------------------------------------------------------------------- reading logs


def test_colours_returns_and_bytes_that_are_no_text_do_not_matter() -> None:
    content = b"\x1b[31mx\xff\xfe\r\n\x1b[1mc++: \x1b[31mfatal error:\x1b[0m Killed signal "
    content += b"terminated program cc1plus\r\n 10%\r 20%\rcompilation terminated.\r\n"
    found = explained(scan_file(io.BytesIO(content)))
    assert ids(found) == ["compiler-killed"]
    assert found.named[0].lines[0].number == 2
    assert found.lines == 3


def test_a_line_of_megabytes_is_looked_at_in_parts() -> None:
    content = b"x " * 2_500_000 + b"\n" + KILLED.encode()
    found = explained(scan_file(io.BytesIO(content)))
    assert ids(found) == ["compiler-killed"]
    assert found.named[0].lines[0].number == found.lines == 2


def test_a_failure_after_many_repetitions_keeps_its_number() -> None:
    content = b"".join(b"epoch %d loss %d\n" % (n, n) for n in range(50_000)) + KILLED.encode()
    found = explained(scan_file(io.BytesIO(content)))
    assert found.named[0].lines[0].number == 50_001


def test_nothing_is_found_in_nothing() -> None:
    found = diagnose([])
    assert found.named == ()
    assert found.first_error == ()


BROKEN_SOURCE = [
    *NEUTRAL,
    "FAILED: a.o",
    "a.cpp:3:5: error: {message}",
    "ninja: build stopped: subcommand failed.",
    "Traceback (most recent call last):",
    "subprocess.CalledProcessError: Command 'cmake' returned 1",
]


def test_of_an_unknown_failure_the_first_error_is_shown() -> None:
    found = diagnose([line.format(message="nobody knows this") for line in BROKEN_SOURCE])
    assert found.named == ()
    assert found.first_error[0].text == "a.cpp:3:5: error: nobody knows this"
    assert found.first_error[0].number == len(NEUTRAL) + 2


def test_of_a_failure_that_nothing_explains_the_kind_is_named() -> None:
    message = "‘x’ was not declared in this scope"
    found = diagnose([line.format(message=message) for line in BROKEN_SOURCE])
    (named,) = found.named
    assert (named.id, named.standing) == ("source-name-unknown", "kind")
    assert "x" in named.title
    assert named.lines[0].text == f"a.cpp:3:5: error: {message}"
    assert found.ended == "badly"
    assert found.first_error == ()


def test_a_kind_is_named_only_for_the_lines_that_end_the_log() -> None:
    told = ["KeyError: 'lr'", "retrying with the default", *NEUTRAL]
    assert diagnose([*told, "ValueError: nobody knows this"]).named == ()
    (named,) = diagnose([*told, "KeyError: 'epochs'"]).named
    assert named.title == "The program looks for 'epochs', and it is not there"


def test_a_kind_is_not_named_beside_what_is_known() -> None:
    assert ids(diagnose([KILLED, "KeyError: 'lr'"])) == ["compiler-killed"]


def test_what_a_launcher_says_of_its_workers_does_not_hide_their_own_words() -> None:
    summary = ["  traceback : To enable traceback see: https://pytorch.org/docs"] * 20
    found = diagnose(
        [
            "[rank0]: IndexError: index out of range in self",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            *summary,
            "  error_file: <N/A>",
        ]
    )
    assert ids(found) == ["index-too-large"]


def test_of_an_unknown_exception_the_last_line_is_shown() -> None:
    found = diagnose(["Traceback (most recent call last):", '  File "x.py", line 1', "KeyError: 3"])
    assert "KeyError: 3" in [line.text for line in found.first_error]


# ------------------------------------------------------------------------------ secrets


def test_secrets_do_not_come_back_in_the_words_of_a_cure() -> None:
    line = "fatal: clone of 'https://x:geheim123@example.org/a.git' into submodule path 'a' failed"
    found = diagnose([line])
    assert found.named
    assert "geheim123" not in str(found.as_json())


def test_what_ended_the_program_comes_before_a_warning_above_it() -> None:
    found = diagnose(
        [
            "[WARNING] [runner.py:117:fetch_hostfile] Unable to find hostfile, will proceed with "
            "training with local resources only.",
            "Traceback (most recent call last):",
            '  File "fail.py", line 1, in <module>',
            "NameError: name 'model' is not defined",
        ]
    )
    assert ids(found) == ["python-name-undefined", "deepspeed-without-hostfile"]


@pytest.mark.parametrize(
    ("line", "ended"),
    [
        ("a.py:7: UserWarning: The folder for plots could not be created; going on", "quiet"),
        ("[W825 13:09:39.96 Context.cpp:80] Warning: the old backend cannot be set here", "quiet"),
        ("a.py:7: UserWarning: Failed to load the compiled part", "badly"),
        ("RuntimeError: The folder for plots could not be created", "badly"),
        ("the watchdog of NCCL got stuck", "badly"),
        ("[W Utils.hpp:135] Warning: NCCL_ASYNC_ERROR_HANDLING is deprecated", "quiet"),
        ("root - WARNING - ENV[NCCL_ASYNC_ERROR_HANDLING] will be overridden to 3", "quiet"),
        ("root - WARNING - an error was found in the shards", "badly"),
        ("Solving environment: failed with initial frozen solve. Retrying.", "quiet"),
        ("NAME: gpu-operator", "quiet"),
        ("--   CXX flags : -fPIC -Wno-error=pedantic -Wno-error=old-style-cast", "quiet"),
        ("[WARNING]  sparse_attn requires a torch version >= 1.5 and < 2.0", "quiet"),
        ("#5 1.20 E: Unable to fetch some archives", "badly"),
    ],
)
def test_a_library_that_warns_and_goes_on_is_no_failure(line: str, ended: str) -> None:
    assert diagnose(["epoch 1", line, "epoch 2"]).ended == ended
