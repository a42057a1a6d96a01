"""A GPU is found by any name people use for it, and never confused with another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu, nearest_gpus, other_cards
from torchsmith.facts.models import Gpu

pytestmark = pytest.mark.unit

FACTS = Facts()
GPUS = {gpu.name: gpu for gpu in FACTS.gpus.gpu}
SPELLINGS = [(name, gpu) for gpu in FACTS.gpus.gpu for name in (gpu.name, *gpu.aliases)]


def test_at_least_160_gpus_are_known_and_each_once() -> None:
    assert len(GPUS) == len(FACTS.gpus.gpu) >= 160


def test_every_gpu_has_an_architecture_some_toolkit_compiles_for() -> None:
    known = {arch.arch for arch in FACTS.cuda.arch}
    assert {gpu.arch for gpu in FACTS.gpus.gpu} <= known


@pytest.mark.parametrize(("name", "gpu"), SPELLINGS, ids=[name for name, _ in SPELLINGS])
def test_a_name_or_alias_means_its_own_gpu(name: str, gpu: Gpu) -> None:
    assert find_gpu(FACTS, name) is gpu


@pytest.mark.parametrize(("name", "gpu"), SPELLINGS, ids=[name for name, _ in SPELLINGS])
def test_case_spaces_and_the_maker_s_name_change_nothing(name: str, gpu: Gpu) -> None:
    assert find_gpu(FACTS, name.upper()) is gpu
    assert find_gpu(FACTS, f"  {name.replace(' ', '_')} ") is gpu
    assert find_gpu(FACTS, f"NVIDIA {name}") is gpu


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        # data centre, as nvidia-smi and clouds write them
        # as lspci writes them
        ("GeForce GT 650M", "3.0"),
        ("GeForce GTX 675MX", "3.0"),
        ("GeForce RTX 3060 Ti GDDR6X", "8.6"),
        ("GeForce RTX 3080 Lite Hash Rate", "8.6"),
        ("GeForce GTX 1650 Mobile Refresh", "7.5"),
        ("RTX A2000 Embedded GPU", "8.6"),
        # as a driver's own list has them
        ("NVIDIA A100-PG509-200", "8.0"),
        ("NVIDIA A800 80GB PCIe LC", "8.0"),
        ("NVIDIA AX800", "8.0"),
        ("NVIDIA A10M", "8.6"),
        ("NVIDIA GeForce RTX 3050 OEM", "8.6"),
        ("NVIDIA GeForce RTX 3050 A Laptop GPU", "8.9"),
        ("NVIDIA RTX 2000E Ada Generation", "8.9"),
        ("NVIDIA RTX A4000H", "8.6"),
        ("NVIDIA RTX 6000D", "12.0"),
        ("NVIDIA T400E", "7.5"),
        # as lspci, virtual machines, clouds and lenders have them
        ("GA102GL [RTX A6000]", "8.6"),
        ("TU117M [GeForce GTX 1650 Mobile / Max-Q]", "7.5"),
        ("NVIDIA Corporation GP107M [GeForce GTX 1050 Ti Mobile] (rev a1)", "6.1"),
        ("NVIDIA Corporation GA104 [GeForce RTX 3070] [10de:2484] (rev a1)", "8.6"),
        ("GV100GL [Tesla V100 PCIe 16GB]", "7.0"),
        ("GK210GL [Tesla K80]", "3.7"),
        ("GH100 [H100 SXM5 80GB]", "9.0"),
        ("GM107M [GeForce GTX 860M]", None),
        ("NVIDIA RTX6000-Ada-48Q", "8.9"),
        ("NVIDIA A30-4-24C", "8.0"),
        ("h100-mega-80gb", "9.0"),
        ("HGX H200", "9.0"),
        ("DGX A100", "8.0"),
        ("RTX PRO 6000 WK", "12.0"),
        ("RTX 4080S", "8.9"),
        ("1660S", "7.5"),
        ("RTX 4070S Ti", "8.9"),
        ("PG509", "8.0"),
        ("B100", "10.0"),
        ("GB200 Superchip", "10.0"),
        ("Blackwell Ultra", "10.3"),
        # two chips have these names
        ("GeForce 710M", None),
        ("GeForce 820M", None),
        ("GeForce GT 740M", None),
        ("Tesla K80", "3.7"),
        ("k80", "3.7"),
        ("Tesla K40m", "3.5"),
        ("K20Xm", "3.5"),
        ("Tesla K10", "3.0"),
        ("Tesla M10", "5.0"),
        ("Tesla M40 24GB", "5.2"),
        ("M60", "5.2"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("P100-SXM2", "6.0"),
        ("Tesla P4", "6.1"),
        ("P40", "6.1"),
        ("Tesla V100-SXM2-16GB", "7.0"),
        ("V100-SXM2-32GB", "7.0"),
        ("Tesla V100-PCIE-16GB", "7.0"),
        ("Tesla V100S-PCIE-32GB", "7.0"),
        ("Tesla V100-DGXS-32GB", "7.0"),
        ("T4", "7.5"),
        ("Tesla T4", "7.5"),
        ("NVIDIA A2", "8.6"),
        ("NVIDIA A10G", "8.6"),
        ("A16", "8.6"),
        ("NVIDIA A30", "8.0"),
        ("A40", "8.6"),
        ("NVIDIA A40-48Q", "8.6"),
        ("A100", "8.0"),
        ("a100", "8.0"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("A100-SXM4-40GB", "8.0"),
        ("NVIDIA A100-PCIE-40GB", "8.0"),
        ("A100 80 GB", "8.0"),
        ("Tesla A100", "8.0"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "8.0"),
        ("A800-SXM4-80GB", "8.0"),
        ("L4", "8.9"),
        ("NVIDIA L40", "8.9"),
        ("l40s", "8.9"),
        ("NVIDIA L20", "8.9"),
        ("H20", "9.0"),
        ("NVIDIA H100 PCIe", "9.0"),
        ("NVIDIA H100 80GB HBM3", "9.0"),
        ("H100 SXM5 80GB", "9.0"),
        ("H100-NVL", "9.0"),
        ("H200 141GB", "9.0"),
        ("H800", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("B200", "10.0"),
        ("NVIDIA GB200", "10.0"),
        ("GB200 NVL72", "10.0"),
        ("B300", "10.3"),
        ("GB300", "10.3"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        # workstation
        ("Quadro K2000", "3.0"),
        ("Quadro K6000", "3.5"),
        ("Quadro K2200", "5.0"),
        ("Quadro M2000M", "5.0"),
        ("Quadro M2000", "5.2"),
        ("Quadro M6000 24GB", "5.2"),
        ("Quadro P2000", "6.1"),
        ("P6000", "6.1"),
        ("GP100", "6.0"),
        ("Quadro GV100", "7.0"),
        ("Quadro RTX 4000", "7.5"),
        ("RTX 4000", "7.5"),
        ("RTX 4000 Ada", "8.9"),
        ("NVIDIA RTX 4000 Ada Generation", "8.9"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
        ("RTX 6000", "7.5"),
        ("RTX 6000 Ada", "8.9"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("RTX PRO 6000", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0"),
        ("RTX 8000", "7.5"),
        ("T400", "7.5"),
        ("T1000", "7.5"),
        ("Quadro T1000", "7.5"),
        ("RTX A6000", "8.6"),
        ("A6000", "8.6"),
        ("NVIDIA RTX A2000 12GB", "8.6"),
        ("A1000", "8.6"),
        ("NVIDIA RTX A1000 Laptop GPU", "8.6"),
        ("DGX Spark", "12.1"),
        ("NVIDIA GB10", "12.1"),
        # GeForce
        ("GTX 680", "3.0"),
        ("GTX 750 Ti", "5.0"),
        ("GeForce GTX 780", "3.5"),
        ("GeForce 940M", "5.0"),
        ("NVIDIA 940MX", "5.0"),
        ("GTX 980Ti", "5.2"),
        ("980", "5.2"),
        ("GTX TITAN X", "5.2"),
        ("TITAN X (Pascal)", "6.1"),
        ("NVIDIA TITAN X (Pascal)", "6.1"),
        ("Titan Xp", "6.1"),
        ("TITAN V", "7.0"),
        ("NVIDIA TITAN RTX", "7.5"),
        ("GTX 1060 6GB", "6.1"),
        ("GeForce GTX 1080 Ti", "6.1"),
        ("1080ti", "6.1"),
        ("GeForce GTX 1070 with Max-Q Design", "6.1"),
        ("MX150", "6.1"),
        ("NVIDIA GeForce MX450", "7.5"),
        ("GTX 1660", "7.5"),
        ("1660 super", "7.5"),
        ("RTX 2080Ti", "7.5"),
        ("RTX 2080 Ti 11GB", "7.5"),
        ("rtx-2070-super", "7.5"),
        ("RTX 2050", "8.6"),
        ("3090", "8.6"),
        ("3090 ti", "8.6"),
        ("rtx3090", "8.6"),
        ("RTX 3090 24GB", "8.6"),
        ("RTX_3080_Ti", "8.6"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "8.6"),
        ("4090", "8.9"),
        ("RTX 4090D", "8.9"),
        ("RTX 4070 Ti SUPER", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("RTX 5090", "12.0"),
        ("geforce rtx 5060 ti 16 gb", "12.0"),
        # Jetson
        ("Jetson TK1", "3.2"),
        ("TX1", "5.3"),
        ("Jetson Nano", "5.3"),
        ("jetson-nano", "5.3"),
        ("TX2", "6.2"),
        ("jetson_tx2_nx", "6.2"),
        ("Xavier", "7.2"),
        ("Jetson Xavier NX", "7.2"),
        ("Orin", "8.7"),
        ("Jetson Orin NX 16GB", "8.7"),
        ("NVIDIA Jetson Orin Nano Developer Kit", "8.7"),
        ("Thor", "11.0"),
        ("NVIDIA Jetson AGX Thor Developer Kit", "11.0"),
        ("Jetson T5000", "11.0"),
    ],
)
def test_a_name_people_use_has_the_capability_of_the_card(name: str, arch: str | None) -> None:
    gpu = find_gpu(FACTS, name)
    assert (gpu.arch if gpu else None) == arch


@pytest.mark.parametrize(
    ("short", "long"),
    [("T4", "T400"), ("A100", "A1000"), ("A10", "A100"), ("L4", "L40"), ("TX2", "TX2 NX")],
)
def test_a_name_is_never_taken_for_one_it_begins(short: str, long: str) -> None:
    first, second = find_gpu(FACTS, short), find_gpu(FACTS, long)
    assert first is not None
    assert second is not None
    assert first is not second


@pytest.mark.parametrize(
    "name",
    ["", " ", "NVIDIA", "GeForce", "24GB", "RTX", "Radeon 780M", "AMD A10", "MI300X", "Arc A380"],
)
def test_what_is_no_card_of_nvidia_s_is_not_found(name: str) -> None:
    assert find_gpu(FACTS, name) is None


@pytest.mark.parametrize("name", ["780M", "840M", "880M"])
def test_a_number_amd_uses_too_needs_the_maker_s_name(name: str) -> None:
    assert find_gpu(FACTS, name) is None


@pytest.mark.parametrize(
    "name", ["Quadro T4", "GeForce A100", "Tesla RTX 3090", "GeForce RTX 4000", "Jetson T4"]
)
def test_a_brand_the_card_does_not_have_is_not_overlooked(name: str) -> None:
    assert find_gpu(FACTS, name) is None


@pytest.mark.parametrize("name", [name.name for name in FACTS.gpus.ambiguous])
def test_an_ambiguous_name_finds_nothing_and_names_what_it_could_be(name: str) -> None:
    (fact,) = (fact for fact in FACTS.gpus.ambiguous if fact.name == name)
    assert find_gpu(FACTS, name) is None
    assert find_gpu(FACTS, f"NVIDIA {name}") is None
    assert nearest_gpus(FACTS, name, len(fact.between)) == fact.between


def test_what_an_ambiguous_name_could_be_are_known_cards_of_different_capability() -> None:
    for fact in FACTS.gpus.ambiguous:
        assert len({GPUS[name].arch for name in fact.between}) > 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RTX 3095", "GeForce RTX 3090"),
        ("GTX 1080 Tii", "GeForce GTX 1080 Ti"),
        ("A110", "A100"),
        ("Quadro T4", "Tesla T4"),
        ("Jetson TX3", "Jetson TX2"),
    ],
)
def test_a_slip_of_the_finger_is_answered_with_the_card_meant(name: str, meant: str) -> None:
    assert find_gpu(FACTS, name) is None
    assert meant in nearest_gpus(FACTS, name)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("GRID T4-16Q", "Tesla T4"),
        ("NVIDIA A40-48Q", "A40"),
        ("GRID A100D-80C", "A100"),
        ("NVIDIA A100-3-20C", "A100"),
        ("NVIDIA L40S-48Q", "L40S"),
        ("NVIDIA H100XL-94C", "H100"),
    ],
)
def test_a_share_of_a_card_in_a_virtual_machine_is_that_card(name: str, card: str) -> None:
    found = find_gpu(FACTS, name)
    assert found is not None
    assert found.arch == GPUS[card].arch
    assert find_gpu(FACTS, "GRID Z9-16Q") is None


def test_no_more_names_are_offered_than_asked_for() -> None:
    assert len(nearest_gpus(FACTS, "RTX 30", 2)) == 2
    assert nearest_gpus(FACTS, "RTX 30", 0) == []


def test_nothing_is_offered_for_what_resembles_nothing() -> None:
    assert nearest_gpus(FACTS, "") == []
    assert nearest_gpus(FACTS, "zzzzzzzz") == []


@given(st.text())
def test_no_text_is_too_strange_to_look_up(text: str) -> None:
    found = find_gpu(FACTS, text)
    assert found is None or found in FACTS.gpus.gpu
    assert len(nearest_gpus(FACTS, text)) <= 3


@given(st.sampled_from(FACTS.gpus.gpu), st.text(alphabet="0123456789xkz", min_size=1, max_size=3))
def test_more_letters_or_digits_never_mean_the_same_card(gpu: Gpu, more: str) -> None:
    assert find_gpu(FACTS, gpu.name + more) is not gpu or gpu.name + more in gpu.aliases


def test_a_revision_behind_a_name_tells_no_two_cards_apart() -> None:
    found = find_gpu(Facts(), "Gigabyte GeForce RTX 3080 VISION OC 10G (rev. 2.0)")
    assert found is not None
    assert found.name == "GeForce RTX 3080"


def test_a_card_that_is_too_old_is_said_to_be() -> None:
    old = other_cards(Facts(), "NVIDIA GeForce GTX 560 Ti 448")
    assert old is not None
    assert old.vendor == "NVIDIA, too old"
