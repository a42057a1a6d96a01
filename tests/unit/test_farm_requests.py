"""What the farm writes for its jobs, and what it reads of what they leave."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.farm import Cluster, Matrix, simulate

from torchsmith.engine.store import Store
from torchsmith.errors import UsageError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.jobs.clients import render
from torchsmith.jobs.farm.attempt import Attempt
from torchsmith.jobs.farm.request import (
    Resources,
    Wanted,
    attempt_folder,
    cpus_and_memory,
    farm_folder,
    job_name,
    snapshot,
    variant_job,
    variant_jobs,
    wanted,
)
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan, build_only, shipping
from torchsmith.recipe.load import LoadedRecipe, parse_recipe
from torchsmith.recipe.matrix import expand, named
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit
RECIPE = """
name = "lab"
torch = "2.6.0"
python = ["3.10", "3.11"]

[matrix]
cpu = ["portable", "native"]

[publish]
index = "index"
"""
HOST = Host(platform="linux-x86_64", system="debian-12")


def planned(loaded: LoadedRecipe, variant: str = "") -> Plan:
    facts = shipped()
    variants = [named(loaded.recipe, variant)] if variant else list(expand(loaded.recipe))
    resolved = [resolve(item, facts, HOST, {}) for item in variants]
    good = [item for item in resolved if isinstance(item, Resolution)]
    assert len(good) == len(resolved), resolved
    return make_plan(loaded.recipe, good, facts, "test", name=variant)


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedRecipe:
    path = tmp_path / "project" / "recipe.toml"
    path.parent.mkdir()
    path.write_text(RECIPE, encoding="utf-8")
    return parse_recipe(RECIPE, str(path), path.parent)


def test_one_variant_is_planned_as_in_the_whole_matrix(loaded: LoadedRecipe) -> None:
    whole = {step.id: step.key for step in planned(loaded).steps}
    one = planned(loaded, "lab_native_py3.11")
    assert one.name == "lab_native_py3.11"
    assert all(whole[step.id] == step.key for step in one.steps)
    assert {step.variant for step in one.steps} == {"", "lab_native_py3.11"}
    with pytest.raises(UsageError, match=r"no variant 'lab_py3.11'") as refused:
        named(loaded.recipe, "lab_py3.11")
    assert "Did you mean lab_" in refused.value.hint


def test_jobs_build_and_do_not_ship(loaded: LoadedRecipe) -> None:
    plan = planned(loaded)
    kept = build_only(plan)
    assert {step.id for step in plan.steps} - {step.id for step in kept.steps} == set(
        shipping(plan)
    )
    assert any(name.startswith("publish-") for name in shipping(plan))
    assert all(
        need in {step.id for step in kept.steps} for step in kept.steps for need in step.needs
    )


def test_variants_that_share_a_compilation_are_far_from_each_other(loaded: LoadedRecipe) -> None:
    what = wanted(planned(loaded), loaded, RECIPE, ())
    assert [name.rpartition("_py")[2] for name in what.variants] == ["3.10", "3.10", "3.11", "3.11"]


def test_the_same_wishes_are_the_same_farm_and_an_edit_is_another(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "tiny").mkdir(parents=True)
    source = project / "tiny" / "a.cpp"
    source.write_text("int a;", encoding="utf-8")
    store = Store(tmp_path / "store")
    what = Wanted("lab", RECIPE, project, ("lab",), {"a.patch": b"x"}, ("tiny",), ("--no-accel",))
    folder = snapshot(store, what)
    assert (folder / "recipe.toml").read_text(encoding="utf-8") == RECIPE
    assert (folder / "tiny/a.cpp").read_text(encoding="utf-8") == "int a;"
    assert (folder / "a.patch").read_bytes() == b"x"
    assert snapshot(store, what) == folder
    source.write_text("int b;", encoding="utf-8")
    assert farm_folder(store, what) != folder
    assert (folder / "tiny/a.cpp").read_text(encoding="utf-8") == "int a;"
    assert not list((store.root / "farm").glob(".*"))


def test_what_lies_outside_the_recipes_folder_is_refused(loaded: LoadedRecipe) -> None:
    text = RECIPE.replace(
        '"2.6.0"', '{ release = "2.6.0", use = "installed", environment = "env" }'
    )
    beside = LoadedRecipe(parse_recipe(text, "recipe.toml", None).recipe, "recipe.toml")
    with pytest.raises(UsageError, match="uses the torch of env"):
        wanted(planned(loaded), beside, text, ())


def test_names_fit_every_engine_and_stay_apart() -> None:
    long = [job_name("farm", "lab_" + "x" * 100 + end, 1) for end in ("a", "b")]
    assert long[0] != long[1]
    assert job_name("farm", "lab", 1) != job_name("farm", "lab", 2)
    assert all(len(name) <= 56 for name in long)
    assert job_name("farm", "Lab_py3.11+x", 1).startswith("lab-py3-11-x-")


def test_a_job_asks_for_what_its_hungriest_step_takes(loaded: LoadedRecipe) -> None:
    plan = planned(loaded)
    assert cpus_and_memory(plan, 1, None) == (1, max(step.cost.memory_mb for step in plan.steps))
    assert cpus_and_memory(plan, 16, None) == (16, 40_000)
    assert cpus_and_memory(plan, None, 8 << 30) == (4, 8192)


def test_a_job_for_kubernetes_mounts_the_store(tmp_path: Path) -> None:
    what = Wanted("lab", RECIPE, tmp_path, ("lab_a", "lab_b"))
    there = Resources(4, 8000, "python3", image="lab/torchsmith:1", claim="store", time_limit="2h")
    made = render(
        variant_jobs(Path("/srv/store"), Path("/srv/store/farm/x"), what, there), "kubernetes"
    )
    assert len(made.files) == 2
    text = next(iter(made.files.values())).decode()
    assert "claimName: store" in text
    assert "mountPath: /srv/store" in text
    assert "activeDeadlineSeconds: 7200" in text
    assert "--variant lab_a" in text
    bad = Resources(4, 8000, "python3", queue="no such")
    with pytest.raises(UsageError, match=r"no job can be made of lab_a: queue"):
        variant_job(tmp_path, tmp_path, what, "lab_a", 1, bad)


def test_a_job_leaves_its_end_only_when_it_is_over(tmp_path: Path) -> None:
    farm = tmp_path / "farm"
    place = attempt_folder(farm, "lab", 1)
    place.mkdir(parents=True)
    attempt = Attempt(place)
    assert (attempt.exit_code, attempt.number, attempt.node) == (None, 1, "")
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"; echo no >&2; exit 6\n', encoding="utf-8")
    program.chmod(0o755)
    what = Wanted("lab", RECIPE, tmp_path, ("lab",))
    job = variant_job(tmp_path, farm, what, "lab", 1, Resources(2, 100, str(program)))
    script = "\n".join(("set -e", *job.roles[0].commands))
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 6
    assert attempt.exit_code == 6
    assert not attempt.stopped
    assert "build recipe.toml --variant lab --build-only --json" in (
        place / "events.jsonl"
    ).read_text(encoding="utf-8")
    assert attempt.node


def test_what_a_build_tells_is_read_as_it_comes(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    told = folder / "events.jsonl"
    attempt = Attempt(folder)
    attempt.look()
    events: list[dict[str, object]] = [
        {"event": "step-started", "title": "Compile torch"},
        {"event": "step-line", "text": "[1/9] a.cpp"},
        {"event": "step-progress", "done": 1, "total": 9},
        {"event": "step-progress", "done": 2, "total": 9},
    ]
    # A refusal is one document of several lines.
    text = '{\n  "refused": [\n' + "".join(
        json.dumps({"version": 1, **event}) + "\n" for event in events
    )
    told.write_text(text + '{"event": "st', encoding="utf-8")
    attempt.look()
    assert attempt.step == "Compile torch [2/9]"
    failed = {"title": "Compile torch", "reason": "no", "excerpt": ["error: x"], "log": "/log"}
    with told.open("a", encoding="utf-8") as file:
        file.write('ep-failed", ' + json.dumps(failed)[1:] + "\n")
    (folder / "ended").write_text("6\n")
    why = attempt.why()
    assert (why.reason, why.excerpt, why.log, why.exit_code) == (
        "Compile torch: no",
        ("error: x",),
        "/log",
        6,
    )


def test_a_variant_without_its_results_is_not_built(tmp_path: Path) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    wheel = tmp_path / "a.whl"
    end = {"event": "run-finished", "artifacts": [str(wheel)], "seconds": 2.0, "error": ""}
    (folder / "events.jsonl").write_text(json.dumps(end) + "\n")
    (folder / "ended").write_text("0\n")
    assert Attempt(folder).proven() is None
    assert not Attempt(folder).reported
    Attempt(folder).report()
    assert Attempt(folder).reported
    wheel.touch()
    assert Attempt(folder).proven() == 0
    (tmp_path / "a.whl.verify.json").write_text("{")
    assert Attempt(folder).proven() is None


def test_a_simulation_is_the_same_for_the_same_seed() -> None:
    matrix = Matrix(releases=1, settings=4, pythons=3)
    cluster = Cluster(nodes=3, hours_to_loss=0.2)
    one, other = (simulate(matrix, cluster, seed=3) for _ in range(2))
    assert one == other
    assert one.losses
    # Whatever is lost, nothing is left out.
    quiet = simulate(matrix, Cluster(nodes=3, hours_to_loss=0), seed=3)
    assert quiet.hours < one.hours
    assert quiet.hit_rate > 0.5
