"""Answers to questions of the facts, and to questions about what nobody knows."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from torchsmith.errors import UsageError
from torchsmith.facts import answers
from torchsmith.facts.answers import Answer
from torchsmith.facts.files import Facts

pytestmark = pytest.mark.unit

FACTS = Facts()


def said(answer: Answer) -> dict[str, str]:
    return {line.subject: line.value for line in answer.lines}


def asks(question: str, name: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        getattr(answers, f"about_{question}")(FACTS, name)
    return caught.value


EVERY = [
    *(answers.about_gpu(FACTS, gpu) for gpu in (None, "rtx 3090", "H100", "Jetson AGX Thor")),
    *(answers.about_torch(FACTS, torch) for torch in (None, "1.0.0", "1.8.2", "2.6", "2.15.0")),
    *(answers.about_cuda(FACTS, cuda) for cuda in (None, "8.0", "11.0.221", "12.4", "13")),
    *(answers.about_board(FACTS, board) for board in (None, "jetson-tx2", "dgx-spark")),
    *(answers.about_companion(FACTS, name, None) for name in ("vision", "torchaudio", "text")),
    *(answers.about_features(FACTS, torch) for torch in (None, "1.1.0", "2.6.0")),
    answers.about_systems(FACTS),
]


@pytest.mark.parametrize("answer", EVERY, ids=lambda answer: answer.title)
def test_an_answer_has_a_title_and_lines_that_say_something(answer: Answer) -> None:
    assert answer.title
    assert answer.lines
    for line in answer.lines:
        assert line.subject
        assert line.value
        assert "None" not in line.value
        assert all(address.startswith("http") for address in line.source.split())


@pytest.mark.parametrize("answer", EVERY, ids=lambda answer: answer.title)
def test_as_json_it_is_the_same(answer: Answer) -> None:
    table = json.loads(json.dumps(asdict(answer)))
    assert set(table) == {"title", "short", "data", "lines"}
    assert table["data"], "programs read no prose"
    assert table["title"] == answer.title
    assert [set(line) for line in table["lines"]] == [{"subject", "value", "source"}] * len(
        answer.lines
    )


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("rtx 3090", "8.6"),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5"),
        ("h100", "9.0"),
        ("A100-SXM4-80GB", "8.0"),
        ("rtx5090", "12.0"),
        ("GB10", "12.1"),
    ],
)
def test_a_gpu_by_any_of_its_names(name: str, arch: str) -> None:
    assert said(answers.about_gpu(FACTS, name))["compute capability"] == arch


def test_a_gpu_tells_which_cuda_and_torch_know_it() -> None:
    lines = said(answers.about_gpu(FACTS, "V100"))
    assert lines["CUDA"] == "9.0 to 12.9"
    assert lines["torch"].startswith("1.0.0 to ")


def test_a_release_tells_what_goes_with_it() -> None:
    lines = said(answers.about_torch(FACTS, "2.6"))
    assert lines["Python"] == "3.9, 3.10, 3.11, 3.12, 3.13"
    assert lines["torchvision"] == "0.21.0"
    assert lines["torchtext"] == "none; it ended at 0.18.0"
    assert lines["Debian source"] == "trixie"


def test_a_toolkit_tells_what_it_compiles_with_and_for() -> None:
    lines = said(answers.about_cuda(FACTS, "12.4"))
    assert lines["gcc"] == "up to 13"
    assert "9.0a" in lines["compiles for"]
    assert lines["nvcc on PyPI"] == "no"
    assert lines["torch"].startswith("2.4.0 to ")


def test_a_board_tells_what_it_lacks_and_its_jetpacks() -> None:
    lines = said(answers.about_board(FACTS, "Jetson-TX2"))
    assert lines["compute capability"] == "6.2"
    assert "Gloo or MPI" in lines["no nccl"]
    assert lines["JetPack 4.6"] == "ubuntu-18.04, CUDA 10.2, cuDNN 8.2.1, Python 3.6"


def test_a_companion_can_be_asked_for_one_release() -> None:
    answer = answers.about_companion(FACTS, "vision", "0.10.1")
    assert said(answer) == {"torchvision 0.10.1": "torch 1.9.1"}


def test_features_are_those_of_the_release() -> None:
    old, new = (answers.about_features(FACTS, torch) for torch in ("1.9.1", "2.6.0"))
    assert "flash_attention" not in said(old)
    assert "off: USE_FLASH_ATTENTION=0" in said(new)["flash_attention"]


@pytest.mark.parametrize(
    ("question", "name", "hint"),
    [
        ("gpu", "rtx 3091", "Did you mean"),
        ("gpu", "???", "`torchsmith facts gpu` lists them."),
        ("torch", "1.9.7", "Did you mean 1.9.1"),
        ("torch", "77", "Known are 1.0.0 to"),
        ("cuda", "12.7", "Did you mean 12."),
        ("torch", "0.4.1", "Known are 1.0.0 to 2.15.0"),
        ("cuda", "7.5", "Known are 8.0 to 13."),
        ("board", "jetson-tx3", "Did you mean jetson-tx2"),
        ("board", "toaster", "`torchsmith facts board` lists them."),
        ("features", "1.9.7", "Did you mean 1.9.1"),
    ],
)
def test_an_unknown_name_is_answered_with_the_likely_one(
    question: str, name: str, hint: str
) -> None:
    error = asks(question, name)
    assert repr(name) in str(error)
    assert hint in error.hint


@pytest.mark.parametrize("question", ["torch", "cuda", "features"])
def test_what_is_no_version_is_said_to_be_none(question: str) -> None:
    assert "is not a release" in str(asks(question, "latest"))


def test_a_companion_can_be_asked_for_a_series_as_its_own_table_names_it() -> None:
    series = answers.about_companion(FACTS, "codec", "0.9").data["releases"]
    assert {item["version"] for item in series} == {"0.9.0", "0.9.1"}
    assert all("2.9" in item["torch"] for item in series)
    # A release of just that name is that one, and 0.1 is not 0.10.
    assert [item["version"] for item in _releases("codec", "v0.5")] == ["0.5"]
    assert not any(item["version"].startswith("0.10") for item in _releases("codec", "0.1"))


def _releases(name: str, version: str) -> list[dict[str, str]]:
    releases: list[dict[str, str]] = answers.about_companion(FACTS, name, version).data["releases"]
    return releases


def test_an_unknown_companion_or_release_of_one_is_answered_too() -> None:
    with pytest.raises(UsageError, match="'visoin'") as caught:
        answers.about_companion(FACTS, "visoin", None)
    assert "vision" in caught.value.hint
    with pytest.raises(UsageError, match=r"0\.10\.9") as caught:
        answers.about_companion(FACTS, "vision", "0.10.9")
    assert "0.10.1" in caught.value.hint


def test_programs_get_numbers_and_lists_and_people_one_line() -> None:
    gpu = answers.about_gpu(FACTS, "4090 laptop")
    assert gpu.short.startswith("compute capability 8.9; CUDA 11.8 or newer")
    assert gpu.data["arch"] == "8.9"
    assert "12.6" in gpu.data["cuda"]
    torch = answers.about_torch(FACTS, "2.13.0").data
    assert torch["wheels"]["linux-x86_64"] == ["12.6", "12.9", "13.0", "13.2"]
    assert torch["pypi_cuda"] == {"linux-x86_64": "13.0", "linux-aarch64": "13.0"}
    assert torch["companions"]["torchcodec"] == "0.14.0"
    older = answers.about_torch(FACTS, "2.6.0").data
    assert (older["cuda"][-1], older["cuda_built_by_others"]) == ("12.6", ["12.8"])
    assert answers.about_cuda(FACTS, "12.4").data["driver_compat"]


def test_1_9_1_is_not_said_to_be_published_for_cuda_11_0() -> None:
    lines = [line.subject for line in answers.about_torch(FACTS, "1.9.1").lines]
    assert [line for line in lines if line.startswith("published")] == [
        "published, CUDA 10.2",
        "published, CUDA 11.1",
    ]


@pytest.mark.parametrize("name", ["MI300X", "M3", "Arc A770", "RX 7900 XTX", "GTX 580", "GT 630M"])
def test_a_card_nothing_is_built_for_is_answered_with_what_there_is(name: str) -> None:
    error = asks("gpu", name)
    assert "mean" not in f"{error} {error.hint}"
    assert "http" in f"{error} {error.hint}"


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("4090 laptop", "8.9"),
        ("RTX 3080 Max-Q", "8.6"),
        ("GTX 1650 Mobile", "7.5"),
        ("CMP 170HX", "8.0"),
        ("ASUS ROG STRIX RTX 3080", "8.6"),
        ("Vera Rubin", "10.7"),
    ],
)
def test_a_card_is_known_by_the_names_it_is_sold_under(name: str, arch: str) -> None:
    assert said(answers.about_gpu(FACTS, name))["compute capability"] == arch


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answers.about_board(FACTS, "jetson-nano"), "5.3; JetPack"),
        (answers.about_board(FACTS, "jetson-nano"), "with CUDA 10.2"),
        (answers.about_companion(FACTS, "vision", "0.21.0"), "0.21.0 goes with torch 2.6"),
        (answers.about_stack(FACTS, "flash-attn"), "takes torch"),
    ],
)
def test_a_question_for_one_thing_is_answered_in_its_first_line(
    answer: answers.Answer, words: str
) -> None:
    assert words in answer.short
    assert "\n" not in answer.short


@pytest.mark.parametrize("part", ["orin", "Jetson Orin", "jetson-orin"])
def test_part_of_a_name_is_answered_with_the_names_that_have_it(part: str) -> None:
    hint = asks("board", part).hint
    for name in ("jetson-agx-orin", "jetson-orin-nx", "jetson-orin-nano"):
        assert name in hint


def test_a_package_of_stacks_is_no_companion_and_the_answer_says_where_it_is() -> None:
    with pytest.raises(UsageError) as caught:
        answers.about_companion(FACTS, "xformers", None)
    assert "torchsmith facts stack xformers" in caught.value.hint
