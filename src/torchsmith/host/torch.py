"""The torch somebody has installed already: which one, and in which Python's environment."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name

from torchsmith.host.models import InstalledTorch
from torchsmith.host.probe import Programs, first_version, is_executable, read_text

# Found, not imported: that takes seconds. Without the folder we happen to stand in, which may
# be PyTorch's own sources.
_ASKS = (
    "import importlib.util as u, json, os, platform, site, sys;"
    " sys.path = [p for p in sys.path if p]; found = u.find_spec('torch');"
    " origin = found.origin if found else None;"
    " own = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE"
    " else []);"
    " print(json.dumps([platform.python_version(), os.path.dirname(origin) if origin else '',"
    " [p for p in own if os.path.isdir(p)], getattr(sys, 'abiflags', '')]))"
)
_RECORD = "torch-*.dist-info/RECORD"
_VERSION = re.compile(r"^__version__ = ['\"]([0-9][0-9A-Za-z.+]*)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: Optional\[str\])? = ['\"]([0-9.]+)['\"]", re.MULTILINE)


def environment_python(programs: Programs, environment: str, python: str) -> Path | None:
    """The interpreter meant by an environment's folder, or else by a Python's version.

    'host' is the environment that is switched on, or the one torchsmith runs in.
    """
    if environment:
        place = Path(environment)
        return next(filter(is_executable, (place / "bin/python", place / "bin/python3")), None)
    if python != "host":
        return programs.find(f"python{python}")
    named = [programs.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    paths = [*(Path(folder) / "bin/python" for folder in named if folder), Path(sys.executable)]
    return next(filter(is_executable, paths), None)


def read_torch(programs: Programs, python: Path) -> InstalledTorch | None:
    """The torch an interpreter would import; `None` if it has none that says what it is."""
    # -E: what PYTHONPATH adds does not reach a build.
    output = programs.run(python, "-E", "-c", _ASKS) or ""
    try:
        version, module, packages, flags = json.loads(output.strip().rpartition("\n")[2])
    except (ValueError, TypeError):
        return None
    about_file = Path(module) / "version.py"
    own = torch_version(Path(module)) if module else ""
    if not own or first_version(version) != version:
        return None
    cuda = _CUDA.search(read_text(about_file) or "")
    return InstalledTorch(
        version=own,
        cuda=cuda[1] if cuda else "",
        python=version,
        free_threaded="t" in flags,
        # Not resolved: behind the link of a venv is the Python without its packages.
        path=str(python.absolute()),
        module=module,
        packages=tuple(packages),
        # The list of its files with their hashes, which only a torch in development lacks.
        evidence=(str(about_file), *map(str, sorted(Path(module).parent.glob(_RECORD)))),
        beside=_distributions(packages),
    )


def torch_version(module: Path) -> str:
    """What a folder of torch says it is; empty where it does not."""
    found = _VERSION.search(read_text(module / "version.py") or "")
    return found[1] if found else ""


def _distributions(folders: Iterable[str]) -> dict[str, str]:
    """What is installed in these folders, by the names of the folders pip keeps its notes in."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = path.stem.rpartition("-")
            if name:
                found.setdefault(str(canonicalize_name(name)), version)
    return found


def read_torches(
    programs: Programs, places: Iterable[tuple[str, str]]
) -> tuple[InstalledTorch, ...]:
    """The torches meant by pairs of an environment's folder and a Python's version."""
    pythons = [environment_python(programs, *place) for place in dict.fromkeys(places)]
    read = [read_torch(programs, python) for python in dict.fromkeys(pythons) if python]
    return tuple(item for item in read if item)
