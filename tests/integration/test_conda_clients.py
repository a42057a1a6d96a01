"""Real clients index, solve, install and test what torchsmith packs for conda."""

from __future__ import annotations

import asyncio
import base64
import csv
import hashlib
import io
import json
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rattler import (
    BuildString,
    Channel,
    Gateway,
    GenericVirtualPackage,
    MatchSpec,
    PackageName,
    Subdir,
    Version,
    solve,
)
from rattler.exceptions import SolverError
from tests.integration.conda_packages import (
    PYTHON,
    SUBDIR,
    TAG,
    installed,
    make_index,
    make_wheel,
    pack_empty,
    pack_python,
    solved,
)

from torchsmith.package.conda.explain import explain, read_channels
from torchsmith.package.conda.pack import pack
from torchsmith.package.conda.tree import PLACEHOLDER
from torchsmith.plan.conda import CondaSpec
from torchsmith.ship.channel import publish_packages
from torchsmith.verify.binary import read_bytes

pytestmark = pytest.mark.integration

# As long as a build's own is: the real one has to fit over it.
BUILD_PREFIX = "/opt/" + "build_env_" * 20
SITE = f"lib/python{PYTHON}/site-packages"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel"), BUILD_PREFIX)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """A channel with a Python, the small wheel in both formats, and some that lack something."""
    folder = tmp_path_factory.mktemp("conda")
    channel = folder / "channel"
    pack_python(channel, folder)
    pack_empty(channel, "python_abi", PYTHON, f"1_{TAG}")
    pack_empty(channel, "helper", "1.4")
    for archive, number in (("conda", 1), ("tar.bz2", 0)):
        spec = CondaSpec(
            output=str(channel),
            wheel=str(wheel),
            formats=(archive,),
            number=number,
            prefix=BUILD_PREFIX,
            commands=("tiny-say", "tiny-old"),
        )
        pack(spec)
    pack_empty(channel, "with-cuda", "1.0", depends=("__cuda >=12.0",))
    pack_empty(channel, "with-magma", "1.0", depends=("magma-cuda110 2.5.2.*",))
    pack_empty(channel, "with-glibc", "1.0", depends=("__glibc >=9.0",))
    pack_empty(channel, "for-python-2", "1.0", depends=("python >=2.7,<2.8.0a0",))
    pack_empty(channel, "vision", "1.0", depends=("pytorch 2.6.0 cpu_py311_0",))
    pack_empty(channel, "pytorch", "2.6.0", "py3.11_cuda12.6_0")
    make_index(channel)
    return channel


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Packages of one name are others in the next run.
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))


def says(*command: str | Path) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def served(channel: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(channel)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(params=["file", "http"])
def where(request: pytest.FixtureRequest, channel: Path, served: str) -> str:
    return served if request.param == "http" else channel.as_uri()


@pytest.mark.parametrize("number", [0, 1], ids=["tar.bz2", "conda"])
def test_what_is_installed_runs_where_it_is_put(where: str, number: int, tmp_path: Path) -> None:
    prefix = installed(where, tmp_path / "a prefix", f"tiny ==1.2 cpu_*_{number}")
    python = prefix / "bin/python"
    assert says(python, "-c", "import tiny; print(tiny.answer())") == "42"
    # The prefix it was built for is gone, from the text and from the library.
    assert says(python, "-c", "import tiny; print(tiny.home())") == f"{prefix}/share/tiny"
    told = (prefix / SITE / "tiny/where.txt").read_text()
    assert told == f"{prefix}/share/tiny and not {BUILD_PREFIX}2\n"
    assert (prefix / "share/tiny/data.txt").is_file()
    assert (prefix / f"include/python{PYTHON}/tiny/tiny.h").is_file()
    assert says(prefix / "bin/tiny-say") == "answer 42"
    assert says(prefix / "bin/tiny-old") == "old 42"
    asked = "import importlib.metadata as m; d = m.distribution('tiny'); "
    assert says(python, "-c", f"{asked}print(d.version, d.read_text('INSTALLER'))") == (
        "1.2+cpu conda"
    )


def test_its_record_is_true_of_what_is_installed(channel: Path, tmp_path: Path) -> None:
    prefix = installed(channel.as_uri(), tmp_path / "prefix", "tiny", "python")
    text = (prefix / SITE / "tiny-1.2+cpu.dist-info/RECORD").read_text()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(text))}
    assert {"tiny/lib/libdeep.so", "../../../bin/tiny-say", "../../../share/tiny/data.txt"} < set(
        rows
    )
    for name, (said, size) in rows.items():
        content = (prefix / SITE / name).read_bytes()
        if said:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            assert (said, size) == (f"sha256={digest.decode()}", str(len(content))), name


def test_its_libraries_look_below_the_prefix_only(channel: Path, tmp_path: Path) -> None:
    prefix = installed(channel.as_uri(), tmp_path / "prefix", "tiny", "python")
    (module,) = (prefix / SITE / "tiny").glob("_tiny*.so")
    library = read_bytes("module", module.read_bytes())
    assert library is not None
    assert library.search == ("$ORIGIN", "$ORIGIN/lib", "$ORIGIN/../../..")
    kind = says("readelf", "--dynamic", module)
    assert "(RPATH)" in kind
    assert "(RUNPATH)" not in kind


def test_a_client_reads_what_the_package_says_of_itself(channel: Path) -> None:
    from rattler_build import Package

    (path,) = (channel / SUBDIR).glob("tiny-1.2-cpu_*_1.conda")
    package = Package.from_file(path)
    assert (package.name, package.version, package.license) == ("tiny", "1.2", "MIT")
    glibc, *rest = package.depends
    assert glibc.startswith("__glibc >=2.")
    assert rest == [
        "helper !=1.5.*,>=1.0",
        f"python >={PYTHON},<3.{int(PYTHON[2:]) + 1}.0a0",
        f"python_abi {PYTHON}.* *_{TAG}",
    ]
    placed = {
        entry["_path"].rpartition("/")[2].partition(".")[0]: entry
        for entry in json.loads(info_of(path)["info/paths.json"])["paths"]
        if "prefix_placeholder" in entry
    }
    assert {name: entry["file_mode"] for name, entry in placed.items()} == {
        "_tiny": "binary",
        "tiny-old": "text",
        "tiny-say": "text",
        "where": "text",
    }
    assert placed["_tiny"]["prefix_placeholder"] == BUILD_PREFIX
    assert placed["where"]["prefix_placeholder"] == PLACEHOLDER
    assert info_of(path)["info/licenses/LICENSE"] == b"Anybody may.\n"


def info_of(package: Path) -> dict[str, bytes]:
    import zstandard

    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.startswith("info-"))
        content = zstandard.ZstdDecompressor().stream_reader(archive.read(name)).read()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {info.name: tar.extractfile(info) for info in tar}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_rattler_build_runs_the_tests_a_package_brings(channel: Path) -> None:
    from rattler_build import Package

    (path,) = (channel / SUBDIR).glob("tiny-1.2-cpu_*_1.conda")
    package = Package.from_file(path)
    results = package.run_tests(channel=[channel.as_uri()])
    assert len(results) == 2
    assert [result.success for result in results] == [True, True], [r.output for r in results]


def test_a_package_for_every_python_gets_its_scripts_from_the_client(
    channel: Path, tmp_path: Path
) -> None:
    pure = tmp_path / "pure-1.0-py3-none-any.whl"
    info = "pure-1.0.dist-info"
    files = {
        "pure.py": "def main():\n    print('pure')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pure\nVersion: 1.0\n"
        "Requires-Python: >=3.8\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\npure-say = pure:main\n",
    }
    rows = []
    with zipfile.ZipFile(pure, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            rows.append(f"{name},sha256={digest.rstrip(b'=').decode()},{len(text)}\n")
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    own = tmp_path / "channel"
    made = pack(CondaSpec(output=str(own), wheel=str(pure)))
    assert made.files[0].parent.name == "noarch"
    make_index(own)
    prefix = installed([own.as_uri(), channel.as_uri()], tmp_path / "prefix", "pure")
    assert says(prefix / "bin/pure-say") == "pure"
    assert (prefix / SITE / "pure.py").is_file()


# ------------------------------------------------------------------ requests without an answer


def why_not(channel: Path, *specs: str) -> str:
    with pytest.raises(Exception, match="Cannot solve") as refused:
        solved(channel.as_uri(), *specs)
    return str(refused.value)


def test_a_missing_driver_is_explained_and_can_be_pretended(
    channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "")
    (told,) = explain(why_not(channel, "with-cuda"), read_channels([channel]))
    assert (told.name, told.wanted_by) == ("__cuda", "with-cuda 1.0")
    assert "CONDA_OVERRIDE_CUDA=12.0" in told.cure
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "11.8")
    (told,) = explain(why_not(channel, "with-cuda"))
    assert told.name == "__cuda"
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "12.4")
    assert len(solved(channel.as_uri(), "with-cuda")) == 1


def test_a_channel_without_magma_is_explained(channel: Path) -> None:
    (told,) = explain(why_not(channel, "with-magma"), read_channels([channel]))
    assert (told.name, told.spec) == ("magma-cuda110", "magma-cuda110 2.5.2.*")
    assert "-c CHANNEL" in told.cure
    assert "packages.magma = true" in told.cure


def test_a_glibc_that_is_too_old_is_explained(channel: Path) -> None:
    (told,) = explain(why_not(channel, "with-glibc"))
    assert "older than 9.0" in told.meaning


@pytest.mark.parametrize("specs", [("python=2.7",), ("for-python-2",)])
def test_a_python_that_is_not_there_is_explained(channel: Path, specs: tuple[str, ...]) -> None:
    (told,) = explain(why_not(channel, *specs), read_channels([channel]))
    assert told.name == "python"
    assert f"There is Python {PYTHON}" in told.cure


def test_two_pythons_at_once_are_explained(channel: Path) -> None:
    told = explain(why_not(channel, "for-python-2", f"python={PYTHON}"), read_channels([channel]))
    assert [item.name for item in told] == ["python"]


def test_another_build_of_torch_is_explained(channel: Path) -> None:
    (told,) = explain(why_not(channel, "vision"), read_channels([channel]))
    assert told.name == "pytorch"
    assert "2.6.0 py3.11_cuda12.6_0" in told.cure


@pytest.mark.parametrize(
    ("arch", "spec", "build"),
    [
        ("9.0", "net[flags=[cuda]]", "cuda_0"),
        ("8.0", "net", "cpu_0"),
        ("", "net", "cpu_0"),
        ("9.0", "net[flags=[cpu]]", "cpu_0"),
        ("9.0", "net[flags=['sm:*']]", "cuda_0"),
        ("8.0", "net[flags=[cuda]]", ""),
    ],
)
def test_a_solver_takes_no_build_for_another_gpu_and_heeds_flags(
    arch: str, spec: str, build: str, tmp_path: Path
) -> None:
    packed, channel = tmp_path / "packed", tmp_path / "channel"
    needs = ("__cuda_arch >=9.0,<10.0a0",)
    pack_empty(packed, "net", "1.0", "cuda_0", needs, ("cuda", "cuda:130", "sm:90"))
    pack_empty(packed, "net", "1.0", "cpu_0", flags=("cpu",))
    publish_packages(channel, sorted(packed.rglob("*.conda")))
    name = PackageName("__cuda_arch")
    gpu = [GenericVirtualPackage(name, Version(arch), BuildString("0"))] if arch else []
    gateway = Gateway(cache_dir=tmp_path / "listings")
    solving = solve(
        [Channel(channel.as_uri())],
        [MatchSpec(spec)],
        gateway,
        platforms=[Subdir(SUBDIR), Subdir("noarch")],
        virtual_packages=gpu,
    )
    if build:
        (found,) = asyncio.run(solving)
        assert found.build == BuildString(build)
    else:
        with pytest.raises(SolverError):
            asyncio.run(solving)
