"""What an image is started with: the arithmetic of shared memory, and each engine's words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from torchsmith.errors import HostError, TorchsmithError, UsageError
from torchsmith.images.running import (
    USUAL_BATCH,
    Ended,
    Loading,
    RunOptions,
    Start,
    chosen_gpus,
    explained,
    gpu_words,
    parse_gpus,
    parse_mount,
    parse_size,
    prepared,
    run_words,
    shm_bytes,
    shortages,
    user_words,
    withheld,
)
from torchsmith.images.tools import TOOLS

pytestmark = pytest.mark.unit

GIB = 1 << 30


def test_the_arithmetic_of_workers_is_in_the_message() -> None:
    (shortage,) = shortages(Loading(8), 64 << 20, 64 * GIB)
    assert shortage.startswith(
        "8 workers may fill 2.44 GiB of /dev/shm: (8 x 2 made ahead + 1 in use) x 147 MiB"
    )
    assert "it has 64 MiB. Take --shm-size 3G" in shortage
    assert Loading(8).shm == 17 * USUAL_BATCH


def test_memory_counts_what_lies_in_shm_and_every_process() -> None:
    (shortage,) = shortages(Loading(4, 100 << 20), 8 * GIB, 2 * GIB)
    assert shortage.startswith("4 workers may take 2.13 GiB of memory: 900 MiB in /dev/shm + 5 ")
    assert list(shortages(Loading(4, 100 << 20), 8 * GIB, 4 * GIB)) == []


def test_nothing_is_said_without_workers_or_where_nothing_is_known() -> None:
    assert list(shortages(Loading(0), 1, 1)) == []
    assert list(shortages(Loading(64), None, None)) == []


def test_shm_larger_than_memory_is_refused_and_the_usual_one_made_smaller() -> None:
    with pytest.raises(UsageError, match=r"16G is more than the 8 GiB of memory") as refused:
        shm_bytes("16G", "8G", 8 * GIB)
    assert "--shm-size 4096M" in refused.value.hint
    assert shm_bytes(None, "8G", 4 * GIB) == 2 * GIB
    assert shm_bytes(None, "8G", 64 * GIB) == 8 * GIB
    assert shm_bytes("512 MiB", "8G", None) == 512 << 20


@pytest.mark.parametrize("text", ["", "8", "G", "8X", "-1G", "8 G B", "0G", "٨G", "1e3G"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shm-size"):
        parse_size("--shm-size", text)


def test_gpus_are_named_in_each_engines_way() -> None:
    assert gpu_words("podman", ("all",)) == ["--device", "nvidia.com/gpu=all"]
    assert gpu_words("podman", parse_gpus("0, 1")) == [
        *("--device", "nvidia.com/gpu=0"),
        *("--device", "nvidia.com/gpu=1"),
    ]
    assert gpu_words("docker", ("all",)) == ["--gpus", "all"]
    assert gpu_words("docker", ("0", "1")) == ["--gpus", '"device=0,1"']
    assert gpu_words("docker", parse_gpus("none")) == []
    for text in ("", "first", "0,,1", "0;1", "all,0", "GPU-x"):
        with pytest.raises(UsageError, match="names no GPUs"):
            parse_gpus(text)


def machine(folder: Path, *, driver: bool, described: bool) -> Path:
    for name, there, text in (
        ("dev/nvidiactl", driver, ""),
        ("etc/cdi/nvidia.yaml", described, "kind: nvidia.com/gpu\n"),
    ):
        if there:
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(text)
    return folder


def test_a_machine_with_gpus_gives_all_of_them_unasked(tmp_path: Path) -> None:
    root = machine(tmp_path, driver=True, described=True)
    assert chosen_gpus("podman", None, root) == ("all",)
    assert chosen_gpus("podman", "none", root) == ()
    assert chosen_gpus("docker", "1", root) == ("1",)


def test_gpus_that_cannot_be_given_are_refused_if_asked_for_and_told_of_if_not(
    tmp_path: Path,
) -> None:
    bare = machine(tmp_path / "bare", driver=False, described=False)
    assert chosen_gpus("podman", None, bare) == ()
    assert withheld("podman", None, bare) == ""
    with pytest.raises(HostError, match="no NVIDIA driver"):
        chosen_gpus("docker", "all", bare)
    undescribed = machine(tmp_path / "undescribed", driver=True, described=False)
    assert chosen_gpus("podman", None, undescribed) == ()
    assert "nvidia-ctk cdi generate" in withheld("podman", None, undescribed)
    with pytest.raises(HostError, match="podman does not know"):
        chosen_gpus("podman", "all", undescribed)


def test_the_words_of_an_engine_hold_every_wish() -> None:
    start = Start(
        "lab:ann",
        ("python", "train.py"),
        shm=8 * GIB,
        gpus=("all",),
        user="1000:1000",
        mounts=("/data:/data:ro",),
        env=("TZ=Asia/Seoul",),
        memory=GIB,
        ulimits=("--ulimit", "memlock=-1:-1"),
        stdin="terminal",
        network="host",
    )
    words = run_words("docker", start)
    assert words[:2] == ["run", "--pull=never"]
    assert words[-3:] == ["lab:ann", "python", "train.py"]
    for wish in (
        *("--init", "--interactive", "--tty", f"--shm-size={8 * GIB}b", f"--memory={GIB}b"),
        *("memlock=-1:-1", "/data:/data:ro", "TZ=Asia/Seoul", "--network=host"),
    ):
        assert wish in words
    assert "--ipc=host" in run_words("podman", Start("lab:ann"))
    assert not {"--interactive", "--tty"} & set(run_words("docker", Start("lab:ann")))


def test_the_caller_is_the_same_person_inside() -> None:
    own = f"{os.getuid()}:{os.getgid()}"
    assert user_words("docker", "caller") == ["--user", own]
    assert user_words("podman", "caller")[-1] == own
    assert user_words("podman", "") == []
    for text in ("a b", "root;id", "-1", "1000:", "Ann"):
        with pytest.raises(UsageError, match="is not a user"):
            user_words("podman", text)


def test_a_mount_is_a_folder_that_is_there_or_a_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert parse_mount("./data:/data:ro") == f"{tmp_path}/data:/data:ro"
    assert parse_mount("cache:/root/.cache") == "cache:/root/.cache"
    for text in ("", "data", ":/data", "./data:data", "./missing:/data"):
        with pytest.raises(UsageError, match="--mount"):
            parse_mount(text)


def test_a_bus_error_is_known_by_its_code_and_by_its_words() -> None:
    (by_code,) = explained(Ended(135), 64 << 20)
    assert by_code.startswith("known: DataLoader workers ran out of shared memory")
    assert "/dev/shm had 64 MiB here" in by_code
    lines = ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.",)
    assert list(explained(Ended(1, lines), 64 << 20)) == [by_code]
    assert list(explained(Ended(1, ("ValueError: mine",)), 64 << 20)) == []
    assert list(explained(Ended(0), 64 << 20)) == []


def test_a_dry_run_needs_no_image() -> None:
    # An engine that knows no image at all.
    engine = TOOLS["podman"]("/bin/false", "5.0", {})
    wish = RunOptions(what="lab/torch:2.6", command=("python",), gpus="none")
    ready = prepared(engine, wish, None, terminal=False, piped=False, dry_run=True)
    assert ready.words[-2:] == ("lab/torch:2.6", "python")
    with pytest.raises(TorchsmithError):
        prepared(engine, wish, None, terminal=False, piped=False)


def test_an_image_says_itself_how_much_shared_memory_it_wants(tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    answer = json.dumps([{"Id": "1", "Config": {"Labels": {"dev.torchsmith.shm-size": "3M"}}}])
    podman.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    podman.chmod(0o755)
    engine = TOOLS["podman"](str(podman), "5.0", {})
    wish = RunOptions(what="lab:alice", command=("python",), gpus="none")
    ready = prepared(engine, wish, None, terminal=False, piped=False)
    assert ready.shm == 3 << 20
