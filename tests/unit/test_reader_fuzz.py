"""Whatever bytes a reader is given, it ends in an answer or in a sentence, never in a traceback.

Each reader gets an honest file that was changed: bytes flipped, cut out, doubled, put in; and
where the file is JSON or TOML, values of other types in any place. The number of tries is fixed, so
that a run takes seconds; `TRIES` in the environment asks for more of them.
"""

from __future__ import annotations

import _ctypes
import contextlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiny_packages import conda, wheel

from torchsmith.cli.options import host_for
from torchsmith.diagnose.diagnose import explained
from torchsmith.diagnose.knowledge import shipped
from torchsmith.diagnose.scan import scan_file
from torchsmith.engine.entry import MANIFEST, DamagedEntryError, read_entry
from torchsmith.engine.lockfile import read_lock
from torchsmith.engine.store import Store
from torchsmith.errors import TorchsmithError
from torchsmith.host.models import Host
from torchsmith.jobs.importing import import_job
from torchsmith.package.contents import read_contents
from torchsmith.package.envelope import SignatureError, check, claims, envelope_path, seal
from torchsmith.package.keys import own_key, read_public, signer
from torchsmith.package.policy import check_policy, read_policy
from torchsmith.plan.models import Step
from torchsmith.recipe.load import load_recipe
from torchsmith.ship.conda_package import read_record
from torchsmith.ship.index import check_wheel, publish_wheels
from torchsmith.sources.bundle import open_bundle, write_bundle
from torchsmith.sources.extract import extract
from torchsmith.verify.binary import read_bytes
from torchsmith.verify.wheelfile import read_wheel

pytestmark = pytest.mark.unit

TRIES = int(os.environ.get("TRIES", "60"))
QUICK = settings(
    max_examples=TRIES,
    deadline=None,
    derandomize="TRIES" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Reader:
    """A file's name, honest content, and what reads it."""

    name: str
    content: bytes
    read: Callable[[Path], object]


# How a file is changed: where (as a share of its length), and what comes there instead of how much.
Edit = tuple[float, int, bytes]
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 0, 1, 2, 4, 64, 1 << 20]),
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from([b"\0" * 4, b"\xff" * 8, b"[" * 3000, b"-1", b"1e999", b'"', b"{}"]),
        ),
    ),
    min_size=1,
    max_size=6,
)


def changed(content: bytes, how: list[Edit]) -> bytes:
    made = bytearray(content)
    for share, length, instead in how:
        at = int(share * len(made))
        made[at : at + length] = instead
    return bytes(made)


values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(),
        st.text(max_size=12),
        st.sampled_from(["../../x", "\x1b]52;c;x\x07", "$(id)", "a\nb", "\ud800", "0" * 5000, ""]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*at, key))
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from places(value, (*at, number))


def put(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[at[0]] = put(copy[at[0]], at[1:], value)
    return copy


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
            explained(scan_file(file, shipped()))

    def kept(path: Path) -> None:
        (path.parent / "files.json").write_bytes(b"[]")
        try:
            read_entry(path.parent)
        except DamagedEntryError:
            return

    readers = [
        Reader("b.bundle", (folder / "b.bundle").read_bytes(), opened),
        Reader("plain.tar", (folder / "plain.tar").read_bytes(), unpacked),
        Reader(made.name, made.read_bytes(), check_wheel),
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


def toml(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("none" if value is None else value)


def write(path: Path, document: Any, form: str) -> Path:
    if form == "toml":
        table = document if isinstance(document, dict) else {"a": document}
        text = "".join(f"{json.dumps(str(key))} = {toml(item)}\n" for key, item in table.items())
    else:
        text = json.dumps(document)
    path.write_text(text, encoding="utf-8", errors="replace")
    return path


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


DOCUMENTS: dict[str, tuple[Any, str, Callable[[Path], object]]] = {
    "openpai 2": (OPENPAI_2, "json", import_job),
    "openpai 1": (OPENPAI_1, "json", import_job),
    "host": (
        json.loads(Host(platform="linux-x86_64", system="debian-12").model_dump_json()),
        "json",
        host_for,
    ),
    "statement": (STATEMENT, "json", enveloped),
    "policy": (POLICY, "toml", read_policy),
    "lock": (LOCK, "toml", read_lock),
    "recipe": (RECIPE, "toml", load_recipe),
    "page": (PROJECT, "json", paged),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_with_other_values_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    document, form, read = DOCUMENTS[name]
    every = list(places(document))

    @QUICK
    @given(st.lists(st.tuples(st.sampled_from(every), values), min_size=1, max_size=3), edits)
    def try_it(wanted: list[tuple[tuple[Any, ...], Any]], how: list[Edit]) -> None:
        made = document
        for at, value in wanted:
            if at in set(places(made)):
                made = put(made, at, value)
        path = write(tmp_path / "document", made, form)
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
