"""The small real project that `faults.py` strikes, and what has to be true of it afterwards.

A stand-in of an installed torch, an extension of four C++ files built against it, verified,
packed for conda, signed and published; and a stand-in of torch's sources, which are patched,
configured and compiled. All of it by `torchsmith build` in a process of its own. Python
packages come over HTTP from a server of the campaign. Everything lies on a small disk in memory,
so that the disk can be full, read-only or away.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from torchsmith.engine.store import Store, problems_of

FILES = 4
RELEASE = "2.13.0"
RECIPE = f"""\
name = "small"
torch = {{ release = "{RELEASE}", use = "installed", environment = "@TORCH@" }}
python = "host"
cuda = "none"
publish = {{ index = "index", channel = "channel" }}
packages = {{ conda = true }}

[[companions.extension]]
name = "small"
folder = "small"
check = "from small._C import answer; assert answer() == 6"
"""
SETUP = """\
from glob import glob
from setuptools import Extension, setup
setup(name="small", version="1.0", packages=["small"],
      ext_modules=[Extension("small._C", sorted(glob("*.cpp")))])
"""
MODULE = """\
#include <Python.h>
long part1(); long part2(); long part3();
static PyObject* answer(PyObject*, PyObject*)
{ return PyLong_FromLong(part1() + part2() + part3()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
"""
PART = """\
#include <map>
#include <string>
long part{0}() {{ return std::map<std::string, long>{{{{"a", {0}}}}}["a"]; }}
"""
WHOLE = """\
name = "whole"
torch = { release = "2.5.1", commit = "@COMMIT@" }
python = "host"
cuda = "none"
patches = ["whole.patch"]
# FBGEMM keeps some compilers out on x86-64, and MKL is large; a stand-in has neither. Its release
# is one that no patch of ours is for.
features = { fbgemm = "off", mkl = "off" }

[source]
kind = "git"
url = "file://@SOURCES@"
"""
# As PyTorch's own: CMake and Ninja first, then setuptools.
WHOLE_SETUP = """\
import os, shutil, subprocess, sys
from setuptools import Extension, setup
if not os.path.exists("build/CMakeCache.txt"):
    subprocess.run(["cmake", "-G", "Ninja", "-S", ".", "-B", "build"], check=True)
if "--cmake-only" in sys.argv:
    sys.exit()
subprocess.run(["cmake", "--build", "build"], check=True)
os.makedirs("torch/lib", exist_ok=True)
shutil.copy("build/libwhole.so", "torch/lib")
setup(name="torch", version=os.environ["PYTORCH_BUILD_VERSION"], packages=["torch"],
      package_data={"torch": ["lib/*.so"]}, ext_modules=[Extension("torch._C", ["c.c"])])
"""
WHOLE_CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(whole CXX)
file(GLOB files *.cpp)
add_library(whole SHARED ${files})
"""
WHOLE_PATCH = """\
--- a/torch/__init__.py
+++ b/torch/__init__.py
@@ -1 +1 @@
-version = "as it came"
+version = "patched"
"""
EMPTY_MODULE = """\
#include <Python.h>
static PyModuleDef d = {PyModuleDef_HEAD_INIT, "_C", "", -1, NULL};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&d); }
"""
# What builds the stand-in of torch: it could not pass for torch in a proof.
WHOLE_WORDS = ("whole.toml", "--step", "compile-torch-whole")
# What an environment asks for and this project does not use.
UNUSED = {
    "astunparse": "1.6.3",
    "cmake": "3.31.6", "ninja": "1.13.0", "numpy": "2.3.0", "pyyaml": "6.0.2",
    "requests": "2.32.0", "six": "1.17.0", "typing-extensions": "4.15.0",
}  # fmt: skip
USED = ("setuptools<80", "wheel", "packaging")
# A guard ends what a killed build left within this.
ENDED_WITHIN_S = 20.0
PROVENANCE = ".intoto.jsonl"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_UPLOADED = re.compile(rb'"upload-time": "[^"]*",')


class CampaignError(Exception):
    """The campaign itself cannot go on."""


@dataclass
class Ended:
    """One run of a command that is over."""

    status: int
    events: list[dict[str, object]]
    stderr: str

    def steps(self, name: str) -> list[str]:
        """The steps that had this event."""
        return [str(event["step"]) for event in self.events if event.get("event") == name]


@dataclass
class Server:
    """Serves the packages; told to, it hangs up in the middle of an answer."""

    folder: Path
    hang_up: bool = False
    port: int = 0
    _server: http.server.ThreadingHTTPServer | None = field(default=None, repr=False)

    def start(self) -> None:
        """Serve from now on."""
        ours = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *words: object) -> None:
                super().__init__(*words, directory=str(ours.folder))  # type: ignore[arg-type]

            def log_message(self, *words: object) -> None:
                return

            def copyfile(self, source: object, outputfile: object) -> None:
                content = source.read()  # type: ignore[attr-defined]
                half = len(content) // 2 if ours.hang_up else len(content)
                with contextlib.suppress(OSError):
                    outputfile.write(content[:half])  # type: ignore[attr-defined]

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class Project:
    """The project in a folder: `disk` is what faults happen to, all else stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.behind = folder / "behind"
        self.saved = folder / "saved"
        self.preload = folder / "fault.so"
        self.mark = folder / "struck"
        self.server = Server(folder / "packages")
        self.sign = uuid.uuid4().hex
        self.mounted = False
        self._count = 0

    @property
    def store(self) -> Path:
        """The store of all builds."""
        return self.disk / "store"

    @property
    def project(self) -> Path:
        """The recipe's folder: index, channel and results are in it."""
        return self.disk / "project"

    def make(self) -> None:
        """Write everything that is not struck, and an untouched project."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("home", "data", "runs", "disk", "behind"):
            (self.folder / name).mkdir(exist_ok=True)
        self._make_packages()
        self.server.start()
        source = Path(__file__).with_name("fault_preload.c")
        _call("cc", "-shared", "-fPIC", "-O1", "-o", self.preload, source, "-ldl")
        self.mount()
        for name in ("tmp", "project/small/small"):
            (self.disk / name).mkdir(parents=True)
        self._make_torch(self.disk / "torch")
        self._make_sources(self.disk / "sources")
        files = {f"part{n}.cpp": PART.format(n) for n in range(1, FILES)}
        files |= {"setup.py": SETUP, "module.cpp": MODULE, "small/__init__.py": ""}
        for name, text in files.items():
            (self.project / "small" / name).write_text(text, encoding="utf-8")
        (self.project / "recipe.toml").write_text(
            RECIPE.replace("@TORCH@", str(self.disk / "torch")), encoding="utf-8"
        )

    def _make_packages(self) -> None:
        house = self.server.folder / "simple"
        house.mkdir(parents=True, exist_ok=True)
        brought = self.folder / "brought"
        _call(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", brought, *USED)
        wheels = [*brought.iterdir(), *(_empty_wheel(brought, *item) for item in UNUSED.items())]
        for wheel in wheels:
            place = house / wheel.name.partition("-")[0].lower().replace("_", "-")
            place.mkdir(exist_ok=True)
            shutil.copy(wheel, place)
            page = f'<!doctype html><a href="{wheel.name}">{wheel.name}</a>'
            (place / "index.html").write_text(page, encoding="utf-8")

    def _make_torch(self, environment: Path) -> None:
        """An environment with a package that is called torch and can be imported."""
        _call(sys.executable, "-m", "venv", "--without-pip", environment)
        (site,) = environment.glob("lib/python3*/site-packages")
        about = site / f"torch-{RELEASE}.dist-info"
        for folder in (site / "torch/backends", about):
            folder.mkdir(parents=True)
        texts = {
            "torch/__init__.py": "from torch import _C, version\n__version__ = version.__version__",
            "torch/version.py": f'__version__ = "{RELEASE}"\ncuda = None\nhip = None',
            "torch/backends/__init__.py": "",
            f"{about.name}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {RELEASE}",
        }
        for name, text in texts.items():
            (site / name).write_text(f"{text}\n", encoding="utf-8")
        code = environment / "c.c"
        code.write_text(EMPTY_MODULE, encoding="utf-8")
        library = site / "torch" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
        headers = sysconfig.get_path("include")
        _call("cc", "-shared", "-fPIC", f"-I{headers}", "-o", library, code)

    def _make_sources(self, folder: Path) -> None:
        """A repository in the place of PyTorch's, and the recipe that builds it."""
        files = {f"part{n}.cpp": PART.format(n) for n in range(1, FILES)}
        files |= {"setup.py": WHOLE_SETUP, "CMakeLists.txt": WHOLE_CMAKE, "c.c": EMPTY_MODULE}
        files["torch/__init__.py"] = 'version = "as it came"\n'
        (folder / "torch").mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        git = ("git", "-C", folder, "-c", "user.name=Nobody", "-c", "user.email=n@example.invalid")
        _call(*git, "init", "--quiet")
        _call(*git, "add", ".")
        _call(*git, "commit", "--quiet", "--message=all")
        commit = _call("git", "-C", folder, "rev-parse", "HEAD")
        recipe = WHOLE.replace("@COMMIT@", commit).replace("@SOURCES@", str(folder))
        (self.project / "whole.toml").write_text(recipe, encoding="utf-8")
        (self.project / "whole.patch").write_text(WHOLE_PATCH, encoding="utf-8")

    # The disk.

    def mount(self) -> None:
        """Have a disk in memory, where root may; else an ordinary folder is struck."""
        words = ["mount", "-t", "tmpfs", "-o", "size=2g,mode=755", "faults", str(self.behind)]
        if os.geteuid() == 0:
            done = subprocess.run(words, check=False, capture_output=True)
            self.mounted = done.returncode == 0
        if self.mounted:
            self.appear()

    def appear(self) -> None:
        """Have the disk where it belongs; what was written there while it was away goes."""
        for path in self.disk.iterdir():
            _call("rm", "-rf", path)
        _call("mount", "--bind", self.behind, self.disk)

    def vanish(self) -> None:
        """Take the disk away from under whoever uses it."""
        _call("umount", "-l", self.disk)

    def remount(self, options: str) -> None:
        """Change the disk: its size, its inodes, whether it can be written to."""
        _call("mount", "-o", f"remount,{options}", self.behind)

    def used(self) -> tuple[int, int]:
        """The bytes and the inodes in use."""
        state = os.statvfs(self.disk)
        return (state.f_blocks - state.f_bfree) * state.f_frsize, state.f_files - state.f_ffree

    def save(self, name: str) -> None:
        """Keep the disk as it is now."""
        shutil.rmtree(self.saved / name, ignore_errors=True)
        (self.saved / name).mkdir(parents=True)
        _call("cp", "-a", f"{self.disk}/.", self.saved / name)

    def load(self, name: str) -> None:
        """Have the disk as it was kept."""
        for path in self.disk.iterdir():
            _call("rm", "-rf", path)
        _call("cp", "-a", f"{self.saved / name}/.", self.disk)
        self.mark.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave nothing behind but the folder."""
        self.server.close()
        for pid in self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.mounted:
            for place in (self.disk, self.behind):
                subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)

    # Commands.

    def environment(self) -> dict[str, str]:
        """What every command of the campaign runs with."""
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {
            "PATH": programs,
            "HOME": str(self.folder / "home"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "TMPDIR": str(self.disk / "tmp"),
            "TORCHSMITH_STORE": str(self.store),
            # Found again in every process that was started by us, directly or not.
            "TORCHSMITH_CAMPAIGN": self.sign,
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"http://127.0.0.1:{self.server.port}/simple",
            "PIP_RETRIES": "0",
            "PIP_TIMEOUT": "5",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
        }

    def start(
        self, *words: str, before: tuple[str, ...] = (), env: Mapping[str, str] = _NOTHING
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command in a session of its own; what it prints goes to two files."""
        self._count += 1
        log = self.folder / "runs" / f"{self._count:05}"
        command = [*before, sys.executable, "-m", "torchsmith", *words]
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env={**self.environment(), **env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        return process, log

    def build(
        self, *more: str, before: tuple[str, ...] = (), env: Mapping[str, str] = _NOTHING
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Start the build."""
        words = ("build", "--json", "--jobs", "2", "--output", "out", *more)
        return self.start(*words, before=before, env=env)

    @staticmethod
    def ended(process: subprocess.Popen[bytes], log: Path, patience: float = 600) -> Ended:
        """Wait for a command."""
        try:
            status = process.wait(patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = 124
        stderr = log.with_suffix(".err").read_text(encoding="utf-8", errors="replace")
        return Ended(status, read_events(log), stderr)

    # What has to be true.

    def running(self) -> list[int]:
        """Processes of the campaign's commands that live, whoever started them."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if self.sign.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def left_running(self) -> list[str]:
        """What still runs after the time a guard has, and mounts that were not there."""
        until = time.monotonic() + ENDED_WITHIN_S
        while (found := self.running()) and time.monotonic() < until:
            time.sleep(0.05)
        names = []
        for pid in found:
            with contextlib.suppress(OSError):
                names.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()[:120]!r}")
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return names + [line for line in mounts if f"{self.disk}/" in line.split()[1]]

    def half_visible(self) -> list[str]:
        """Whatever readers can find that is not whole: store, index, channel, results."""
        store = Store(self.store)
        folders = (store.root / "entries").glob("*/*")
        found = [f"{folder.name[:8]} {item}" for folder in folders for item in problems_of(folder)]
        for name in ("index", "channel", "out", "shelf"):
            for path in (self.project / name).rglob("*"):
                hidden = any(part.startswith(".") for part in path.relative_to(self.project).parts)
                if path.is_file() and not hidden and not _is_whole(path):
                    found.append(str(path.relative_to(self.project)))
        return found + self._untrue_pages()

    def _untrue_pages(self) -> list[str]:
        """Files that a page names and that are not there with those bytes."""
        named: list[tuple[Path, str]] = []
        with contextlib.suppress(ValueError):
            for page in self.project.glob("*/simple/*/index.json"):
                files = json.loads(page.read_bytes())["files"]
                named += [
                    (page.with_name(item["filename"]), item["hashes"]["sha256"]) for item in files
                ]
            for page in self.project.glob("channel/*/repodata.json"):
                packages = json.loads(page.read_bytes())["packages.conda"]
                named += [(page.with_name(name), item["sha256"]) for name, item in packages.items()]
        return [
            f"{path.name} is named and is not so"
            for path, digest in named
            if not path.is_file() or _digest(path.read_bytes()) != digest
        ]

    def results(self, *folders: str) -> dict[str, str]:
        """The bytes of everything a build makes; of provenance, what is not about the time."""
        found = {}
        for name in folders or ("index", "channel", "out"):
            for path in sorted((self.project / name).rglob("*")):
                key = str(path.relative_to(self.project))
                if path.is_file() and not key.endswith(".verify.json"):
                    content = path.read_bytes()
                    if key.endswith(PROVENANCE):
                        content = _lasting(content)
                    found[key] = _digest(_UPLOADED.sub(b"", content))
        return found

    def tracebacks(self, *runs: Ended) -> list[str]:
        """Tracebacks of torchsmith's own: on the screen, and in the logs of its tasks."""
        texts = [run.stderr for run in runs]
        logs = self.store.glob("logs/*/*.log")
        texts += [log.read_text(encoding="utf-8", errors="replace") for log in logs]
        own = f"{os.sep}torchsmith{os.sep}"
        return [
            text[text.index("Traceback (most") :][-600:]
            for text in texts
            if "Traceback (most" in text and own in text[text.index("Traceback (most") :]
        ]


def read_events(log: Path) -> list[dict[str, object]]:
    """The events of a run; a line cut short by its end is left out."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def _call(*words: str | Path) -> str:
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise CampaignError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lasting(envelope: bytes) -> bytes:
    statement = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    details = statement["predicate"]["runDetails"]
    details.pop("metadata")
    # A report of a proof says how many seconds it took.
    details["byproducts"] = [item["name"] for item in details["byproducts"]]
    return json.dumps(statement, sort_keys=True).encode()


def _is_whole(path: Path) -> bool:
    try:
        if path.suffix in (".whl", ".conda"):
            with zipfile.ZipFile(path) as archive:
                return archive.testzip() is None
        if path.suffix in (".json", ".jsonl"):
            json.loads(path.read_bytes())
        if path.suffix == ".html":
            return b"</html>" in path.read_bytes()
    except (ValueError, zipfile.BadZipFile, OSError):
        return False
    return True


def _record_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _empty_wheel(folder: Path, name: str, version: str) -> Path:
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_record_hash(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    target = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return target
