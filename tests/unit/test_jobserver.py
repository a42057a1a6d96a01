"""The jobserver's pipe."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from torchsmith.toolchain.admission_server import Jobserver

pytestmark = pytest.mark.unit


def free_slots(jobserver: Jobserver) -> int:
    """How many tokens lie in the pipe."""
    count = 0
    while jobserver.take():
        count += 1
    jobserver.put(count)
    return count


def test_the_pipe_holds_a_token_less_than_there_are_cores(tmp_path: Path) -> None:
    with Jobserver(tmp_path / "jobs", 4) as jobserver:
        assert stat.S_ISFIFO((tmp_path / "jobs").stat().st_mode)
        assert jobserver.makeflags == f" -j4 --jobserver-auth=fifo:{tmp_path / 'jobs'}"
        assert free_slots(jobserver) == 3


def test_a_client_takes_tokens_and_gives_them_back(tmp_path: Path) -> None:
    with Jobserver(tmp_path / "jobs", 2) as jobserver:
        client = os.open(jobserver.path, os.O_RDWR | os.O_NONBLOCK)
        token = os.read(client, 1)
        assert not jobserver.take()
        os.write(client, token)
        os.close(client)
        assert jobserver.take()
        jobserver.put()
        assert free_slots(jobserver) == 1


def test_one_core_means_no_tokens(tmp_path: Path) -> None:
    with Jobserver(tmp_path / "jobs", 1) as jobserver:
        assert not jobserver.take()


def test_the_pipe_goes_with_the_jobserver(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Jobserver(tmp_path / "jobs", 4):
        raise RuntimeError
    assert not list(tmp_path.iterdir())
