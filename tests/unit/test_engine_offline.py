"""After fetching, a step reaches nobody, unless its plan says why; what it had is written down."""

from __future__ import annotations

import socket
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
from torchsmith.errors import StepFailed
from torchsmith.plan.models import Step

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


def networks(bench: Bench) -> list[str]:
    return [event.network for event in bench.events if isinstance(event, events.StepStarted)]


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


def test_where_nobody_can_be_cut_off_that_is_said_once(
    bench: Bench, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "can_be_had", lambda: False)
    second = replace(reaching(server), id="second", outputs=("other",), commands=("touch other",))
    bench.run(plan_of(reaching(server), second))
    assert networks(bench) == ["not closed"] * 2
    told = [event.message for event in bench.events if isinstance(event, events.Warned)]
    assert len(told) == 1
    assert "cut off from the network" in told[0]
