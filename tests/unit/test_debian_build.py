"""A release Debian has is built from its source as the facts say, with or without its patches."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from tests.plans import shell_lines

from torchsmith.errors import SourceError
from torchsmith.facts.files import shipped
from torchsmith.facts.models import DebianBuild
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Refusal, Resolution, SourceChoice
from torchsmith.resolve.resolve import resolve
from torchsmith.sources.fetch import fetch

pytestmark = pytest.mark.unit

FACTS = shipped()
HOST = Host(platform="linux-x86_64", system="debian-12")


def resolved(torch: str, suite: str) -> tuple[Recipe, Resolution]:
    text = f'torch = {torch}\nsource = {{ kind = "debian", suite = "{suite}" }}\n'
    recipe = parse_recipe(text + 'profile = "minimal"\ncuda = "none"\npython = "3.11"', "t", None)
    (variant,) = expand(recipe.recipe)
    resolution = resolve(variant, FACTS, HOST, {})
    assert isinstance(resolution, Resolution), resolution
    return recipe.recipe, resolution


def planned(torch: str, suite: str) -> Plan:
    recipe, resolution = resolved(f'"{torch}"', suite)
    return make_plan(recipe, [resolution], FACTS, "test")


def test_a_torch_that_is_not_compiled_needs_no_libraries_of_its_source() -> None:
    _, compiled = resolved('"2.6.0"', "trixie")
    assert "libcpp-httplib-dev" in compiled.apt
    # Debian 11 does not have it.
    _, published = resolved('{ release = "2.6.0", use = "wheel" }', "trixie")
    assert published.apt == ()


@pytest.mark.parametrize(("system", "cautioned"), [("ubuntu-22.04", True), ("debian-13", False)])
def test_a_distribution_older_than_those_it_was_built_on_is_a_caution(
    system: str, cautioned: bool
) -> None:
    text = f'torch = "2.6.0"\npython = "3.11"\nsystem = "{system}"\nsource.kind = "debian"\n'
    (variant,) = expand(parse_recipe(text, "t", None).recipe)
    resolution = resolve(variant, FACTS, HOST, {})
    assert isinstance(resolution, Resolution), resolution
    found = [item.message for item in resolution.cautions]
    assert any("takes libraries of the distribution" in text for text in found) is cautioned


@pytest.mark.parametrize("known", FACTS.systems.debian_build, ids=lambda known: known.torch)
def test_what_is_lent_goes_into_the_tree_and_comes_from_a_package_we_know(
    known: DebianBuild,
) -> None:
    offered = {(item.suite, item.package, item.version) for item in FACTS.systems.debian}
    for item in known.vendored:
        # What Debian's sources do not have, a wheel does: brought by its hash.
        assert not item.suite or (item.suite, item.package, item.version) in offered
        for name in (item.path, item.file):
            path = PurePosixPath(name)
            assert not path.is_absolute()
            assert ".." not in path.parts
    assert len({item.path for item in known.vendored}) == len(known.vendored)


@pytest.mark.parametrize("known", FACTS.systems.debian_build, ids=lambda known: known.torch)
def test_each_package_is_named_once_in_order(known: DebianBuild) -> None:
    assert known.apt == sorted(set(known.apt))


def test_1_13_comes_with_the_files_it_lacks_and_the_patches_that_stand_in_for_debians() -> None:
    plan = planned("1.13.1", "bookworm")
    fetch_torch, lent, patch = (step for step in plan.steps if step.kind in ("fetch", "patch"))
    assert fetch_torch.source is not None
    assert fetch_torch.source.upstream_alone
    assert lent.source is not None
    assert len(lent.source.files) == 2
    assert patch.needs == (fetch_torch.id, lent.id)
    (resolution,) = plan.variants
    conditional = {item.name for item in resolution.patches if item.unless}
    assert conditional == {"torch-1.13-fmt-9.patch", "torch-1.13-system-libraries.patch"}
    assert dict(resolution.env)["USE_SYSTEM_LIBS"] == "1"
    assert "libfmt-dev" in resolution.apt
    assert not any("is not known" in item.message for item in resolution.cautions)


def test_2_6_is_not_built_without_debians_part() -> None:
    plan = planned("2.6.0", "trixie")
    (only,) = (step for step in plan.steps if step.kind == "fetch")
    assert only.source is not None
    assert not only.source.upstream_alone
    assert not any("--tar-only" in line for line in shell_lines(plan, only))


def test_the_files_wanted_of_a_source_are_all_that_is_kept(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "a/b").mkdir(parents=True)
    (origin / "a/b/wanted.h").write_text("wanted")
    (origin / "a/other.h").write_text("other")
    choice = SourceChoice("folder", path=str(origin), files=("a/b/wanted.h",))
    brought = fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    kept = [path for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    assert [path.relative_to(tmp_path / "tree").as_posix() for path in kept] == ["a/b/wanted.h"]
    again = fetch(SourceChoice("folder", path=str(tmp_path / "tree")), tmp_path / "t",
                  cache=tmp_path / "cache")  # fmt: skip
    assert brought.evidence["tree"] == again.evidence["tree"]


@pytest.mark.parametrize("name", ["missing.h", "../outside.h", "link.h", "linked/x.h"])
def test_a_wanted_file_that_is_not_a_file_of_the_source_is_refused(
    tmp_path: Path, name: str
) -> None:
    origin = tmp_path / "origin"
    (origin / "real").mkdir(parents=True)
    (origin / "real/x.h").write_text("x")
    (origin / "link.h").symlink_to("real/x.h")
    (origin / "linked").symlink_to("real")
    (tmp_path / "outside.h").write_text("outside")
    choice = SourceChoice("folder", path=str(origin), files=(name,))
    with pytest.raises(SourceError, match="has no file"):
        fetch(choice, tmp_path / "tree", cache=tmp_path / "cache")
    assert not any((tmp_path / "tree").iterdir())


def cuda_build(**wish: object) -> Resolution:
    recipe = Recipe.model_validate(
        {
            "torch": "2.6.0",
            "python": "3.11",
            "source": {"kind": "debian"},
            "profile": "minimal",
            **wish,
        }
    )
    (variant,) = expand(recipe)
    resolution = resolve(variant, FACTS, HOST, {})
    assert isinstance(resolution, Resolution), resolution
    return resolution


def test_a_cuda_build_of_2_6_gets_the_headers_debian_cut_out_and_another_does_not() -> None:
    lent = {item.path for item in cuda_build(cuda="12.6", gpus=["9.0"]).vendored}
    assert lent == {
        "third_party/cutlass/include",
        "third_party/cutlass/tools/util/include",
        "third_party/cudnn_frontend/include",
    }
    assert not cuda_build(cuda="none").vendored


def test_both_folders_of_one_wheel_come_with_one_fetch() -> None:
    resolution = cuda_build(cuda="12.6", gpus=["9.0"])
    plan = make_plan(Recipe.model_validate({"torch": "2.6.0"}), [resolution], FACTS, "test")
    lenders = [step.source for step in plan.steps if step.id.startswith("fetch-lent-")]
    assert [(item.kind, item.package, len(item.files)) for item in lenders if item] == [
        ("wheel", "nvidia-cutlass", 2),
        ("wheel", "nvidia-cudnn-frontend", 1),
    ]


def test_the_default_torch_has_what_pips_has_as_far_as_the_source_brings_it() -> None:
    resolution = cuda_build(cuda="none", profile="release")
    modes = dict(resolution.features)
    assert {modes[name] for name in ("mkldnn", "distributed", "gloo", "tensorpipe")} == {"on"}
    assert modes["mkl"] == "static"
    assert {modes[name] for name in ("fbgemm", "kineto", "nnpack", "xnnpack", "itt")} == {"off"}
    reasons = {choice.subject: choice.reason for choice in resolution.choices}
    assert reasons["feature fbgemm"] == "Debian has no source of FBGEMM"
    # CMake goes without what it does not find, unless it is told and asked.
    assert dict(resolution.feature_env)["USE_MKLDNN"] == "1"
    assert dict(resolution.expected_cache)["USE_MKLDNN"]
    assert dict(resolution.feature_env)["BLAS"] == "MKL"
    assert "BLAS" not in dict(resolution.env)
    assert "mkl-static==2024.2.2" in resolution.requires


def test_a_feature_the_source_cannot_bring_is_refused_with_the_source_that_can() -> None:
    recipe = Recipe.model_validate(
        {
            "torch": "2.6.0",
            "python": "3.11",
            "cuda": "none",
            "source": {"kind": "debian"},
            "features": {"fbgemm": "on"},
        }
    )
    (variant,) = expand(recipe)
    refused = resolve(variant, FACTS, HOST, {})
    assert isinstance(refused, Refusal)
    (conflict,) = refused.conflicts
    assert conflict.kind == "feature-source"
    assert "source.kind = 'git'" in conflict.cure


def test_onednn_is_lent_to_the_builds_that_have_it_and_comes_by_hash() -> None:
    resolution = cuda_build(cuda="none", features={"mkldnn": "on"})
    assert {item.path for item in resolution.vendored} == {
        "third_party/ideep/mkl-dnn",
        "third_party/ideep/include",
    }
    plan = make_plan(Recipe.model_validate({"torch": "2.6.0"}), [resolution], FACTS, "test")
    lent = [step for step in plan.steps if step.id.startswith("fetch-lent-")]
    assert [step.source.kind for step in lent if step.source] == ["pool", "pool"]
    assert all(step.source.sha256 for step in lent if step.source)
    assert lent[0].title == "Fetch onednn 3.7.2"
    assert any("ar p " in line for line in shell_lines(plan, lent[1]))


def test_mkl_is_taken_where_it_exists_and_for_releases_it_was_tried_with() -> None:
    here = {"python": "3.11", "cuda": "none", "source": {"kind": "git"}}
    for torch, python, platform, mode in (
        ("2.6.0", "3.11", "linux-x86_64", "static"),
        ("2.6.0", "3.11", "linux-aarch64", "off"),
        ("1.13.1", "3.10", "linux-x86_64", "off"),
    ):
        recipe = Recipe.model_validate(
            {**here, "torch": torch, "python": python, "platform": platform}
        )
        (variant,) = expand(recipe)
        resolution = resolve(variant, FACTS, Host(platform=platform, system="debian-12"), {})
        assert isinstance(resolution, Resolution), resolution
        assert resolution.feature("mkl") == mode


def test_no_mkl_is_brought_where_torch_is_not_compiled() -> None:
    recipe = Recipe.model_validate(
        {"torch": {"release": "2.6.0", "use": "wheel"}, "python": "3.11", "cuda": "none"}
    )
    (variant,) = expand(recipe)
    resolution = resolve(variant, FACTS, HOST, {})
    assert isinstance(resolution, Resolution), resolution
    assert not any("mkl" in item for item in resolution.requires)
