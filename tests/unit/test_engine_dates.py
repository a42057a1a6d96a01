"""What is compiled carries its source's date, so the same source gives the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.engine.work import WorkFolder
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step
from torchsmith.sources.tree import EARLIEST, source_date

pytestmark = pytest.mark.unit

CHANGELOG = """pytorch (2.6.0+dfsg-7) unstable; urgency=medium

  * Newest.

 -- Some One <one@example.org>  Thu, 06 Mar 2025 10:00:00 +0100

pytorch (2.6.0+dfsg-6) unstable; urgency=medium

  * Older.

 -- Some One <one@example.org>  Thu, 06 Mar 2024 10:00:00 +0100
"""


def test_a_debian_package_has_the_date_of_its_newest_change(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/changelog").write_text(CHANGELOG, encoding="utf-8")
    assert source_date(tmp_path) == 1741251600


def test_a_checkout_has_the_date_of_its_commit(tmp_path: Path) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    when = {"GIT_AUTHOR_DATE": "@1600000000 +0000", "GIT_COMMITTER_DATE": "@1700000000 +0000"}
    for words in (["init", "--quiet"], [*who, "commit", "--quiet", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, env={**os.environ, **when})
    assert source_date(tmp_path) == 1700000000


def test_anything_else_has_the_date_of_its_newest_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name, when in (("a", 1_500_000_000), ("below/b", 1_400_000_000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    assert source_date(tmp_path) == 1_500_000_000


def test_no_date_is_older_than_a_zip_file_can_name(tmp_path: Path) -> None:
    assert source_date(tmp_path) == EARLIEST
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (0, 0))
    assert source_date(tmp_path) == EARLIEST


def made_plan(fetch: Step, *, extra: str = "") -> Plan:
    compile_step = Step(
        id="compile",
        kind="compile",
        title="Compile",
        project="tiny",
        needs=("fetch",),
        commands=(f'echo "$SOURCE_DATE_EPOCH $PYTHONHASHSEED" > made; {extra}true',),
        outputs=("made",),
    )
    other = Step(
        id="package",
        kind="package",
        title="Package",
        needs=("compile",),
        commands=('echo "${SOURCE_DATE_EPOCH:-none}" > packed',),
        outputs=("packed",),
    )
    return with_keys(Plan("tiny", (), (fetch, compile_step, other)), {})


FETCH = Step(
    id="fetch",
    kind="fetch",
    title="Fetch",
    project="tiny",
    commands=("mkdir -p src; touch -d @1500000000 src/a",),
    outputs=("src",),
)


def run(folder: Path, plan: Plan) -> None:
    journal = Journal(folder / "store/journal.db")
    # A date of the caller's must not get into a result whose key knows nothing of it.
    environment = {"PATH": "/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1", "PYTHONHASHSEED": "7"}
    run_plan(plan, Store(folder / "store"), journal, work=folder / "work", environment=environment)
    journal.close()


def test_a_compilation_sees_its_sources_date_outside_its_key(tmp_path: Path) -> None:
    plan = made_plan(FETCH)
    run(tmp_path, plan)
    assert (tmp_path / "work/made").read_text(encoding="utf-8") == "1500000000 0\n"
    assert (tmp_path / "work/packed").read_text(encoding="utf-8") == "1\n"


def test_the_date_stays_when_the_source_is_dropped_from_the_store(tmp_path: Path) -> None:
    first = made_plan(FETCH)
    run(tmp_path, first)
    store = Store(tmp_path / "store")
    entry = store.get(first.step("fetch").key, tmp_path / "work", "")
    assert entry is not None
    # The tree a later run brings is another day's.
    other = replace(FETCH, commands=("mkdir -p src; touch -d @1600000000 src/a",))
    shutil.rmtree(entry.folder)
    shutil.rmtree(tmp_path / "work")
    kept = replace(first.step("fetch"), commands=other.commands)
    again = made_plan(FETCH, extra="true; ")
    steps = (kept, *again.steps[1:])
    run(tmp_path, replace(again, steps=steps))
    assert (tmp_path / "work/made").read_text(encoding="utf-8") == "1500000000 0\n"


def test_what_setuptools_gathered_goes_and_what_was_compiled_stays(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path)
    tree = work.path / "build/v/tiny/build"
    for name in ("lib.linux-x86_64-cpython-311", "bdist.linux-x86_64", "temp.linux", "lib"):
        (tree / name).mkdir(parents=True)
    work.clear_staging(Step(id="c", kind="compile", title="C", project="tiny", variant="v"))
    assert sorted(path.name for path in tree.iterdir()) == ["lib", "temp.linux"]
