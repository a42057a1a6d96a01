"""A store that several hosts build into: its locks hold between them, its journals are read as one.

Another host is another kernel: its processes are none of ours, and on some filesystems neither
are its flocks.
"""

from __future__ import annotations

import fcntl
import json
import platform
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchsmith.engine.journal import Journal, journal_of, share
from torchsmith.engine.locks import Holder, Lease, Pulse
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.errors import UsageError
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step

pytestmark = pytest.mark.unit
# Four looks this far apart take a host for dead: a busy machine may keep it from counting a while.
BEAT = 0.25


@pytest.fixture
def no_flock_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network folder whose locks stay on each host."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Pulse]]:
    made = [Pulse(tmp_path / "alive", BEAT) for _ in range(3)]
    for number, pulse in enumerate(made):
        pulse.boot = f"kernel {number}"
    yield made
    for pulse in made:
        pulse.stop()


def die(pulse: Pulse) -> None:
    """Stop counting without a word, as a host that lost its power."""
    pulse._stop.set()
    assert pulse._thread is not None
    pulse._thread.join()


@pytest.mark.usefixtures("no_flock_between_hosts")
def test_one_host_waits_for_another(tmp_path: Path, hosts: list[Pulse]) -> None:
    one, two = (Lease(tmp_path / "lock", pulse) for pulse in hosts[:2])
    assert one.try_acquire()
    # As long as it counts it lives, however often one looks.
    until = time.monotonic() + 10 * BEAT
    while time.monotonic() < until:
        assert not two.try_acquire()
        time.sleep(BEAT / 4)
    assert two.holder().pid == one.holder().pid
    assert two.holder().host
    one.release()
    assert two.try_acquire()
    two.release()
    assert list(tmp_path.glob("lock*")) == []


@pytest.mark.usefixtures("no_flock_between_hosts")
def test_a_dead_hosts_lock_is_taken_over(tmp_path: Path, hosts: list[Pulse]) -> None:
    one, two = (Lease(tmp_path / "lock", pulse) for pulse in hosts[:2])
    assert one.try_acquire()
    die(hosts[0])
    assert two.acquire()
    assert one.is_lost()
    # What it holds by now is another's, and stays.
    one.release()
    assert not two.is_lost()
    assert not Lease(tmp_path / "lock", hosts[2]).try_acquire()
    two.release()
    assert list(tmp_path.glob("lock*")) == []


@pytest.mark.usefixtures("no_flock_between_hosts")
def test_a_host_that_was_cut_off_is_told_so(tmp_path: Path, hosts: list[Pulse]) -> None:
    lost = threading.Event()
    hosts[0].on_lost = lambda _: lost.set()
    one = Lease(tmp_path / "lock", hosts[0])
    assert one.try_acquire()
    # As if another had waited long enough.
    (tmp_path / "lock.lease").unlink()
    assert Lease(tmp_path / "lock", hosts[1]).try_acquire()
    assert lost.wait(10)


@pytest.mark.usefixtures("no_flock_between_hosts")
def test_of_many_that_take_over_one_succeeds(tmp_path: Path, hosts: list[Pulse]) -> None:
    for round_ in range(20):
        path = tmp_path / f"lock-{round_}"
        dead = {"host": "h", "pid": 1, "boot": "gone", "pulse": "none", "number": "0"}
        path.with_name(f"{path.name}.lease").write_text(json.dumps(dead), encoding="utf-8")
        start = threading.Barrier(3)
        taken: list[bool] = []

        def attempt(lease: Lease, start: threading.Barrier, taken: list[bool]) -> None:
            start.wait()
            taken.append(lease.try_acquire())

        leases = [Lease(path, pulse) for pulse in hosts]
        threads = [threading.Thread(target=attempt, args=(lease, start, taken)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == [False, False, True]
        for lease in leases:
            lease.release()


def test_on_one_host_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    share(Store(tmp_path))
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom torchsmith.engine.store import Store\n"
        "lock = Store(Path(sys.argv[1])).key_lock('k')\nlock.acquire()\nprint('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    lock = Store(tmp_path).key_lock("k")
    assert not lock.try_acquire()
    assert lock.holder().pid == holder.pid
    holder.kill()
    holder.communicate()
    # No need to wait for its count to stand still: the kernel knows.
    assert lock.try_acquire()
    lock.release()
    assert list((tmp_path / "locks").iterdir()) == []


def test_locks_of_a_store_of_one_host_leave_no_sign(tmp_path: Path) -> None:
    lock = Store(tmp_path).key_lock("k")
    assert lock.acquire()
    assert lock.holder().host == ""
    lock.release()
    assert not (tmp_path / "alive").exists()
    assert str(Holder(7)) == "pid 7"
    assert str(Holder(7, "n1")) == "pid 7 on n1"


def test_every_host_reads_what_all_of_them_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal_of(Store(tmp_path))
    old = before.begin("old")
    before.end(old, "done")
    before.close()
    store = share(Store(tmp_path))
    runs: dict[str, str] = {}
    for name in ("n1", "n2"):
        monkeypatch.setattr(platform, "node", lambda name=name: name)
        journal = journal_of(store)
        runs[name] = journal.begin("plan")
        journal.step(runs[name], "compile", "done", key="k")
        journal.step(runs[name], "compile", "running", key="k")
        journal.close()
    monkeypatch.setattr(platform, "node", lambda: "n3")
    journal = journal_of(store)
    assert [run.id for run in journal.runs()] == [runs["n2"], runs["n1"], old]
    found = journal.run(runs["n1"])
    assert found is not None
    assert found.plan == "plan"
    # Nobody on n1 shows that it lives.
    assert found.status == "interrupted"
    assert [step.run for step in journal.earlier("", "", "k")] == [runs["n2"], runs["n1"]]
    assert journal.steps(runs["n2"])[0].status == "interrupted"
    (tmp_path / "alive").mkdir()
    pid = sqlite3.connect(tmp_path / "journals/n1.db").execute("SELECT pid FROM runs").fetchone()[0]
    (tmp_path / "alive" / f"n1-{pid}-0").touch()
    assert [run.status for run in journal.runs()] == ["interrupted", "running", "done"]
    assert {path.name for path in (tmp_path / "journals").glob("*.db")} == {
        "n1.db",
        "n2.db",
        "n3.db",
    }
    # A write-ahead log would be of no use to another host.
    assert not list(tmp_path.rglob("*-wal"))


def test_a_host_that_died_writing_still_tells_what_it_had_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = share(Store(tmp_path))
    program = (
        "import os, platform, sys\nfrom pathlib import Path\n"
        "from torchsmith.engine.store import Store\n"
        "from torchsmith.engine.journal import journal_of\n"
        "platform.node = lambda: 'n1'\n"
        "journal = journal_of(Store(Path(sys.argv[1])))\nprint(journal.begin('plan'))\n"
        "with journal._database.transaction() as database:\n"
        # So little memory that what is changed goes to the file before it is committed.
        "    database.execute('PRAGMA cache_size = 1')\n"
        "    for number in range(2000):\n"
        "        row = ('r', number, 'k' * 500, 't', 'done')\n"
        "        database.execute('INSERT INTO steps (run, step, key, title, status)"
        " VALUES (?, ?, ?, ?, ?)', row)\n"
        "    sys.stdout.flush()\n    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    assert (tmp_path / "journals/n1.db-journal").stat().st_size
    monkeypatch.setattr(platform, "node", lambda: "n2")
    journal = journal_of(store)
    assert [run.id for run in journal.runs()] == [done.stdout.strip()]
    assert journal.steps("r") == []
    # It is the dead host's own to mend.
    assert (tmp_path / "journals/n1.db-journal").stat().st_size


def test_a_journal_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = share(Store(tmp_path))
    journal = journal_of(store)
    run = journal.begin("plan")
    (tmp_path / "journals" / "broken.db").write_bytes(b"no database at all" * 100)
    assert [item.id for item in journal.runs()] == [run]


def test_a_store_in_use_is_not_shared_under_its_users(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.begin("plan")
    with pytest.raises(UsageError, match="in use"):
        share(Store(tmp_path))
    assert not Store(tmp_path).shared
    journal.close()
    assert share(Store(tmp_path)).shared
    assert share(Store(tmp_path)).shared


class Build:
    """Plans that run into one store at the same time, each in a work folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.store = share(Store(folder / "store"))
        self.folder = folder

    def run(self, name: str, command: str) -> dict[str, str]:
        step = Step("make", "environment", "Make it", commands=(command,), outputs=("out",))
        plan = with_keys(Plan(name, (), (step,)), {})
        journal = journal_of(self.store)
        try:
            done = run_plan(plan, self.store, journal, work=self.folder / name)
        finally:
            journal.close()
        return dict(done.steps)

    def all(self, command: str) -> list[dict[str, str]]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda name: self.run(name, command), ("a", "b", "c")))


def test_what_works_anywhere_is_made_once(tmp_path: Path) -> None:
    build = Build(tmp_path)
    done = build.all(f"sleep 0.3; echo x >out; echo made >>{tmp_path}/count")
    assert sorted(item["make"] for item in done) == ["cached", "cached", "done"]
    assert (tmp_path / "count").read_text() == "made\n"
    assert all((tmp_path / name / "out").exists() for name in "abc")


def test_what_works_in_one_place_is_made_in_each_and_at_once(tmp_path: Path) -> None:
    build = Build(tmp_path)
    command = f"pwd >out; date +%s.%N >>{tmp_path}/began; sleep 0.7; date +%s.%N >>{tmp_path}/ended"
    done = build.all(command)
    assert [item["make"] for item in done] == ["done"] * 3
    began = sorted(map(float, (tmp_path / "began").read_text().split()))
    ended = sorted(map(float, (tmp_path / "ended").read_text().split()))
    # The first shows what it is; the others do not wait for each other.
    assert began[1] > ended[0]
    assert began[2] < ended[1]
