"""CPU-seconds of compiling in batches, as a ratio to compiling file by file.

    python benchmarks/batches.py BUILD_FOLDER [--files 150] [--seed 1]

BUILD_FOLDER is a configured CMake and Ninja build, PyTorch's say, as `torchsmith build` leaves it
in its work folder. Batches and files outside any batch are drawn in the proportion in which the
build has them, and each is compiled both ways, one after the other, without a compiler cache.
Nothing in the folder is changed but what its code generators write.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torchsmith.host.limits import read_cores
from torchsmith.toolchain.accel.accelerate import FOLDER, accelerate
from torchsmith.toolchain.accel.compile_batch import DEPS, IN, OUT, Batch, Member
from torchsmith.toolchain.accel.lessons import shipped_lessons
from torchsmith.toolchain.accel.ninja_file import plain, read_statements


def cpu_seconds(command: Sequence[str], folder: Path) -> float:
    """What a command and everything it starts takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def together(batch: Batch, folder: Path, scratch: Path) -> float:
    """Compile a batch as a build does."""
    members = tuple(
        Member(member.name, member.path, str(scratch / f"{number}.o"))
        for number, member in enumerate(batch.members)
    )
    place = scratch / "batch.json"
    place.write_text(Batch(batch.command, members, once=batch.once).text())
    program = "torchsmith.toolchain.accel.compile_batch"
    return cpu_seconds([sys.executable, "-P", "-m", program, str(place)], folder)


def apart(batch: Batch, folder: Path, scratch: Path) -> float:
    """Compile a batch's files one by one."""
    values = {OUT: str(scratch / "one.o"), DEPS: str(scratch / "one.d")}
    return sum(
        cpu_seconds([{**values, IN: member.path}.get(word, word) for word in batch.command], folder)
        for member in batch.members
    )


def lone_command(command: str, output: str, scratch: Path) -> list[str]:
    """The command of a file outside any batch, its object elsewhere."""
    return [str(scratch / "lone.o") if word == output else word for word in shlex.split(command)]


def main() -> None:
    """Draw, compile both ways, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--release", default="2.6.0", help="whose profile of clashes to use")
    given = parser.parse_args()
    folder = given.folder.resolve()
    os.environ["CCACHE_DISABLE"] = "1"
    ninja = shutil.which("ninja") or sys.exit("error: ninja is not on PATH")
    lessons = shipped_lessons("torch", given.release)
    made = accelerate(folder, ninja, lessons, cores=read_cores(), lessons_file="")
    if made is None:
        sys.exit(f"error: {folder} has nothing to put into batches")
    asked = subprocess.check_output([ninja, "-f", made, "-t", "compdb"], cwd=folder, text=True)
    commands = {item["output"]: item["command"] for item in json.loads(asked)}
    statements = read_statements(made.read_text().splitlines())
    edges = [item for item in statements if item.rule == "torchsmith_batch"]
    lone = [
        item
        for item in statements
        if item.rule.startswith("CXX_COMPILER") and len(item.outputs) == 1
    ]
    total = len(lone) + sum(len(item.inputs) for item in edges)
    share = min(1.0, given.files / total)
    draw = random.Random(given.seed)
    draw.shuffle(edges)
    chosen, files = [], 0
    while edges and files < share * (total - len(lone)):
        chosen.append(edges.pop())
        files += len(chosen[-1].inputs)
    drawn_lone = draw.sample(lone, max(1, round(share * len(lone))))
    wanted = {name for item in (*chosen, *drawn_lone) for name in (*item.order_only, *item.inputs)}
    made_by_build = {plain(name) for name in wanted if not plain(name).startswith("/")}
    if made_by_build:
        subprocess.run([ninja, *sorted(made_by_build)], cwd=folder, check=True)
    stock = ours = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for edge in chosen:
            name = next(plain(item) for item in edge.implicit if f"{FOLDER}/" in item)
            batch = Batch.read(Path(name))
            mine = together(batch, folder, Path(scratch))
            theirs = apart(batch, folder, Path(scratch))
            ours, stock = ours + mine, stock + theirs
            print(f"{len(edge.inputs):3} files: {theirs:7.1f} -> {mine:6.1f} CPU-s", flush=True)
        for edge in drawn_lone:
            output = plain(edge.outputs[0])
            alone = cpu_seconds(lone_command(commands[output], output, Path(scratch)), folder)
            ours, stock = ours + alone, stock + alone
            print(f"  1 file:  {alone:7.1f} CPU-s both ways", flush=True)
    compared = files + len(drawn_lone)
    print(f"{compared} of {total} files: stock {stock:.0f}, ours {ours:.0f} CPU-s")
    print(f"ours / stock = {ours / stock:.2f}")


if __name__ == "__main__":
    main()
