"""Whether two wheels of torch are the same to those who use them, however each was compiled.

    python -m benchmarks.same_torch STOCK.whl OURS.whl [--tree SOURCE] [--tests test_torch ...]
    python -m benchmarks.same_torch STOCK.whl --save STOCK.json.gz [--tree SOURCE]

Compares the symbols their libraries export, the operators and schemas they register and the
dispatcher's table of each; with --tree, the source they were built from, it runs some of PyTorch's
own tests with both and compares every outcome. Run it with a Python that has what torch requires,
numpy, pytest and expecttest. Ends with 0 if nothing differs. With --save one wheel is described in
a file, which can stand for it on another machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from torchsmith.host.limits import read_cores

TESTS = (
    "test_autograd",
    "test_indexing",
    "test_shape_ops",
    "test_sort_and_select",
    "test_tensor_creation_ops",
    "test_torch",
    "test_type_promotion",
    "test_view_ops",
)

# A table names where each kernel was registered: the file counts, not how the compiler came to it.
_REGISTERED = """
import json, os, re, sys
import torch

def named(text):
    place = re.compile(r"(registered at )(\\S*?)([^/\\s]+:\\d+)")
    return place.sub(lambda found: found[1] + found[3], text)

operators = sorted(torch._C._dispatch_get_all_op_names())
json.dump(
    {
        "schemas": sorted(str(schema) for schema in torch._C._jit_get_all_schemas()),
        "operators": operators,
        "dispatcher": {name: named(torch._C._dispatch_dump_table(name)) for name in operators},
        "config": torch.__config__.show(),
        "version": torch.__version__,
    },
    sys.stdout,
)
"""


def installed(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel beside nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), str(wheel)], check=True)
    return folder


def environment(place: Path) -> dict[str, str]:
    """This Python's, with an unpacked wheel before everything else it has."""
    return {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def registered(place: Path) -> dict[str, Any]:
    """What a torch registers as it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", _REGISTERED],
        cwd=place,
        env=environment(place),
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def exported(place: Path) -> tuple[set[str], set[str]]:
    """The symbols a torch's libraries export: those of which there is one, and the weak ones.

    A weak one is a copy of an inline function or a template: the compiler leaves out those it
    needs no copy of, which depends on what else it compiles with it.
    """
    strong: set[str] = set()
    weak: set[str] = set()
    for library in sorted((place / "torch").rglob("*.so")):
        command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in said.splitlines():
            name, kind = line.split(" ")[:2]
            kept = weak if kind in "VvWwu" else strong
            kept.add(f"{library.name}: {name}")
    return strong, weak


def outcomes(place: Path, tree: Path, test: str, work: Path) -> dict[str, str]:
    """How each test of one of PyTorch's files ends."""
    report = work / f"{place.name}-{test}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", f"--basetemp={work / (place.name + test)}", f"{test}.py"]
    with (work / f"{place.name}-{test}.log").open("wb") as log:
        subprocess.run(
            command,
            cwd=tree / "test",
            env={**environment(place), "OMP_NUM_THREADS": "1"},
            check=False,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    if not report.exists():
        raise SystemExit(f"{test} could not be run: see {work}")
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        (how,) = tags & {"failure", "error", "skipped"} or {"passed"}
        found[f"{case.get('classname')}.{case.get('name')}"] = how
    return found


def differences(kind: str, stock: Iterable[str], ours: Iterable[str]) -> int:
    """Say how two sets differ; the number of names that are in one alone."""
    one, other = set(stock), set(ours)
    lost, new = sorted(one - other), sorted(other - one)
    alike = f"{len(one & other):,} {kind} the same"
    print(alike + (f", {len(lost):,} in stock alone, {len(new):,} in ours" * bool(lost or new)))
    for mark, names in (("-", lost), ("+", new)):
        for name in names[:5]:
            print(f"   {mark} {name[:150]}")
    return len(lost) + len(new)


def describe(
    wheel: Path, work: Path, tree: Path | None = None, tests: Sequence[str] = TESTS
) -> dict[str, Any]:
    """Everything a wheel can differ in from another; of one described before, that."""
    if wheel.name.endswith(".json.gz"):
        with gzip.open(wheel, "rt", encoding="utf-8") as file:
            read: dict[str, Any] = json.load(file)
            return read
    work.mkdir(parents=True, exist_ok=True)
    place = installed(wheel, work / "installed")
    strong, weak = exported(place)
    found = {"strong": sorted(strong), "weak": sorted(weak), **registered(place)}
    if tree is not None:
        with ThreadPoolExecutor(max_workers=read_cores()) as pool:
            ended = pool.map(lambda test: outcomes(place, tree, test, work), tests)
            found["tests"] = dict(zip(tests, ended, strict=True))
    return found


def compare_outcomes(test: str, stock: dict[str, str], ours: dict[str, str]) -> int:
    """Say how the tests of a file ended with both; how many in another way."""
    unlike = sorted(
        name for name in stock.keys() | ours.keys() if stock.get(name) != ours.get(name)
    )
    counted = ", ".join(f"{count:,} {how}" for how, count in Counter(ours.values()).items())
    print(f"{test}: {counted}; {len(unlike)} end in another way")
    for name in unlike[:5]:
        print(f"   {name}: {stock.get(name)} with stock, {ours.get(name)} with ours")
    return len(unlike)


def compare(
    stock: Path, ours: Path, work: Path, tree: Path | None = None, tests: Sequence[str] = TESTS
) -> int:
    """Everything two wheels can differ in; how many things do."""
    one, other = (
        describe(wheel, work / name, tree, tests)
        for name, wheel in (("stock", stock), ("ours", ours))
    )
    differ = differences("exported symbols", one["strong"], other["strong"])
    differences("exported copies of inline functions and templates", one["weak"], other["weak"])
    differ += differences("schemas", one["schemas"], other["schemas"])
    differ += differences("operators", one["operators"], other["operators"])
    tables = [
        [f"{name}: {text}" for name, text in found["dispatcher"].items()] for found in (one, other)
    ]
    differ += differences("dispatch tables", *tables)
    for test in sorted(one.get("tests", {}).keys() & other.get("tests", {}).keys()):
        differ += compare_outcomes(test, one["tests"][test], other["tests"][test])
    return differ


def main() -> int:
    """Compare two wheels; 0 if nothing differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stock", type=Path)
    parser.add_argument("ours", type=Path, nargs="?")
    parser.add_argument("--save", type=Path, help="describe the one wheel given in this file")
    parser.add_argument("--tree", type=Path, help="PyTorch's source, to run tests of")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--work", type=Path, help="a folder to keep logs in")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        work = (given.work or Path(place)).absolute()
        if given.save:
            found = describe(given.stock, work, given.tree, given.tests)
            with gzip.open(given.save, "wt", encoding="utf-8") as file:
                json.dump(found, file)
            return 0
        if given.ours is None:
            parser.error("two wheels to compare, or one to --save, are needed")
        differ = compare(given.stock, given.ours, work, given.tree, given.tests)
    print("the same" if not differ else f"{differ} differences")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
