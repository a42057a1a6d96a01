"""A matrix expands to the same variants, in the same order, under the same safe names."""

from __future__ import annotations

import re

import pytest

from torchsmith.errors import RecipeError
from torchsmith.recipe.compose import overridden
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import MAX_VARIANTS, Variant, expand

pytestmark = pytest.mark.unit


def variants(text: str) -> list[Variant]:
    return list(expand(parse_recipe(f'torch = "2.6.0"\n{text}\n', "recipe.toml", None).recipe))


def names(text: str) -> list[str]:
    return [item.name for item in variants(text)]


def test_a_recipe_without_a_matrix_is_one_variant() -> None:
    (only,) = variants("")
    assert (only.name, only.python, only.axes) == ("torch", "host", ())


def test_a_list_of_pythons_is_a_matrix() -> None:
    assert names('python = ["3.11", "3.12"]') == ["torch_py3.11", "torch_py3.12"]
    assert names('python = "3.11, 3.12"') == ["torch_py3.11", "torch_py3.12"]
    assert [item.recipe.python for item in variants('python = ["3.11", "3.12"]')] == [
        ["3.11"],
        ["3.12"],
    ]


def test_the_matrix_has_the_last_word_on_an_axis_named_twice() -> None:
    assert names('python = ["3.9", "3.10"]\nmatrix.python = ["3.11"]') == ["torch_py3.11"]


def test_the_order_is_that_of_the_axes_and_not_of_the_file() -> None:
    first = names('[matrix]\npython = ["3.12", "3.11"]\ncuda = ["12.6", false]')
    second = names('[matrix]\ncuda = ["12.6", "none"]\npython = ["3.12", "3.11"]')
    assert first == second
    assert first == [
        "torch_py3.12_cu12.6",
        "torch_py3.12_cpu",
        "torch_py3.11_cu12.6",
        "torch_py3.11_cpu",
    ]


def test_an_exclusion_takes_out_every_combination_it_matches() -> None:
    axes = '[matrix]\npython = ["3.11", "3.12"]\ncuda = ["12.4", "12.6"]\n'
    assert names(axes + 'exclude = [{ python = "3.11" }]') == [
        "torch_py3.12_cu12.4",
        "torch_py3.12_cu12.6",
    ]
    assert len(names(axes + 'exclude = [{ python = "3.11", cuda = "12.4" }, {}]')) == 3


def test_an_exclusion_may_name_what_the_recipe_says_outside_its_matrix() -> None:
    text = 'cpu = "{}"\n[matrix]\npython = ["3.11", "3.12"]\n'
    text += 'exclude = [{{ python = "3.11", cpu = "native" }}]'
    assert len(names(text.format("native"))) == 1
    assert len(names(text.format("haswell"))) == 2


def test_an_exclusion_by_feature_matches_the_features_as_merged() -> None:
    text = '[features]\nmkldnn = "off"\n[matrix]\nfeatures = [{ nccl = "off" }, { nccl = "on" }]\n'
    assert len(names(text + 'exclude = [{ features = { nccl = "off", mkldnn = "off" } }]')) == 1


def test_an_inclusion_adds_a_combination_at_the_end() -> None:
    found = variants('[matrix]\npython = ["3.11"]\ninclude = [{ python = "3.12", cuda = "12.6" }]')
    assert [item.name for item in found] == ["torch_py3.11", "torch_py3.12_cu12.6"]
    assert found[1].recipe.cuda.version == "12.6"


def test_the_same_wish_twice_is_one_variant() -> None:
    assert names('python = ["3.11", "3.11"]') == ["torch_py3.11"]
    assert len(names('matrix.torch = ["2.6.0", { release = "2.6.0" }]')) == 1
    assert len(names('matrix.gpus = ["7.5;8.6", ["7.5", "8.6"]]')) == 1
    assert (
        len(names("matrix.features = [{mkldnn='on', nccl='off'}, {nccl='off', mkldnn=true}]")) == 1
    )
    text = 'python = ["3.11", "3.12"]\n[matrix]\ncuda = ["12.6"]\n'
    assert (
        len(names(text + 'include = [{ cuda = "12.6", python = "3.12", cpu = "portable" }]')) == 2
    )


def test_the_features_of_a_combination_are_laid_over_the_recipes() -> None:
    (only,) = variants('[features]\nnccl = "on"\nmkldnn = "off"\n[[matrix.features]]\nnccl = "off"')
    assert only.recipe.features == {"nccl": "off", "mkldnn": "off"}


def test_names_are_unique_and_safe_as_folders() -> None:
    lists = {
        "torch": "{ release = '2.6', ref = 'a/b' }, { release = '2.6', ref = 'a-b' }, "
        "{ release = '2.6', ref = 'a-b-2' }, { release = '2.6', ref = 'a+b' }",
        "gpus": "'RTX 3090', 'rtx-3090', '8.6+PTX', '7.5;8.6', 'sm_90a'",
        "cpu": "'native', '-march=haswell'",
        "features": "{ nccl = 'on', mkldnn = 'on', cuda = 'on', distributed = 'on' }, {}",
    }
    text = "[matrix]\n" + "\n".join(f"{axis} = [{values}]" for axis, values in lists.items())
    found = names("cuda = '12.6'\n" + text)
    assert len(found) == 4 * 5 * 2 * 2
    assert len({name.lower() for name in found}) == len(found)
    for name in found:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,130}", name)
        assert not name.endswith(".lock")


def test_long_names_stay_short_and_apart() -> None:
    every = "".join(
        f"{{ nccl = '{nccl}', mkldnn = 'on', distributed = 'on', cudnn = 'on', magma = 'on', "
        f"openmp = '{openmp}', numa = 'on', fbgemm = 'on', kineto = 'on', qnnpack = 'on' }},"
        for nccl in ("on", "off")
        for openmp in ("on", "off")
    )
    found = names(f"[matrix]\nfeatures = [{every}]")
    assert len(set(found)) == 4
    assert max(map(len, found)) < 140


def test_a_thousand_variants_expand() -> None:
    text = "[matrix]\n"
    text += f"torch = {[f'2.6.{index}' for index in range(100)]}\n"
    text += f"python = {[f'3.{index}' for index in range(10)]}\n"
    found = names(text)
    assert len(set(found)) == 1000
    assert found == names(text)


def test_a_flag_takes_the_place_of_its_axis() -> None:
    loaded = parse_recipe(
        'torch = "2.6"\ncuda = "12.6"\n[matrix]\npython = ["3.9", "3.10"]\n'
        'exclude = [{ python = "3.9" }]\ninclude = [{ python = "3.8", cpu = "native" }]\n',
        "recipe.toml",
        None,
    )
    found = list(expand(overridden(loaded, {"python": ["3.12"]}).recipe))
    assert [(item.python, item.recipe.cpu) for item in found] == [
        ("3.12", "portable"),
        ("3.12", "native"),
    ]


def test_flags_cannot_make_a_matrix_larger_than_may_be_planned() -> None:
    cpus = [f"cpu{index}" for index in range(1000)]
    platforms = ["linux-x86_64", "linux-aarch64"]
    loaded = parse_recipe(
        f'torch = "2.6"\n[matrix]\ncpu = {cpus}\nplatform = {platforms}\n', "r", None
    )
    with pytest.raises(RecipeError, match="1 problem"):
        overridden(loaded, {"python": [f"3.{minor}" for minor in range(6)]})
    assert MAX_VARIANTS < 2000 * 6


def test_flags_cannot_exclude_everything() -> None:
    loaded = parse_recipe(
        'torch = "2.6"\nmatrix.python = ["3.9", "3.10"]\nmatrix.exclude = [{ python = "3.9" }]\n',
        "recipe.toml",
        None,
    )
    with pytest.raises(RecipeError) as caught:
        overridden(loaded, {"python": ["3.9"]})
    assert "every combination is excluded" in str(caught.value.problems[0])


@pytest.mark.parametrize("text", ["ubuntu-22.04", "ubuntu:22.04", "Ubuntu 22.04"])
def test_a_distribution_may_be_written_as_images_write_it(text: str) -> None:
    (only,) = variants(f'system = "{text}"')
    assert only.recipe.system == "ubuntu-22.04"
