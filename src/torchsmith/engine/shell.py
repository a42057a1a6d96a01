"""A step as a bash script and an environment, for running it here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torchsmith.engine.inside import HOOK, PATH
from torchsmith.host.limits import read_cores, read_memory
from torchsmith.package import UNCOMPRESSED
from torchsmith.plan.models import Step
from torchsmith.plan.shell import OURS
from torchsmith.secret_names import is_secret_name
from torchsmith.toolchain.build_paths import Knows, setuptools_flags, understands
from torchsmith.toolchain.preload import LOADED

# A C++ file of PyTorch takes up to this much to compile.
_BYTES_A_COMPILER = 2_500_000_000

# Variables that change what is built and are in no step's key: they belong into a recipe.
_LEAKS = frozenset(
    [
        "BASH_ENV",
        "CFLAGS",
        "CPATH",
        "CPPFLAGS",
        "CXXFLAGS",
        "ENV",
        "LDFLAGS",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "TORCHSMITH_FRESH",
        "TORCHSMITH_RESUME",
        "VIRTUAL_ENV",
    ]
)
# PyTorch's setup.py passes every variable with one of these beginnings to CMake.
_LEAKING = ("BUILD_", "CMAKE_", "USE_", "PYTORCH_", "TORCH_")


# What a step sees of the caller's variables if it runs a project's own code, or is hermetic.
_PASSED = frozenset(
    [
        *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"),
        *("CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDAHOSTCXX", "CUDA_VISIBLE_DEVICES"),
        *("LD_LIBRARY_PATH", "LIBRARY_PATH", "PKG_CONFIG_PATH", "MAX_JOBS", "OMP_NUM_THREADS"),
        # Compilers and interpreters that live in somebody's home.
        *("CARGO_HOME", "RUSTUP_HOME"),
    ]
)
_PASSED_GROUPS = ("CCACHE_", "NVIDIA_", "PYENV_", "TORCHSMITH_")
# Variables that say how to reach the network: for steps that have one.
_REACHING = frozenset(
    [
        *("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"),
        *("ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle", "curl_ca_bundle"),
        *("git_ssl_cainfo", "debian_mirror", "xdg_cache_home"),
    ]
)
_REACHING_GROUPS = ("PIP_", "UV_")


# In the work folder: the home of steps that have no network.
OWN_HOME = ".torchsmith/home"


def inherited_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without the variables that would change a build unnoticed."""
    caller = os.environ if variables is None else variables
    kept = {
        name: value
        for name, value in caller.items()
        if name not in _LEAKS and not name.startswith(_LEAKING)
    }
    if not kept.get("MAX_JOBS"):
        cores = read_cores()
        _, available = read_memory()
        fit = cores if available is None else min(cores, available // _BYTES_A_COMPILER)
        kept["MAX_JOBS"] = str(max(1, fit))
    return kept


def step_environment(
    step: Step,
    work: Path,
    base: Mapping[str, str],
    secrets: frozenset[str],
    *,
    resume: bool,
    fresh: bool = False,
    date: int | None = None,
    knows: Knows = understands,
) -> dict[str, str]:
    """The environment a step runs in; of the plan's secrets it sees only its own.

    With `resume` it goes on in the tree it was stopped in, with `fresh` in no earlier tree. With
    `date` its results have the same bytes at any time, and its wheels are compressed later.
    """
    kept = set(step.secrets)
    env = {name: value for name, value in base.items() if name not in secrets - kept}
    if step.hermetic or step.kind == "environment":
        env = {
            name: value
            for name, value in env.items()
            if name in kept or (not is_secret_name(name) and _may_see(step, name, value))
        }
        if step.offline and not step.place.inside:
            env.update(own_home(work, env.get("HOME", "")))
    if step.offline:
        # Or pip asks whether there is a newer pip.
        env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    for name in ("TORCHSMITH_FRESH", "TORCHSMITH_RESUME"):
        env.pop(name, None)
    env["WORK"] = str(work)
    env.setdefault("PROJECT", str(Path.cwd()))
    # One language, in which "error:" is searched for, and one order of sorting.
    env["LC_ALL"] = "C.UTF-8"
    env["PYTHONUNBUFFERED"] = "1"
    # What runs torchsmith's own modules.
    env["TORCHSMITH_PYTHON"] = sys.executable
    if date is not None:
        # https://reproducible-builds.org/specs/source-date-epoch/; wheel and gcc heed it.
        env["SOURCE_DATE_EPOCH"] = str(date)
        env["PYTHONHASHSEED"] = "0"
        compiler = dict(step.env).get("CC", "cc")
        if flags := setuptools_flags(work, compiler, knows):
            env["CPPFLAGS"] = flags
        # A setuptools of before 2022 does not read it: its wheels are compressed already.
        env["DIST_EXTRA_CONFIG"] = str(UNCOMPRESSED)
    folders = [str(work / folder) for folder in step.path]
    # These programs are found before those of the step's own environment.
    if shims := env.get("TORCHSMITH_SHIMS"):
        folders.insert(0, shims)
    if step.place.inside:
        # The container adds its own folders.
        env[PATH] = ":".join(folders)
    elif folders:
        env["PATH"] = ":".join([*folders, env.get("PATH", os.defpath)])
    # CMake already has each of torch's own compiles ask the governor.
    hook = env.pop(HOOK, "")
    if hook and step.kind == "compile" and step.project != "torch":
        env[HOOK if step.place.inside else LOADED] = hook
    for name, value in step.env:
        env[name] = f"{work}/{value[2:]}" if value.startswith("@/") else value
    if resume:
        env["TORCHSMITH_RESUME"] = "1"
    if fresh:
        env["TORCHSMITH_FRESH"] = "1"
    return env


def _may_see(step: Step, name: str, value: str) -> bool:
    """Whether such a step may see a variable: torchsmith's own, and some of the caller's."""
    if os.environ.get(name) != value or name in _PASSED or name.startswith(_PASSED_GROUPS):
        return True
    if step.kind == "package" and name == "SOURCE_DATE_EPOCH":
        return True
    reaching = name.lower() in _REACHING or name.startswith(_REACHING_GROUPS)
    return reaching and not step.offline


def own_home(work: Path, home: str) -> dict[str, str]:
    """A home without settings; programs installed in the caller's home are still found."""
    known = {"CARGO_HOME": ".cargo", "PYENV_ROOT": ".pyenv", "RUSTUP_HOME": ".rustup"}
    found = {
        name: f"{home}/{folder}"
        for name, folder in known.items()
        if home and name not in os.environ and Path(home, folder).is_dir()
    }
    return {**found, "HOME": str(work / OWN_HOME)}


def _lines(step: Step) -> tuple[str, ...]:
    """A step's action in shell: its commands, or the module that does its task."""
    if step.task is None:
        return step.commands
    return (f"{OURS} -m {step.task.module} <<'END_OF_INPUT'\n{step.task.text}\nEND_OF_INPUT",)


def step_script(step: Step) -> str:
    """The lines of a step, for `bash -euo pipefail`.

    The first line waits for leave to start: if torchsmith dies before, the pipe ends, and so does
    the script.
    """
    # `read … && exec` would go on: `set -e` ignores a failure before `&&`.
    return "\n".join(["read -r _ || exit 1; exec </dev/null", *_lines(step)]) + "\n"
