"""Whatever bytes a reader is given, it ends in an answer or in a sentence, never in a traceback.

Each reader gets an honest file that was changed: bytes flipped, cut out, doubled, put in; and
where the file is JSON or TOML, values of other types in any place.
"""

from __future__ import annotations

import _ctypes
import contextlib
import json
import shutil
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from tests.fuzzing import QUICK, Edit, Put, changed, edits, put, put_all, puts, write
from tests.tiny_packages import conda, wheel

from torchsmith.bench.page import page as bench_page
from torchsmith.bench.parity import _compared, read_parity
from torchsmith.bench.result import FORMAT, read_result
from torchsmith.cli.planning import read_machine
from torchsmith.cli.show_bench import show, show_parity
from torchsmith.diagnose.diagnose import explained
from torchsmith.diagnose.scan import scan_file
from torchsmith.engine.lockfile import read_lock
from torchsmith.engine.store import MANIFEST, DamagedEntryError, Store, read_entry
from torchsmith.errors import TorchsmithError
from torchsmith.foreign import MalformedError, decode
from torchsmith.host.models import Host
from torchsmith.jobs.importing import import_job
from torchsmith.package.contents import read_contents
from torchsmith.package.envelope import SignatureError, check, claims, envelope_path, seal
from torchsmith.package.keys import own_key, read_public, signer
from torchsmith.package.policy import check_policy, read_policy
from torchsmith.package.pylock import _toml, read_report
from torchsmith.plan.models import Step
from torchsmith.recipe.load import load_recipe
from torchsmith.ship.channel import read_record
from torchsmith.ship.index import publish_wheels
from torchsmith.sources.bundle import open_bundle, write_bundle
from torchsmith.sources.extract import extract
from torchsmith.verify.binary import read_bytes
from torchsmith.verify.report import from_json, lines
from torchsmith.verify.wheelfile import read_wheel, sound_wheel

pytestmark = pytest.mark.unit


Answer = dict[str, object]


@dataclass(frozen=True)
class Reader:
    """A file's name, honest content, and what reads it."""

    name: str
    content: bytes
    read: Callable[[Path], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """One of every kind of file that strangers hand us."""
    folder = tmp_path_factory.mktemp("honest")
    tree = folder / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src/a.cpp").write_text("int a;\n" * 50)
    (tree / "link").symlink_to("src/a.cpp")
    write_bundle({"torch": tree}, {"a.patch": b"--- a\n"}, folder / "b.bundle")
    made = wheel(folder, "small", "1.0")
    packed = conda(folder, "small", "1.0")
    old = conda(folder, "small", "1.0", form=".tar.bz2")
    with tarfile.open(folder / "plain.tar", "w") as tar:
        tar.add(tree, "tree")
    store = Store(folder / "store")
    entry = store.put("ab" * 32, Step(id="a", kind="fetch", title="A", outputs=("tree",)), folder)
    library = Path(_ctypes.__file__).read_bytes()[:200_000]

    own = own_key(make=True)
    assert own is not None

    def unpacked(path: Path) -> None:
        extract(path, _empty(path))

    def opened(path: Path) -> None:
        open_bundle(path, _empty(path))

    def logged(path: Path) -> None:
        with path.open("rb") as file:
            explained(scan_file(file))

    def kept(path: Path) -> None:
        (path.parent / "files.json").write_bytes(b"[]")
        try:
            read_entry(path.parent)
        except DamagedEntryError:
            return

    readers = [
        Reader("b.bundle", (folder / "b.bundle").read_bytes(), opened),
        Reader("plain.tar", (folder / "plain.tar").read_bytes(), unpacked),
        Reader(made.name, made.read_bytes(), sound_wheel),
        Reader(f"inspect/{made.name}", made.read_bytes(), read_contents),
        Reader(f"verify/{made.name}", made.read_bytes(), read_wheel),
        Reader(packed.name, packed.read_bytes(), read_record),
        Reader(old.name, old.read_bytes(), read_record),
        Reader(f"inspect/{packed.name}", packed.read_bytes(), read_contents),
        Reader(
            "library.so",
            library,
            lambda path: read_bytes("a", path.read_bytes()),
        ),
        Reader("build.log", LOG, logged),
        Reader(MANIFEST, (entry.folder / MANIFEST).read_bytes(), kept),
        Reader("key.pem", own.pem.encode(), read_public),
    ]
    return {reader.name: reader for reader in readers}


def _empty(path: Path) -> Path:
    folder = path.with_name("out")
    folder.mkdir(exist_ok=True)
    for item in folder.iterdir():
        raise AssertionError(f"{item} was left behind")
    return folder


LOG = b"""\
[1/3] c++ -c a.cpp
a.cpp:3:5: fatal error: nccl.h: No such file or directory
nvcc fatal   : Unsupported gpu architecture 'compute_120'
RuntimeError: The detected CUDA version (12.4) mismatches the version that was used (11.8).
c++: fatal error: Killed signal terminated program cc1plus
ninja: build stopped: subcommand failed.
"""
READERS = (
    "b.bundle",
    "plain.tar",
    "small-1.0-py3-none-any.whl",
    "inspect/small-1.0-py3-none-any.whl",
    "verify/small-1.0-py3-none-any.whl",
    "small-1.0-0.conda",
    "small-1.0-0.tar.bz2",
    "inspect/small-1.0-0.conda",
    "library.so",
    "build.log",
    MANIFEST,
    "key.pem",
)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_was_changed_ends_in_a_sentence(
    name: str, honest: dict[str, Reader], tmp_path: Path
) -> None:
    reader = honest[name]

    @QUICK
    @given(edits)
    def try_it(how: list[Edit]) -> None:
        path = tmp_path / Path(name).name
        path.write_bytes(changed(reader.content, how))
        out = tmp_path / "out"
        try:
            reader.read(path)
        except TorchsmithError:
            assert not out.exists() or not any(out.iterdir())
        else:
            shutil.rmtree(out, ignore_errors=True)

    try_it()


OPENPAI_2 = {
    "protocolVersion": 2,
    "name": "train",
    "type": "job",
    "prerequisites": [{"type": "dockerimage", "name": "image", "uri": "pytorch/pytorch"}],
    "parameters": {"epochs": 3},
    "secrets": {"token": "x"},
    "taskRoles": {
        "worker": {
            "instances": 2,
            "completion": {"minFailedInstances": 1},
            "dockerImage": "image",
            "resourcePerInstance": {"cpu": 4, "memoryMB": 8192, "gpu": 1, "ports": {"a": 1}},
            "extraContainerOptions": {"shmMB": 64},
            "commands": ["python train.py <% $parameters.epochs %>"],
        }
    },
    "defaults": {"virtualCluster": "default"},
}
OPENPAI_1 = {
    "jobName": "train",
    "image": "pytorch/pytorch",
    "taskRoles": [
        {
            "name": "worker",
            "taskNumber": 1,
            "cpuNumber": 4,
            "memoryMB": 8192,
            "shmMB": 64,
            "gpuNumber": 1,
            "command": "python train.py",
            "portList": [{"label": "a", "beginAt": 0, "portNumber": 1}],
        }
    ],
}
PROJECT = {
    "meta": {"api-version": "1.1"},
    "name": "small",
    "versions": ["1.0"],
    "files": [
        {
            "filename": "small-1.0-py3-none-any.whl",
            "url": "small-1.0-py3-none-any.whl",
            "core-metadata": {"sha256": "0" * 64},
            "hashes": {"sha256": "0" * 64},
            "size": 1,
            "requires-python": ">=3.8",
            "upload-time": "2026-11-18T00:00:00Z",
        }
    ],
}
STATEMENT = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": "small", "digest": {"sha256": "0" * 64}}],
    "predicateType": "https://slsa.dev/provenance/v1",
    "predicate": {
        "buildDefinition": {
            "resolvedDependencies": [
                {"name": "a", "uri": "b", "digest": {"sha256": "c"}, "annotations": {"kind": "git"}}
            ]
        },
        "runDetails": {
            "metadata": {"torchsmith_network": "none"},
            "byproducts": [{"name": "a", "digest": {"sha256": "0"}}],
        },
    },
}
POLICY = {"allow": [{"artifact": "*", "keys": ["0" * 64], "sources": ["git+*"], "hashed": True}]}
LOCK = {
    "format": 1,
    "source": [{"step": "fetch", "asked": "0" * 64, "tree": "0" * 64, "commit": ""}],
    "image": [{"name": "debian", "digest": f"sha256:{'0' * 64}"}],
    "install": [
        {
            "step": "environment",
            "asked": ["wheel"],
            "packages": [{"name": "wheel", "version": "1", "sha256": "0" * 64, "url": ""}],
        }
    ],
}
RECIPE = {
    "name": "a",
    "torch": {"release": "2.6.0"},
    "python": "3.11",
    "cuda": "12.4",
    "gpus": ["RTX 3090"],
    "companions": {"extension": [{"name": "e", "sdist": "e==1", "sha256": "0" * 64}]},
}


def enveloped(path: Path) -> None:
    """A statement that is truly signed, by a key that is believed, whatever it says."""
    artifact = path.with_name("small")
    artifact.write_bytes(b"")
    envelope_path(artifact).write_bytes(seal(path.read_bytes(), signer()))
    key = own_key(make=True)
    assert key is not None
    claims(artifact)
    policy = path.with_name("policy.toml")
    write(policy, put(POLICY, ("allow", 0, "keys"), [key.id]), "toml")
    with contextlib.suppress(TorchsmithError):
        check(artifact, [key])
    check_policy(artifact, read_policy(policy), [key])


def paged(path: Path) -> None:
    root = path.parent / "index"
    if not root.exists():
        publish_wheels(root, [wheel(path.parent, "small", "1.0")])
    (root / "simple/small/index.json").write_bytes(path.read_bytes())
    publish_wheels(root, [wheel(path.parent, "small", "2.0")])


METHOD = {
    "suite": "quick",
    "rounds": 1,
    "lives": 1,
    "block": 0.1,
    "blocks": 1,
    "seed": 1,
    "threads": 1,
    "cpus": [0],
    "control": True,
    "alpha": 0.05,
}
CHANCE = {"speedup": 1.1, "low": 1.0, "high": 1.2, "chance": 0.01, "floor": 0.01}
COMPARED = {
    "against": "b",
    "case": "add",
    "group": "a",
    "device": "cpu",
    **CHANCE,
    "verdict": "faster",
    "rounds": 1,
}
BENCH = {
    "format": FORMAT,
    "made": "2026-11-18",
    "torchsmith": "0",
    "seconds": 1.0,
    "method": METHOD,
    "machine": {"cpu": "a", "cores": 2, "platform": "linux", "load": [0.0, 1.0]},
    "sides": [{"name": "a", "shown": "a"}, {"name": "b", "shown": "b"}],
    "cases": [{"name": "add", "group": "a", "device": "cpu", "times": {"a": [1.0], "b": [0.9]}}],
    "compared": [COMPARED],
    "groups": [{**COMPARED, "case": ""}],
    "noise": [{"device": "cpu", "cases": 1, "middle": 1.0, "floor": 0.1, "called": 0}],
}
CHECK = {"group": "torch", "name": "imports", "status": "pass", "found": "2.6.0"}
REPORT = {"subjects": ["a.whl"], "torchsmith": "0", "checks": [CHECK], "torch": "2.6.0"}


def benched(path: Path) -> None:
    result = read_result(path)
    show(result)
    bench_page(result)


def reported(path: Path) -> None:
    with contextlib.suppress(MalformedError):
        "".join(lines(from_json(path.read_bytes()), everything=True))


PARITY = {
    "format": FORMAT,
    "device": "cpu",
    "seed": 1,
    "sides": [{"name": "a", "shown": "a"}, {"name": "b", "shown": "b"}],
    "compared": [
        {"operator": "add", "dtype": "float32", "status": "beyond", "absolute": 1.0, "ulps": 3}
    ],
    "excluded": {"rand": "it is random"},
    "stopped": "interrupted",
}
# What two workers answer to one operator.
FLOATS = {"dtype": "float32", "shape": [2], "data": "AACAPwAAAEA="}
ANSWERS = [
    {"stable": True, "outputs": {"out": FLOATS, "grad": {**FLOATS, "dtype": "int64", "shape": [1]}}}
    for _ in range(2)
]
PIP = {
    "version": "1",
    "environment": {
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "python_version": "3.11",
    },
    "install": [
        {
            "metadata": {"name": "A-b", "version": "1.0"},
            "download_info": {
                "url": "https://example.org/a_b-1.0-py3-none-any.whl",
                "archive_info": {"hash": "sha256=0", "hashes": {"sha256": "0" * 64}},
            },
        },
        {
            "metadata": {"name": "c", "version": "2"},
            "download_info": {
                "url": "https://example.org/c-2.tar.gz",
                "archive_info": {"hash": f"sha256={'0' * 64}"},
            },
        },
    ],
}


def operated(path: Path) -> None:
    with contextlib.suppress(MalformedError):
        one, other = decode(path.read_bytes(), tuple[Answer, Answer])
        msgspec.json.encode(_compared("add", "float32", ("a", "b"), (one, other)))


def locked(path: Path) -> None:
    table = read_report(path.read_bytes(), path.parent).to_dict()
    assert tomllib.loads(_toml(table))["packages"] == table.get("packages", [])


DOCUMENTS: dict[str, tuple[Any, str, Callable[[Path], object]]] = {
    "openpai 2": (OPENPAI_2, "json", import_job),
    "openpai 1": (OPENPAI_1, "json", import_job),
    "host": (
        json.loads(Host(platform="linux-x86_64", system="debian-12").model_dump_json()),
        "json",
        read_machine,
    ),
    "statement": (STATEMENT, "json", enveloped),
    "policy": (POLICY, "toml", read_policy),
    "lock": (LOCK, "toml", read_lock),
    "recipe": (RECIPE, "toml", load_recipe),
    "page": (PROJECT, "json", paged),
    "bench": (BENCH, "json", benched),
    "parity": (PARITY, "json", lambda path: show_parity(read_parity(path), everything=True)),
    "operator": (ANSWERS, "json", operated),
    "pip's report": (PIP, "json", locked),
    "report": (REPORT, "json", reported),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_with_other_values_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    document, form, read = DOCUMENTS[name]

    @QUICK
    @given(puts(document), edits)
    def try_it(wanted: list[Put], how: list[Edit]) -> None:
        path = write(tmp_path / "document", put_all(document, wanted), form)
        for content in (path.read_bytes(), changed(path.read_bytes(), how)):
            path.write_bytes(content)
            with contextlib.suppress(TorchsmithError):
                read(path)

    try_it()


def test_the_honest_ones_are_read(honest: dict[str, Reader], tmp_path: Path) -> None:
    for name in READERS:
        path = tmp_path / Path(name).name
        path.write_bytes(honest[name].content)
        honest[name].read(path)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    for name, (document, form, read) in DOCUMENTS.items():
        with (
            contextlib.suppress(SignatureError) if name == "statement" else contextlib.nullcontext()
        ):
            read(write(tmp_path / "document", document, form))
