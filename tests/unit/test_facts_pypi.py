"""What we say of releases and companions agrees with what PyPI says of them.

PyPI's side is a snapshot in the repository, so nothing here needs the network; the second
half tests the program that takes the snapshot, over HTTP on the loopback interface.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from torchsmith.facts.files import Facts
from torchsmith.facts.models import CompanionRelease, TorchRelease
from torchsmith.facts.ranges import release, version_range

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
SNAPSHOT = json.loads((ROOT / "tests" / "data" / "pypi.json").read_text(encoding="utf-8"))

FACTS = Facts()
RELEASES = {entry.version: entry for entry in FACTS.releases.release}
COMPANIONS: dict[tuple[str, str], CompanionRelease] = {
    (entry.name, entry.version): entry for entry in FACTS.companions.release
}
PACKAGES: dict[str, str] = {project.name: project.package for project in FACTS.companions.project}

# The oldest releases that can go with torch 1.0.
OLDEST = {"vision": (0, 2, 1), "audio": (0, 2), "text": (0, 3)}

NOT_ON_PYPI = {
    ("torch", "1.4.1"): "tagged, never published",
    ("torch", "1.8.2"): "LTS: only on download.pytorch.org",
    ("vision", "0.9.2"): "for the LTS release of torch",
    ("audio", "0.2.0"): "only on download.pytorch.org",
    ("audio", "0.8.2"): "for the LTS release of torch",
    ("text", "0.9.2"): "for the LTS release of torch",
}
LEFT_OUT = {
    ("vision", "0.15.0"): "withdrawn, never tagged: 0.15.1 is the release",
    ("audio", "2.0.0"): "withdrawn, never tagged: 2.0.1 is the release",
    ("text", "0.15.0"): "withdrawn, never tagged: 0.15.1 is the release",
}
OTHER_TORCH = {
    ("text", "0.16.2"): "wheels built on a branch not yet pinned to torch 2.1: they ask for 2.2.0",
}


def on_pypi(name: str) -> dict[str, dict[str, Any]]:
    """The snapshot's releases of a project, post-releases under the release they repair."""
    found: dict[str, dict[str, Any]] = {}
    for version, record in SNAPSHOT[PACKAGES.get(name, name)].items():
        found.setdefault(version.partition(".post")[0], record)
    return found


def companions_on_pypi() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, oldest in OLDEST.items():
        for version, record in on_pypi(name).items():
            if release(version) >= oldest and (name, version) not in LEFT_OUT:
                yield name, version, record


def torch_asked_for(record: dict[str, Any]) -> tuple[str, str] | None:
    """The comparison and the version in a wheel's requirement on torch, if it has one."""
    for line in record["requires"]:
        found = re.match(r"torch\s*\(?\s*(==|>=)\s*(\d+(?:\.\d+)+)", line)
        if found:
            return found[1], found[2]
    return None


def wheel_pythons(record: dict[str, Any]) -> set[str]:
    tags = {tag for platform in ("x86_64", "aarch64") for tag in record["wheels"].get(platform, ())}
    return {f"3.{found[1]}" for tag in tags if (found := re.fullmatch(r"cp3(\d+t?)", tag))}


# ------------------------------------------------------------------------------ our facts


def test_the_snapshot_reaches_from_torch_1_0_to_2_15() -> None:
    assert {"1.0.0", "1.9.1", "2.0.0", "2.15.0"} <= on_pypi("torch").keys()


@pytest.mark.parametrize("version", on_pypi("torch"))
def test_a_torch_release_has_the_linux_pythons_pypi_has(version: str) -> None:
    assert set(RELEASES[version].pythons) == wheel_pythons(on_pypi("torch")[version])


@pytest.mark.parametrize("version", on_pypi("torch"))
def test_the_cuda_of_pypi_s_own_wheel_is_known(version: str) -> None:
    ours, theirs = RELEASES[version], on_pypi("torch")[version]
    assert ours.pypi_cuda == ".".join(theirs["cuda"].split(".")[:2])
    if "linux-aarch64" in ours.pypi_cuda_on:
        needs = [text for text in theirs["requires"] if text.startswith(("nvidia", "cuda"))]
        assert needs
        assert not any("platform_machine" in text for text in needs)


@pytest.mark.parametrize("version", on_pypi("torch"))
def test_what_pypi_s_own_wheel_is_pinned_to_is_known(version: str) -> None:
    pinned = re.compile(r"(?:nvidia-)?(triton|cudnn|nccl)(?:-cu\d+)? ?\(?[=~]=([\d.]+)")
    texts = on_pypi("torch")[version]["requires"]
    theirs = {found[1]: found[2] for text in texts if (found := pinned.match(text))}
    assert RELEASES[version].pypi_brings == theirs


@pytest.mark.parametrize("version", on_pypi("torch"))
def test_a_torch_release_has_the_commit_its_wheels_name(version: str) -> None:
    ours, wheels = RELEASES[version], on_pypi("torch")[version]["commit"]
    if ours.wheel_commit:
        assert ours.wheel_commit == wheels
        assert ours.note, "why the tag's own commit differs, or is not known"
    else:
        assert wheels in (None, ours.commit)


def test_every_torch_release_is_on_pypi_or_has_a_reason_not_to_be() -> None:
    absent = {("torch", version) for version in RELEASES.keys() - on_pypi("torch").keys()}
    assert absent == {key for key in NOT_ON_PYPI if key[0] == "torch"}


def test_torch_releases_are_in_order_and_named_once() -> None:
    versions = [release(entry.version) for entry in FACTS.releases.release]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("entry", FACTS.releases.release, ids=lambda entry: entry.version)
def test_a_torch_tag_is_its_version(entry: TorchRelease) -> None:
    assert entry.tag == f"v{entry.version}"


@pytest.mark.parametrize(
    ("name", "version", "record"),
    [pytest.param(*case, id="-".join(case[:2])) for case in companions_on_pypi()],
)
def test_a_companion_goes_with_the_torch_its_wheel_asks_for(
    name: str, version: str, record: dict[str, Any]
) -> None:
    ours = version_range(COMPANIONS[name, version].torch)
    match torch_asked_for(record):
        case ("==", asked):
            assert (asked in ours) != ((name, version) in OTHER_TORCH)
        case (">=", asked):
            older = [torch for torch in RELEASES if release(torch) < release(asked)]
            assert asked in ours
            assert not [torch for torch in older if torch in ours]
        case _:
            assert any(torch in ours for torch in RELEASES)


@pytest.mark.parametrize(
    ("name", "version", "record"),
    [pytest.param(*case, id="-".join(case[:2])) for case in companions_on_pypi()],
)
def test_a_companion_has_the_commit_its_wheels_name_or_says_otherwise(
    name: str, version: str, record: dict[str, Any]
) -> None:
    ours = COMPANIONS[name, version]
    assert record["commit"] in (None, ours.commit) or record["commit"] in ours.note


def test_every_companion_is_on_pypi_or_has_a_reason_not_to_be() -> None:
    known = {(name, version) for name, version, _ in companions_on_pypi()}
    # torchcodec is read from its own table on PyPI, not from its wheels.
    absent = {key for key in COMPANIONS.keys() - known if key[0] != "codec"}
    assert absent == {key for key in NOT_ON_PYPI if key[0] != "torch"}


def test_a_companion_says_which_of_its_torchs_pythons_it_was_not_published_for() -> None:
    for entry in FACTS.companions.release:
        record = on_pypi(entry.name).get(entry.version) if entry.name != "codec" else None
        torch = next((v for v in on_pypi("torch") if v.startswith(entry.torch)), None)
        if record is None or torch is None or not wheel_pythons(record):
            continue
        own = {item.rstrip("t") for item in wheel_pythons(record)}
        newest = max(own, key=release)
        torchs = {item.rstrip("t") for item in wheel_pythons(on_pypi("torch")[torch])}
        newer = any(release(item) > release(newest) for item in torchs)
        assert entry.newest_python == (newest if newer else None), entry.version


def test_a_release_left_out_is_one_that_was_withdrawn() -> None:
    for name, version in LEFT_OUT:
        assert on_pypi(name)[version]["yanked"]
        assert (name, version) not in COMPANIONS


@pytest.mark.parametrize("name", ["xformers", "vllm"])
def test_a_stack_s_release_goes_with_the_torch_its_wheel_asks_for(name: str) -> None:
    """A release without an sdist cannot be compiled, so it need not be known."""
    known = {item.version: item for item in FACTS.stack.release if item.name == name}
    assert len(known) > 20
    for version, entry in known.items():
        asked = torch_asked_for(SNAPSHOT[name][version])
        assert asked is not None
        comparison, torch = asked
        span = f"{torch}:" if comparison == ">=" else torch
        assert (version, str(version_range(entry.torch))) == (version, str(version_range(span)))


def test_companions_are_named_once_and_in_order() -> None:
    for name in PACKAGES:
        versions = [release(version) for other, version in COMPANIONS if other == name]
        assert versions == sorted(versions)
    assert len(COMPANIONS) == len(FACTS.companions.release)


@pytest.mark.parametrize(
    "entry", FACTS.companions.release, ids=lambda entry: f"{entry.name}-{entry.version}"
)
def test_a_companion_tag_is_its_version(entry: CompanionRelease) -> None:
    assert re.fullmatch(rf"v?{re.escape(entry.version)}(-rc\d+)?", entry.tag)


def newest_for(torch: str) -> dict[str, str]:
    """The newest release of each companion for a torch."""
    fitting = [entry for entry in FACTS.companions.release if torch in version_range(entry.torch)]
    fitting.sort(key=lambda entry: release(entry.version))
    return {entry.name: entry.version for entry in fitting}


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("1.0.1", {"vision": "0.2.2", "text": "0.6.0"}),
        ("1.1.0", {"vision": "0.3.0", "audio": "0.2.0", "text": "0.6.0"}),
        ("1.2.0", {"vision": "0.4.0", "audio": "0.3.0", "text": "0.6.0"}),
        ("1.4.1", {"vision": "0.5.0", "audio": "0.4.0", "text": "0.6.0"}),
        ("1.7.1", {"vision": "0.8.2", "audio": "0.7.2", "text": "0.8.1"}),
        ("1.8.2", {"vision": "0.9.2", "audio": "0.8.2", "text": "0.9.2"}),
        ("1.9.1", {"vision": "0.10.1", "audio": "0.9.1", "text": "0.10.1"}),
        ("2.0.1", {"vision": "0.15.2", "audio": "2.0.2", "text": "0.15.2"}),
        ("2.1.2", {"vision": "0.16.2", "audio": "2.1.2", "text": "0.16.2"}),
        ("2.4.0", {"vision": "0.19.0", "audio": "2.4.0", "codec": "0.0.3"}),
        ("2.10.0", {"vision": "0.25.0", "audio": "2.10.0", "codec": "0.10.0"}),
        ("2.15.0", {"vision": "0.29.2", "audio": "2.11.0", "codec": "0.17.0"}),
    ],
)
def test_a_torch_has_these_companions(torch: str, expected: dict[str, str]) -> None:
    assert newest_for(torch) == expected


def test_every_torch_has_a_torchvision_and_from_1_1_a_torchaudio() -> None:
    lacking = {
        torch: missing
        for torch in RELEASES
        if (missing := {"vision", "audio"} - newest_for(torch).keys())
    }
    assert lacking == {"1.0.0": {"audio"}, "1.0.1": {"audio"}}


def test_no_torchtext_goes_with_a_torch_younger_than_its_last_release() -> None:
    text = next(project for project in FACTS.companions.project if project.name == "text")
    assert text.ended == "0.18.0"
    assert text.ended_reason
    assert "text" in newest_for("2.3.1")
    assert not [
        torch for torch in RELEASES if release(torch) >= (2, 4) and "text" in newest_for(torch)
    ]


# ------------------------------------------------------------------- taking the snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VERSION_PY = f"__version__ = '1.0.0'\ncuda: Optional[str] = '12.1'\ngit_version = '{COMMIT}'\n"


@dataclass
class Index:
    """A small package index on the loopback interface, with a record of what it sent."""

    folder: Path
    url: str = ""
    ranges: bool = True
    overloaded: int = 0
    sent: dict[str, int] = field(default_factory=dict)

    def add_wheel(self, name: str, requires: str = "", padding: int = 0) -> Path:
        """Make a wheel; the padding stands for the gigabyte nobody wants to fetch."""
        project, version = name.split("-")[:2]
        path = self.folder / "files" / name
        path.parent.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{requires}\n"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{project}/version.py", VERSION_PY)
            wheel.writestr(f"{project}/lib/version.py", "git_version = 'not this one'\n")
            wheel.writestr(f"{project}/lib.so", os.urandom(padding))
            wheel.writestr(f"{project}-{version}.dist-info/METADATA", metadata)
        return path

    def list_files(self, project: str, *names: str, attributes: str = "") -> None:
        page = self.folder / "simple" / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        links = [f'<a href="../../files/{n}#sha256=0" {attributes}>{n}</a><br/>' for n in names]
        page.write_text("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    served = Index(tmp_path / "www")
    served.folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = served.folder / self.path.lstrip("/")
            path = path / "index.html" if path.is_dir() else path
            if served.overloaded:
                served.overloaded -= 1
                self.send_error(503)
                return
            if not path.is_file():
                self.send_error(404)
                return
            data = path.read_bytes()
            asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            if asked and served.ranges:
                size = len(data)
                start = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
                stop = min(int(asked[2]) + 1, size) if asked[1] and asked[2] else size
                data = data[start:stop]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            served.sent[path.name] = served.sent.get(path.name, 0) + len(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/simple"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def refresh(index: Index, snapshot: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the program the way a person does."""
    command = [sys.executable, str(ROOT / "tools" / "refresh_pypi.py"), "--index", index.url]
    command += ["--snapshot", str(snapshot), "--retries", "0", *options]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_snapshot_holds_what_the_index_and_the_wheels_say(index: Index, tmp_path: Path) -> None:
    names = [
        "torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl",
        "torch-1.0.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        "torch-1.0.0-cp310-cp310t-manylinux_2_28_x86_64.whl",
        "torch-1.0.0-2-cp36-cp36m-manylinux2014_aarch64.whl",
        "torch-1.0.0-cp36-none-macosx_10_7_x86_64.whl",
        "torch-0.4.1-cp36-cp36m-manylinux1_x86_64.whl",
        "torch-1.1.0rc1-cp36-cp36m-manylinux1_x86_64.whl",
    ]
    for name in names:
        index.add_wheel(name, "Requires-Dist: nvidia-nccl-cu12 (==2.19)\nRequires-Dist: sympy")
    index.list_files("torch", *names)
    snapshot = tmp_path / "pypi.json"

    result = refresh(index, snapshot, "--project", "torch")

    assert result.returncode == 0, result.stderr
    assert json.loads(snapshot.read_text()) == {
        "torch": {
            "1.0.0": {
                "commit": COMMIT,
                "cuda": "12.1",
                "requires": ["nvidia-nccl-cu12 (==2.19)"],
                "requires_python": None,
                "wheel": "torch-1.0.0-cp310-cp310t-manylinux_2_28_x86_64.whl",
                "wheels": {"aarch64": ["cp36"], "x86_64": ["cp36", "cp310", "cp310t"]},
                "yanked": False,
            }
        }
    }


def test_only_a_small_part_of_a_wheel_is_transferred(index: Index, tmp_path: Path) -> None:
    wheel = index.add_wheel("torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl", padding=4_000_000)
    index.list_files("torch", wheel.name)
    assert refresh(index, tmp_path / "pypi.json", "--project", "torch").returncode == 0
    assert index.sent[wheel.name] < 300_000


def test_metadata_beside_the_wheel_is_preferred(index: Index, tmp_path: Path) -> None:
    wheel = index.add_wheel("torchtext-0.9.0-py3-none-any.whl", "Requires-Dist: torch")
    beside = "Metadata-Version: 2.1\nRequires-Python: >=3.6\nRequires-Dist: torch (==1.8.0)\n"
    Path(f"{wheel}.metadata").write_text(beside)
    index.list_files("torchtext", wheel.name, attributes='data-yanked="" data-core-metadata="true"')
    snapshot = tmp_path / "pypi.json"

    assert refresh(index, snapshot, "--project", "torchtext").returncode == 0

    record = json.loads(snapshot.read_text())["torchtext"]["0.9.0"]
    assert record["requires"] == ["torch (==1.8.0)"]
    assert record["requires_python"] == ">=3.6"
    assert record["wheels"] == {"any": ["py3"]}
    assert record["yanked"]


def test_a_second_run_writes_the_same_bytes(index: Index, tmp_path: Path) -> None:
    names = [f"torch-1.{minor}.0-cp39-cp39-manylinux1_x86_64.whl" for minor in (10, 2, 9)]
    for name in names:
        index.add_wheel(name)
    index.list_files("torch", *names)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    refresh(index, first, "--project", "torch")
    index.list_files("torch", *reversed(names))
    refresh(index, second, "--project", "torch")
    assert first.read_bytes() == second.read_bytes()
    assert list(json.loads(first.read_text())["torch"]) == ["1.2.0", "1.9.0", "1.10.0"]


def test_check_tells_a_current_snapshot_from_a_stale_one(index: Index, tmp_path: Path) -> None:
    old = index.add_wheel("torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl").name
    new = index.add_wheel("torch-1.1.0-cp36-cp36m-manylinux1_x86_64.whl").name
    more = index.add_wheel("torch-1.0.0-cp37-cp37m-manylinux1_x86_64.whl").name
    index.list_files("torch", old)
    snapshot = tmp_path / "pypi.json"
    refresh(index, snapshot, "--project", "torch")
    before = snapshot.read_bytes()
    assert refresh(index, snapshot, "--project", "torch", "--check").returncode == 0

    index.list_files("torch", old, more, new)
    result = refresh(index, snapshot, "--project", "torch", "--check")

    assert result.returncode == 1
    assert result.stdout.splitlines() == ["torch 1.0.0: wheel, wheels changed", "torch 1.1.0: new"]
    assert "out of date" in result.stderr
    assert snapshot.read_bytes() == before


def test_a_project_not_asked_for_is_kept(index: Index, tmp_path: Path) -> None:
    for name in ("torch-1.0.0-py3-none-any.whl", "torchtext-0.9.0-py3-none-any.whl"):
        index.add_wheel(name)
        index.list_files(name.split("-")[0], name)
    snapshot = tmp_path / "pypi.json"
    refresh(index, snapshot, "--project", "torch")
    refresh(index, snapshot, "--project", "torchtext")
    assert list(json.loads(snapshot.read_text())) == ["torch", "torchtext"]


def test_a_server_that_is_overloaded_for_a_moment_is_asked_again(
    index: Index, tmp_path: Path
) -> None:
    wheel = index.add_wheel("torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl")
    index.list_files("torch", wheel.name)
    index.overloaded = 1
    result = refresh(index, tmp_path / "pypi.json", "--project", "torch", "--retries", "1")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("check", [(), ("--check",)])
def test_a_project_missing_from_the_index_is_a_clear_error(
    index: Index, tmp_path: Path, check: tuple[str, ...]
) -> None:
    snapshot = tmp_path / "pypi.json"
    snapshot.write_text("{}")
    result = refresh(index, snapshot, *check)
    assert result.returncode == 2
    assert f"{index.url}/torch/: HTTP 404" in result.stderr
    assert "Traceback" not in result.stderr
    assert snapshot.read_text() == "{}"


def test_a_truncated_wheel_leaves_the_old_snapshot_alone(index: Index, tmp_path: Path) -> None:
    good = index.add_wheel("torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl")
    bad = index.add_wheel("torch-1.1.0-cp36-cp36m-manylinux1_x86_64.whl", padding=200_000)
    bad.write_bytes(bad.read_bytes()[:100_000])
    index.list_files("torch", good.name, bad.name)
    snapshot = tmp_path / "pypi.json"
    snapshot.write_text("{}")

    result = refresh(index, snapshot, "--project", "torch")

    assert result.returncode == 2
    assert f"{bad.name}: not a complete wheel" in result.stderr
    assert "has not been changed" in result.stderr
    assert "Traceback" not in result.stderr
    assert snapshot.read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["pypi.json"]


def test_a_server_without_ranges_is_a_clear_error(index: Index, tmp_path: Path) -> None:
    wheel = index.add_wheel("torch-1.0.0-cp36-cp36m-manylinux1_x86_64.whl")
    index.list_files("torch", wheel.name)
    index.ranges = False
    result = refresh(index, tmp_path / "pypi.json", "--project", "torch")
    assert result.returncode == 2
    assert "ignores range requests" in result.stderr
    assert not (tmp_path / "pypi.json").exists()
