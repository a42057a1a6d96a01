"""Several processes, killed processes: nothing half is seen, nothing is done twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from torchsmith.engine.journal import Journal
from torchsmith.engine.locks import Holder, Lock
from torchsmith.engine.store import Store

pytestmark = pytest.mark.unit

# Five steps that write slowly enough to be killed anywhere; the third is a compilation that
# goes on from the objects it has.
PROGRAM = """
import os
import sys
from msgspec.structs import replace
from pathlib import Path
from torchsmith.engine import events
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.engine.view import Reach
from torchsmith.errors import TorchsmithError
from torchsmith.plan.models import Plan, Step, step_key

root, work = Path(sys.argv[1]), Path(sys.argv[2])
slow = "for i in 1 2 3 4; do echo line $i >> {0}; sleep 0.01; done"
steps = [
    Step("fetch", "fetch", "Fetch", commands=(
        "rm -rf src; mkdir src; " + slow.format("src/a"), 'echo fetch >> "$TORCHSMITH_MARKS"'),
        outputs=("src",)),
    Step("env", "environment", "Environment", commands=(
        "rm -rf env; mkdir env; " + slow.format("env/b"), 'echo "$WORK" > env/where',
        'echo env >> "$TORCHSMITH_MARKS"'), outputs=("env",)),
    Step("compile", "compile", "Compile", needs=("fetch", "env"), commands=(
        'if [ -z "${TORCHSMITH_RESUME:-}" ] || ! [ -d build ]; then rm -rf build build.part; '
        'mkdir build.part; cp src/a build.part; mv build.part build; fi',
        'for i in 1 2 3 4 5 6; do if ! [ -e build/$i.o ]; then sleep 0.02; echo $i > build/tmp; '
        'mv build/tmp build/$i.o; echo "[$i/6] CXX $i"; fi; done',
        "mkdir -p dist; cat build/a env/b build/*.o > dist/x-1.whl",
        'echo compile >> "$TORCHSMITH_MARKS"'),
        outputs=("dist/x-*.whl",)),
    Step("pack", "package", "Pack", needs=("compile",), commands=(
        "mkdir -p packed/deep; cp dist/x-1.whl packed/deep/y; " + slow.format("packed/z"),
        'echo pack >> "$TORCHSMITH_MARKS"'), outputs=("packed",)),
    Step("verify", "verify", "Verify", needs=("pack",), commands=("test -s packed/deep/y",
        'echo verify >> "$TORCHSMITH_MARKS"')),
]
keys, keyed = {}, []
for step in steps:
    keys[step.id] = step_key(step, keys, {})
    keyed.append(replace(step, key=keys[step.id]))

def tell(event):
    name = events.event_name(event)
    print(name, getattr(event, "step", ""), getattr(event, "pid", ""), flush=True)

store = Store(root)
try:
    run_plan(Plan("killed", (), tuple(keyed)), store, Journal(root / "journal.sqlite"), work=work,
             on_event=tell, reach=Reach(writable=(Path(os.environ["TORCHSMITH_MARKS"]),)))
except TorchsmithError as error:
    sys.exit(error.exit_code)
"""
STEPS = ["compile", "env", "fetch", "pack", "verify"]


def start(folder: Path, root: Path, work: Path) -> subprocess.Popen[bytes]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "marks").touch()
    environment = {**os.environ, "TORCHSMITH_MARKS": str(folder / "marks")}
    return subprocess.Popen(
        [sys.executable, str(program), str(root), str(work)],
        stdout=subprocess.PIPE,
        env=environment,
        # A test runner in the background has Ctrl-C ignored, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for root in ("dist", "packed")
        for path in sorted((folder / root).rglob("*"))
        if path.is_file()
    }


def wait_for(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    pytest.fail(f"it never said {word!r}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder, folder / "store", folder / "work")
    process.communicate()
    assert process.returncode == 0
    return contents(folder / "work")


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_any_moment_it_leaves_whole_results_and_goes_on(
    tmp_path: Path, undisturbed: dict[str, bytes], seed: int
) -> None:
    chance = random.Random(seed)
    root, work = tmp_path / "store", tmp_path / "work"
    for _ in range(3):
        process = start(tmp_path, root, work)
        wait_for(process, b"run-started")
        time.sleep(chance.uniform(0, 0.4))
        process.kill()
        process.communicate()
        store = Store(root)
        for entry in store.entries():
            assert store.verify(entry.key) == []
    last = start(tmp_path, root, work)
    last.communicate()
    assert last.returncode == 0
    assert contents(work) == undisturbed
    Store(root).gc(older_than=timedelta(days=1))
    assert list((root / "incoming").iterdir()) == []


def test_a_killed_run_is_shown_as_interrupted_and_its_processes_end(tmp_path: Path) -> None:
    process = start(tmp_path, tmp_path / "store", tmp_path / "work")
    wait_for(process, b"step-started compile")
    journal = Journal(tmp_path / "store/journal.sqlite")
    assert journal.runs()[0].status == "running"
    process.kill()
    process.communicate()
    run = journal.runs()[0]
    assert run.status == "interrupted"
    assert {step.step: step.status for step in journal.steps(run.id)}["compile"] == "interrupted"
    # The guard lets the work folder go only when every process of the run has ended.
    lock = Lock(tmp_path / "work/.torchsmith/lock")
    assert lock.acquire()
    lock.release()
    objects = sorted((tmp_path / "work/build").glob("*"))
    time.sleep(0.1)
    assert sorted((tmp_path / "work/build").glob("*")) == objects


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, tmp_path / "store", tmp_path / "work")
    wait_for(process, b"step-progress compile")
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number
    assert b"step-interrupted compile" in output
    assert b"run-finished" in output
    assert Journal(tmp_path / "store/journal.sqlite").runs()[0].status == "interrupted"
    again = start(tmp_path, tmp_path / "store", tmp_path / "work")
    output, _ = again.communicate()
    assert again.returncode == 0
    # The first object was made before; it is not made again.
    assert output.count(b"step-progress compile") < 6


@pytest.mark.parametrize("together", [True, False], ids=["one work folder", "two work folders"])
def test_two_at_once_share_the_work(tmp_path: Path, together: bool) -> None:
    works = [tmp_path / "work", tmp_path / ("work" if together else "other")]
    processes = [start(tmp_path, tmp_path / "store", work) for work in works]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    marks = (tmp_path / "marks").read_text().split()
    if not together:
        # It has its folder's path in it, so each folder must have its own.
        marks.remove("env")
    assert sorted(marks) == STEPS
    assert contents(works[0]) == contents(works[1])
    assert any(b"waiting" in output for output in outputs)


def test_who_waits_hears_for_whom(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "work/.torchsmith/lock")
    assert lock.try_acquire()
    process = start(tmp_path, tmp_path / "store", tmp_path / "work")
    try:
        wait_for(process, f"waiting  {os.getpid()}".encode())
    finally:
        lock.release()
        process.communicate()
    assert process.returncode == 0


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom torchsmith.engine.locks import Lock\n"
        "lock = Lock(Path(sys.argv[1]))\nlock.acquire()\nprint('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
    wait_for(holder, b"held")
    lock = Lock(path)
    assert not lock.try_acquire()
    assert lock.holder() == Holder(holder.pid)
    holder.kill()
    holder.communicate()
    assert lock.acquire()
    lock.release()
    assert not path.exists()
