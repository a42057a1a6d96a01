"""After fetching, a step reaches nobody and sees what its plan names; what it had is written down.

Where nothing else is said, these use the namespaces of the machine that runs them.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.test_engine_runner import Bench, plan_of, step

from torchsmith.diagnose.diagnose import diagnose
from torchsmith.engine import events, execute
from torchsmith.engine.execute import history
from torchsmith.engine.recorder import Recorder
from torchsmith.engine.view import Degree
from torchsmith.errors import StepFailed
from torchsmith.plan.models import Kind, Step

pytestmark = pytest.mark.unit


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def server() -> Iterator[int]:
    """A port of this machine where somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def reaching(port: int) -> Step:
    """A compile step that calls somebody."""
    return step(
        "compile", f"exec 3<>/dev/tcp/127.0.0.1/{port}", "echo made >made", kind="compile",
        outputs=["made"],
    )  # fmt: skip


def started(bench: Bench) -> list[events.StepStarted]:
    return [event for event in bench.events if isinstance(event, events.StepStarted)]


def networks(bench: Bench) -> list[str]:
    return [event.network for event in started(bench)]


def test_a_compile_step_reaches_nobody(bench: Bench, server: int, tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as caught:
        bench.run(plan_of(reaching(server)))
    assert networks(bench) == ["none"]
    found = diagnose(Path(caught.value.log).read_text().splitlines())
    assert [item.id for item in found.named] == ["download-while-compiling"]
    # Nothing is kept that a later build would take for a result.
    assert not list(tmp_path.rglob("made"))


def test_its_own_loopback_works(bench: Bench) -> None:
    talk = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(s.getsockname())"
    )
    made = step("compile", f'python3 -c "{talk}"', "touch made", kind="compile", outputs=["made"])
    bench.run(plan_of(made))


def test_what_may_reach_out_says_why_and_has_a_key_of_its_own(bench: Bench, server: int) -> None:
    closed = plan_of(reaching(server))
    opened = plan_of(replace(reaching(server), network="asked for"))
    assert closed.steps[0].key != opened.steps[0].key
    bench.run(opened)
    assert networks(bench) == ["open"]
    fetch = step("fetch", f"exec 3<>/dev/tcp/127.0.0.1/{server}", "touch got", outputs=["got"])
    bench.run(plan_of(fetch))
    assert networks(bench) == ["open"]


def test_provenance_is_told_what_network_there_was(bench: Bench) -> None:
    made = step("compile", "touch made", kind="compile", outputs=["made"])
    package = step("package", "touch kept", kind="package", needs=["compile"], outputs=["kept"])
    plan = plan_of(made, package)
    bench.run(plan)
    recorder = Recorder(bench.journal, bench.journal.runs()[0].id, lambda _: None)
    told = history(plan.steps[1], {item.id: item for item in plan.steps}, recorder)
    assert '"network":"none"' in told


@pytest.mark.parametrize("network", ["", "asked for: --online"])
def test_a_package_had_the_network_that_its_compiles_had(bench: Bench, network: str) -> None:
    patch = step("patch", "touch patched", kind="patch", outputs=["patched"])
    made = step("compile", "touch made", kind="compile", needs=["patch"], outputs=["made"])
    packed = step("pack", "touch packed", kind="package", needs=["compile"], outputs=["packed"])
    sign = step("sign", "touch kept", kind="package", needs=["pack"], outputs=["kept"])
    plan = plan_of(patch, replace(made, network=network), packed, sign)
    bench.run(plan)
    recorder = Recorder(bench.journal, bench.journal.runs()[0].id, lambda _: None)
    told = json.loads(history(plan.steps[3], {item.id: item for item in plan.steps}, recorder))
    assert told["steps"]["pack"]["network"] == ("open" if network else "none")


def source(text: str) -> Step:
    """A step that brings a program which the plan knows nothing of."""
    lines = "".join(f"echo {shlex.quote(line)} >>src/build.sh; " for line in text.splitlines())
    return step("fetch", f"mkdir -p src; {lines}true", outputs=["src"])


def build(kind: Kind = "compile") -> Step:
    return step(
        "compile", "bash src/build.sh >made", kind=kind, needs=["fetch"], outputs=["made"]
    )  # fmt: skip


def test_a_name_that_is_asked_for_is_in_the_log_and_in_the_diagnosis(bench: Bench) -> None:
    """Also where the program itself keeps silent about it."""
    ask = (
        "python3 -c \"import socket; socket.getaddrinfo('github.com', 443)\" 2>/dev/null "
        "|| { echo download failed; exit 1; } >&2"
    )
    with pytest.raises(StepFailed) as caught:
        bench.run(plan_of(source(f"{ask}"), build()))
    lines = Path(caught.value.log).read_text().splitlines()
    assert lines.count("this step has no network, and asked for github.com") == 1
    assert [item.title for item in diagnose(lines).named] == [
        "The build wanted to download something: github.com"
    ]
    # What answered ended with the step.
    view = str(bench.work / ".torchsmith/scripts/compile.json").encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if view in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("kind", ["package", "verify"])
def test_packing_and_proving_reach_nobody_either(bench: Bench, server: int, kind: Kind) -> None:
    with pytest.raises(StepFailed):
        bench.run(plan_of(replace(reaching(server), kind=kind)))
    assert networks(bench) == ["none"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A caller's home with a key in it, and a program."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("private")
    (home / "tools/bin").mkdir(parents=True)
    (home / "tools/words").write_text("found\n")
    program = home / "tools/bin/mine"
    program.write_text('#!/bin/sh\ncat "${0%/*}/../words"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize("kind", ["patch", "configure", "compile", "package", "verify"])
def test_what_the_plan_does_not_name_cannot_be_read(bench: Bench, home: Path, kind: Kind) -> None:
    other = bench.store.root / "work/other"
    other.mkdir(parents=True)
    (other / "theirs").touch()
    program = f"if cat {home}/.ssh/id; then exit 1; fi\nls -A {home} {other} || true"
    bench.run(plan_of(source(program), build(kind)))
    assert [event.files for event in started(bench)] == ["open", "declared"]
    assert (bench.work / "made").read_text() == ""


def test_only_results_can_be_written(bench: Bench, tmp_path: Path) -> None:
    outside = (tmp_path / "beside", bench.store.root / "entries/x")
    inputs = ("src/more", "src/build.sh", ".torchsmith/placed/x")
    program = (
        # In a /tmp of its own it may.
        f"touch {' '.join(map(str, outside))} || true\n"
        f"for name in {' '.join(inputs)}; do if touch $name; then echo $name; fi; done\n"
        "for name in / /usr /etc /proc/sys/kernel; do test ! -w $name || echo $name; done"
    )
    bench.run(plan_of(source(program), build()))
    assert (bench.work / "made").read_text() == ""
    assert not [place for place in outside if place.exists()]


def test_results_that_a_step_does_not_need_are_hidden(bench: Bench) -> None:
    other = step("other", "mkdir -p theirs; touch theirs/a", outputs=["theirs"])
    kept = step("keep", "mkdir -p mine; touch mine/a", outputs=["mine"])
    compiled = replace(build(), needs=("fetch", "keep"))
    program = "ls mine theirs; touch /tmp/scratch; test -e $TMPDIR/scratch && echo own"
    bench.run(plan_of(other, kept, source(program), compiled))
    assert (bench.work / "made").read_text() == "mine:\na\n\ntheirs:\nown\n"


def test_what_the_plan_names_is_there(bench: Bench, home: Path) -> None:
    """A program on the PATH with what lies around it; a folder that a variable names."""
    (bench.folder / "data").mkdir()
    (bench.folder / "data/a").write_text("data\n")
    (home / "bin").mkdir()
    (home / "bin/linked").symlink_to(home / "tools/bin/mine")
    bench.environment["PATH"] += f":{home}/tools/bin:{home}/bin"
    compiled = replace(build(), env=(("DATA", str(bench.folder / "data")),))
    bench.run(plan_of(source("mine; linked >/dev/null; cat $DATA/a; ls ~/.ssh || true"), compiled))
    assert (bench.work / "made").read_text() == "found\ndata\n"


def test_a_name_with_spaces_and_links_on_the_way_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "a real place").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a real place")
    bench = Bench(tmp_path / "link")
    bench.run(plan_of(source("echo built"), build()))
    assert (bench.work / "made").read_text() == "built\n"


def test_a_network_that_is_allowed_opens_no_files(bench: Bench, server: int, home: Path) -> None:
    program = f"exec 3<>/dev/tcp/127.0.0.1/{server}\nif cat {home}/.ssh/id; then exit 1; fi"
    bench.run(plan_of(source(program), replace(build(), network="asked for: --online")))
    assert networks(bench) == ["open", "open"]
    assert [event.files for event in started(bench)] == ["open", "declared"]


def test_where_nobody_can_be_cut_off_that_is_said_once(
    bench: Bench, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "degree", lambda: Degree(network=False, files=False))
    second = replace(reaching(server), id="second", outputs=("other",), commands=("touch other",))
    bench.run(plan_of(reaching(server), second))
    assert networks(bench) == ["not closed"] * 2
    assert [event.files for event in started(bench)] == ["not closed"] * 2
    told = [event.message for event in bench.events if isinstance(event, events.Warned)]
    assert len(told) == 1
    assert "cut off here from the network" in told[0]
    assert "and from files" in told[0]


# In a user namespace of one's own the number of further ones can be set.
REFUSED = """
import ctypes, os, sys
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
"""
# A process that may do nothing to the machine, whoever runs it: 24 is PR_CAPBSET_DROP. The kernel
# gives user 0 a namespace of its own only with CAP_SETFCAP.
ORDINARY = """
import ctypes, os, sys
for capability in set(range(64)) - {31}:
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
"""
AGAIN = """
from torchsmith.engine.view import degree
print(degree())
"""


@pytest.mark.parametrize(
    ("before", "rights", "wanted"),
    [
        (["unshare", "--user", "--map-root-user"], REFUSED + ORDINARY, False),
        ([], ORDINARY, True),
    ],
    ids=["no more namespaces", "an ordinary user"],
)
def test_what_the_machine_allows_is_tried(before: list[str], rights: str, wanted: bool) -> None:
    program = f"{rights}\nos.execv(sys.executable, [sys.executable, '-c', {AGAIN!r}])"
    words = [*before, sys.executable, "-c", program]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout == f"Degree(network={wanted}, files={wanted})\n"


def test_it_holds_for_an_ordinary_user(tmp_path: Path) -> None:
    """The same claims, by a process without rights: through a user namespace."""
    claims = "cannot_be_read or only_results or packing or is_asked_for or plan_names"
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    words += [f"--basetemp={tmp_path / 'inner'}", "-k", claims, __file__]
    program = f"{ORDINARY}\nos.execv(sys.executable, {words!r})"
    # It runs within this test, not beside it as one of several workers.
    env = {name: value for name, value in os.environ.items() if "XDIST" not in name}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=False, capture_output=True, env=env)
    assert done.returncode == 0, done.stdout.decode()
