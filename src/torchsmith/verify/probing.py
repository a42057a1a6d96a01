"""Running the probe inside a target's Python, and reading what it says."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.foreign import decode
from torchsmith.temporary import temporary_folder
from torchsmith.verify.buildconfig import BuildConfig, archs_of, parse_config
from torchsmith.verify.checks import Check
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
