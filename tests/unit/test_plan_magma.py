"""MAGMA's steps: where its source comes from, how it is compiled, what is looked for in it."""

from __future__ import annotations

import pytest
from tests.plans import arguments, shell_lines
from tests.unit.test_plan_commands import plan_of

from torchsmith.plan.models import Fetch, Plan, Step

pytestmark = pytest.mark.unit

SHA256 = "ab" * 32
RECIPE = """
name = "lab"
torch = "2.6.0"
python = "3.11"
cuda = "{cuda}"
gpus = ["9.0"]
{more}
[packages]
magma = true
magma_gpus = "9.0"
{packages}
"""


def planned(cuda: str = "12.6", more: str = "", packages: str = "") -> Plan:
    return plan_of(RECIPE.format(cuda=cuda, more=more, packages=packages))[0]


def step(plan: Plan, kind: str) -> Step:
    (found,) = (item for item in plan.steps if (item.kind, item.project) == (kind, "magma"))
    return found


def test_its_source_is_upstreams_archive() -> None:
    source = step(planned(), "fetch").source
    assert source is not None
    assert (source.kind, source.url.rpartition("/")[2]) == ("archive", "magma-2.9.0.tar.gz")


def test_its_source_is_debians_where_torchs_is_and_the_release_is_there() -> None:
    plan = planned(more='[source]\nkind = "debian"\nsuite = "trixie"')
    fetch = step(plan, "fetch")
    assert fetch.source is not None
    assert (fetch.source.kind, fetch.source.suite) == ("debian", "trixie")
    assert (fetch.source.package, fetch.source.ref) == ("magma", "2.9.0")
    assert arguments(fetch, Fetch).into == "sources/magma-2.9.0"
    assert "sources/magma-2.9.0" in shell_lines(plan, fetch)[-2]


def test_its_source_can_be_an_archive_of_the_recipes() -> None:
    words = f'magma_archive = "m.tar.gz"\nmagma_sha256 = "{SHA256}"'
    fetch = step(planned(packages=words), "fetch")
    assert fetch.source is not None
    assert (fetch.source.path, fetch.source.sha256) == ("m.tar.gz", SHA256)
    assert not fetch.reads, "another machine takes it from a bundle, and has no such file"


def test_only_its_static_library_is_compiled_for_these_gpus_and_no_lapack_is_needed() -> None:
    compiling = step(planned(), "compile")
    text = "\n".join(compiling.commands)
    for words in (
        "-DBUILD_SHARED_LIBS=OFF",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
        "-DUSE_FORTRAN=OFF",
        "-DCMAKE_CUDA_ARCHITECTURES=90-real",
        "'-DLAPACK_LIBRARIES=-llapack;-lblas'",
        "--target magma",
    ):
        assert words in text
    assert "--target install" not in text
    assert compiling.outputs == ("build/lab/magma-prefix",)


def test_a_build_that_was_stopped_keeps_its_tree() -> None:
    first, *others = step(planned(), "compile").commands
    assert "TORCHSMITH_RESUME" in first
    assert not any("rm -rf build/lab/magma;" in line or line.endswith("/magma") for line in others)


def test_the_number_of_jobs_is_left_to_the_governor() -> None:
    build = next(line for line in step(planned(), "compile").commands if "--build" in line)
    assert "--parallel" not in build


def test_the_library_is_looked_into_before_it_is_packed() -> None:
    plan = planned()
    verify = step(plan, "verify")
    assert verify.expects is not None
    assert verify.expects.archs == ("sm_90",)
    assert "magma_sgetrf_batched" in verify.expects.symbols
    assert verify.id in step(plan, "package").needs


def test_it_can_be_had_without_building_a_torch() -> None:
    text = RECIPE.format(cuda="12.6", more="", packages="").replace(
        'torch = "2.6.0"', 'torch = { release = "2.6.0", use = "wheel" }'
    )
    alone, _ = plan_of(text)
    assert {item.project for item in alone.steps} <= {"", "magma"}
    assert step(alone, "compile")
