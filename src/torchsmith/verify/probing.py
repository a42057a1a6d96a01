"""Running the probe inside a target's Python, and reading what torch says there."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.checks import Check
from torchsmith.foreign import decode
from torchsmith.temporary import temporary_folder
from torchsmith.verify.probe import script
from torchsmith.verify.target import Environment

_CURES = {
    "import torch": "read the last lines: a missing library, or one of another version",
    "extension name": "the wheel was built for another Python: build it for this one",
    "data loader": "if /dev/shm is full or small, give the container more (--shm-size=8G)",
    "numpy bridge": "torch before 2.3 needs numpy<2",
}


class TorchFacts(Struct, frozen=True):
    """What torch says of itself."""

    version: str = ""
    file: str = ""
    extension: str | None = None
    git_version: str | None = None
    debug: bool = False
    cuda: str | None = None
    hip: str | None = None
    cudnn: int | None = None
    nccl: tuple[int, ...] | None = None
    cxx11_abi: bool | None = None
    config: str = ""
    parallel: str = ""
    threads: int | None = None
    archs: tuple[str, ...] | None = None
    features: Mapping[str, bool | None] = {}

    @property
    def build(self) -> BuildConfig:
        """The text it prints about its build, parsed."""
        return parse_config(self.config)

    @property
    def compiled_for(self) -> tuple[str, ...]:
        """Architectures: sm_86 for machine code, compute_86 for PTX."""
        return self.archs if self.archs is not None else self.build.archs or archs_of(self.config)

    def has(self, feature: str) -> bool | None:
        """Whether a feature is there; what it does counts before what it says of its build."""
        there = self.features.get(feature)
        return self.build.setting(feature) if there is None else there


class Loading(Struct, frozen=True):
    """What to load beside torch: modules by name, and libraries by path."""

    neighbours: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


class ThreadPool(Struct, frozen=True):
    """What an OpenBLAS says of itself, `core` the CPU it takes this one for."""

    path: str
    threads: int | None = None
    parallel: int | None = None
    core: str = ""


class Loaded(Struct, frozen=True):
    """A process that imported torch and its neighbours.

    `libraries` are the files it mapped; `modules` the versions of the neighbours, `unimported` why
    one could not be imported, `refused` why a library could not be loaded. `gpus` counts those
    torch can use, and `gpu_trouble` is what it said instead. `lost` says why nothing is known.
    """

    libraries: tuple[str, ...] = ()
    modules: Mapping[str, str] = {}
    unimported: Mapping[str, str] = {}
    refused: Mapping[str, str] = {}
    pools: tuple[ThreadPool, ...] = ()
    gpus: int | None = None
    gpu_trouble: str = ""
    lost: str = ""


class Probed(Struct, frozen=True):
    """The probe's document."""

    python: Mapping[str, object] = {}
    facts: TorchFacts = TorchFacts()
    loaded: Loaded = Loaded()
    checks: tuple[Check, ...] = ()


def probe(
    environment: Environment,
    imports: Sequence[str],
    timeout: float,
    only: Sequence[str] = (),
    check: str = "",
    loading: Loading | None = None,
) -> Probed:
    """Use the torch of an environment; what goes wrong becomes a check that fails.

    `only` names the files of the probe whose checks are wanted, by default all of them; `check`
    is a line of Python that has to run as well. With `loading`, Python is started as people start
    it, with what PYTHONPATH and their own packages add.
    """
    request = {"imports": list(imports), "timeout": timeout, "only": list(only), "check": check}
    argv = [str(environment.python), "-I", str(Path(script.__file__))]
    if loading is not None:
        argv.remove("-I")
        request["loading"] = msgspec.to_builtins(loading)
    argv.append(json.dumps(request))
    # Away from where we stand: `import torch` must find the installed one.
    with temporary_folder("probe") as folder:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            # Every check has its own limit; this one is for the probe itself going astray.
            out, err = process.communicate(timeout=timeout * 60)
        except BaseException as reason:
            # Politely first: it ends the check it is in the middle of.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            out, err = process.communicate()
            if not isinstance(reason, subprocess.TimeoutExpired):
                raise
    return read_document(
        out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), process.returncode
    )


def read_document(out: str, err: str, code: int) -> Probed:
    """Read what stands between the markers."""
    _, begin, rest = out.rpartition(f"\n{script.BEGIN}\n")
    text, end, _ = rest.partition(f"\n{script.END}")
    try:
        if not begin or not end:
            raise ValueError
        found = decode(text, Probed)
    except (ValueError, msgspec.MsgspecError):
        ended = f"ended with code {code}"
        if code < 0:
            ended = f"ended by {signal.Signals(-code).name}"
        lost = Check("python", "probe", "fail", f"no answer: {ended}", detail=err[-2000:])
        return Probed(checks=(lost,))
    return msgspec.structs.replace(found, checks=tuple(map(_with_cure, found.checks)))


def _with_cure(check: Check) -> Check:
    cure = _CURES.get(check.name, "")
    return msgspec.structs.replace(check, cure=cure) if check.status == "fail" and cure else check


_SETTING = re.compile(r",\s+(?=[A-Z][A-Z0-9_]*=)")
_CODE = re.compile(r"code=\[?((?:(?:sm|compute)_\d+[a-z]?,?)+)")
_DEFINE = re.compile(r"(?:^|\s)-DUSE_([A-Z0-9_]+)(?:=(\S+))?(?=\s|$)")
_ON = frozenset({"on", "1", "true", "yes"})
_OFF = frozenset({"off", "0", "false", "no", ""})

# Features whose setting has another name than USE_<feature>.
_SETTINGS = {"cupti": "USE_CUPTI_SO", "static_cuda": "CAFFE2_STATIC_LINK_CUDA"}


class BuildConfig(Struct, frozen=True):
    """How a torch was built, by its own account; empty where it does not say."""

    compiler: str = ""
    cxx: str = ""
    mkl: str = ""
    mkldnn: str = ""
    openmp: str = ""
    cpu: str = ""
    cuda: str = ""
    archs: tuple[str, ...] = ()
    cudnn: str = ""
    magma: str = ""
    settings: Mapping[str, str] = {}

    def setting(self, feature: str) -> bool | None:
        """Whether a feature was switched on; None where nothing is said about it."""
        name = _SETTINGS.get(feature, f"USE_{feature.upper()}")
        value = self.settings.get(name, "").strip().lower()
        if name in self.settings and value in _ON | _OFF:
            return value in _ON
        defines = {
            found[1]: found[2] for found in _DEFINE.finditer(self.settings.get("CXX_FLAGS", ""))
        }
        if feature.upper() in defines:
            return (defines[feature.upper()] or "1").lower() in _ON
        return None


def parse_config(text: str) -> BuildConfig:
    """Return what the text says; lines it does not know are left alone."""
    fields: dict[str, str] = {}
    settings: dict[str, str] = {}
    for line in text.splitlines():
        item = line.strip().removeprefix("- ").strip()
        if item.startswith("Build settings:"):
            settings = _settings(item.removeprefix("Build settings:"))
        else:
            for name, pattern in _LINES.items():
                if name not in fields and (found := pattern.match(item)):
                    fields[name] = found[found.lastindex or 0]
    archs = archs_of(fields.pop("archs", ""))
    if exact := settings.get("CUDNN_VERSION"):
        # The line itself divides the number as cuDNN 8 and older meant it: 9.19 reads 91.9.
        fields["cudnn"] = exact
    return msgspec.convert({**fields, "archs": archs, "settings": settings}, BuildConfig)


_LINES = {
    "compiler": re.compile(r"((?:GCC|clang|MSVC) \S+)", re.IGNORECASE),
    "cxx": re.compile(r"C\+\+ Version: (\d+)"),
    # MKL-DNN says "Intel(R)" too.
    "mkl": re.compile(r"Intel\(R\) (?:oneAPI )?Math Kernel Library Version (\S+)"),
    "mkldnn": re.compile(r"Intel\(R\) MKL-DNN v(\S+)"),
    "openmp": re.compile(r"OpenMP (\d+)"),
    "cpu": re.compile(r"CPU capability usage: (\S[^\n]*\S)"),
    "cuda": re.compile(r"CUDA Runtime (\S+)"),
    "archs": re.compile(r"NVCC architecture flags: (.*)"),
    "cudnn": re.compile(r"CuDNN (\d[\d.]*)"),
    "magma": re.compile(r"Magma (\S+)"),
}


def _settings(text: str) -> dict[str, str]:
    # Values hold commas (-gencode arch=…,code=…); only a new name in capitals starts the next.
    pairs = _SETTING.split(text.strip().rstrip(",").rstrip())
    return {
        name: value.strip() for name, _, value in (pair.partition("=") for pair in pairs) if name
    }


# A path begins where none goes on: /opt/rh/gcc-toolset-11/root/usr is nobody's home.
_PATH = re.compile(r"(?<![\w./+~@%-])/[^\s,;:\"'\\]+")
_HOMES = ("/home/", "/root/", "/Users/")


def foreign_paths(text: str, places: Sequence[str] = ()) -> tuple[str, ...]:
    """The paths a text names that lie in somebody's home or in one of these folders."""
    starts = (*_HOMES, *(f"{place.rstrip('/')}/" for place in places if place.strip("/")))
    found = [match[0] for match in _PATH.finditer(text) if f"{match[0]}/".startswith(starts)]
    return tuple(dict.fromkeys(found))


def archs_of(flags: str) -> tuple[str, ...]:
    """sm_86 for machine code, compute_86 for PTX, in order and once each."""
    found = [name for match in _CODE.finditer(flags) for name in match[1].split(",") if name]
    return tuple(dict.fromkeys(found))
