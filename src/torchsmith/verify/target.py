"""What is verified: wheels, put into a fresh environment, or an environment as it is."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from msgspec import Struct
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from torchsmith.errors import HostError, TookTooLongError, UsageError
from torchsmith.facts.ranges import release
from torchsmith.foreign import whole
from torchsmith.host.models import Python
from torchsmith.host.probe import Programs, ask
from torchsmith.host.system import read_platform, read_pythons
from torchsmith.inputs import check_file
from torchsmith.plan.torch import fresh_venv, site_packages
from torchsmith.programs import apart
from torchsmith.temporary import make_temporary, remove_temporary
from torchsmith.verify.wheelfile import Wheel

_ASK = (
    "import json, platform, sys; print(json.dumps([platform.python_version(), sys.prefix,"
    " [path for path in sys.path if path], getattr(sys, 'abiflags', '')]))"
)
_INSTALL_LIMIT = 3600


class Environment(Struct, frozen=True):
    """A Python and the folders it imports from."""

    python: Path
    version: str
    prefix: Path
    paths: tuple[Path, ...]
    flags: str = ""

    @property
    def short(self) -> str:
        """As its folders are named: 3.13, and 3.13t where it is free-threaded."""
        return ".".join(self.version.split(".")[:2]) + ("t" if "t" in self.flags else "")

    def installed(self) -> dict[str, Distribution]:
        """Distributions by name; the first on the path hides the others, as in an import."""
        found: dict[str, Distribution] = {}
        for item in distributions(path=[str(path) for path in self.paths]):
            # A half-removed folder has no metadata in it.
            if "Name" in item.metadata:
                found.setdefault(canonicalize_name(item.metadata["Name"]), item)
        return found


class Options(Struct, frozen=True):
    """How wheels are tried. `find_links` also forbids asking an index.

    `folder` is where the fresh environment is made, by default a temporary one; with `layered`
    it lies on top of the one whose Python is named, which stays as it is. `beside` are wheels
    that are installed too and not looked at; `numpy` is how pip is asked for NumPy, by default
    as torch wants it.
    """

    python: str = ""
    folder: Path | None = None
    layered: bool = False
    beside: tuple[Path, ...] = ()
    deps: bool = True
    numpy: tuple[str, ...] = ()
    find_links: str = ""
    keep: bool = False
    run: bool = True
    timeout: float = 120.0


Say = Callable[[str], None]


def sort_targets(paths: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """Sort wheels from an environment; anything else is refused with a reason."""
    wheels = [path for path in paths if path.suffix == ".whl"]
    rest = [path for path in paths if path.suffix != ".whl"]
    if missing := [path for path in paths if not path.exists()]:
        raise UsageError(
            f"{missing[0]} does not exist", "Name a wheel, an environment's folder, or its python."
        )
    for wheel in wheels:
        check_file(wheel, "Name a wheel.")
    if len(rest) > 1 or (rest and wheels):
        raise UsageError(
            "these do not go together in one verification",
            "Give one environment, or wheels that are installed together.",
        )
    return wheels, rest[0] if rest else None


def read_environment(path: Path, *, alone: bool = True) -> Environment:
    """Ask an environment's Python what it is.

    Not `alone` it is asked as people start it: PYTHONPATH and their own packages add folders.
    """
    python = path
    if path.is_dir():
        names = [path / "bin" / name for name in ("python", "python3")]
        python = next((name for name in names if name.exists()), path)
    if python.is_dir():
        raise UsageError(
            f"{path} is not an environment: there is no bin/python in it",
            "Name the folder of a venv or conda environment, or a python itself.",
        )
    # Not resolved: behind the link of a venv is the Python without its packages.
    python = python.absolute()
    found = ask([str(python), *(["-I"] if alone else []), "-c", _ASK], timeout=60)
    try:
        output = found.out if found is not None else ""
        version, prefix, paths, flags = json.loads(output.strip().rpartition("\n")[2])
    except (ValueError, TypeError):
        raise UsageError(
            f"{python} is not a Python 3 that runs here",
            "Name a wheel, an environment's folder, or a python that this machine can start.",
        ) from None
    return Environment(python, version, Path(prefix), tuple(map(Path, paths)), flags)


def fits(tag: Tag, version: str) -> bool:
    """Whether a wheel of this tag can be installed into this CPython."""
    name = tag.interpreter
    if whole(name[2:]) is None:
        return False
    wanted = (int(name[2]), int(name[3:] or 0))
    have = release(version)[:2]
    if tag.abi == "abi3" or name.startswith("py"):
        return have[0] == wanted[0] and have >= wanted
    return name.startswith("cp") and have == wanted


def choose_python(wheels: Sequence[Wheel], asked: str, pythons: Sequence[Python]) -> Path:
    """Return a Python every wheel can be installed into."""
    if asked and not release_like(asked):
        return Path(asked)
    named = ", ".join(wheel.path.name for wheel in wheels)
    machine = read_platform().partition("-")[2]
    for wheel in wheels:
        platforms = {tag.platform for tag in wheel.tags}
        if not any(name == "any" or name.endswith(machine) for name in platforms):
            raise HostError(
                f"{wheel.path.name} is not for this machine, which is {machine}",
                "Verify it on such a machine, or look at it here with --no-run.",
            )
    for python in pythons:
        if asked and not f"{python.version}.".startswith(f"{asked.removesuffix('t')}."):
            continue
        if asked.endswith("t") and not python.free_threaded:
            continue
        if release(python.version)[0] < 3:
            continue
        if all(any(fits(tag, python.version) for tag in wheel.tags) for wheel in wheels):
            threaded = any(tag.abi.endswith("t") for wheel in wheels for tag in wheel.tags)
            if threaded == ("t" in read_environment(Path(python.path)).flags):
                return Path(python.path)
    here = ", ".join(dict.fromkeys(python.version for python in pythons)) or "none"
    tags = " ".join(sorted({tag.interpreter for wheel in wheels for tag in wheel.tags}))
    raise HostError(
        f"no Python here can install {named}",
        f"It is for {tags}; found: {here}. Name one with --python, or install it "
        "(uv python install).",
    )


def release_like(text: str) -> bool:
    """Whether this is a version (3.11, 3.14t) rather than a path."""
    return all(part.isdigit() for part in text.removesuffix("t").split("."))


def torch_given(wheels: Sequence[Wheel], options: Options) -> str:
    """The torch that wheels are to be used with; empty where pip chooses it."""
    known = {wheel.name: wheel.version for wheel in wheels}
    known |= {str(name): str(version) for name, version in map(_named, options.beside)}
    if options.layered and "torch" not in known:
        below = read_environment(Path(options.python)).installed()
        known |= {str(name): item.version for name, item in below.items()}
    return known.get("torch", "")


@contextlib.contextmanager
def fresh_environment(
    wheels: Sequence[Wheel], options: Options, say: Say
) -> Iterator[tuple[Environment, str]]:
    """Install wheels into an environment of their own; pip's complaint is the second value.

    It is removed at the end, however that comes, unless it is to be kept.
    """
    creator = choose_python(wheels, options.python, read_pythons(Programs(os.environ)))
    if options.folder is None and options.keep:
        folder = Path(tempfile.mkdtemp(prefix="torchsmith-verify-"))
    elif options.folder is None:
        folder = make_temporary("verify")
    else:
        folder = options.folder.absolute()
        # What a killed attempt left is of no use.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        python = read_environment(creator)
        say(f"installing into a fresh environment of Python {python.version}")
        yield _install(wheels, creator, python.short, folder / "env", options)
    finally:
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        if options.keep:
            say(f"kept: {folder / 'env'}")
        else:
            remove_temporary(folder)


def _install(
    wheels: Sequence[Wheel], creator: Path, short: str, folder: Path, options: Options
) -> tuple[Environment, str]:
    # What they leave there goes with the environment.
    temporary = folder.with_name("tmp")
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(temporary)}
    commands = fresh_venv(str(creator), str(folder), short)
    if options.layered:
        # Without pip: the one below serves.
        commands = [shlex.join([str(creator), "-m", "venv", "--without-pip", str(folder)])]
    if options.find_links or not options.deps:
        # The old Python's pip has to do: a newer one would come from an index.
        commands = [command for command in commands if " pip install " not in command]
    for command in commands:
        done = apart(["sh", "-c", command], env=env, timeout=_INSTALL_LIMIT)
        if done.code:
            reason = (done.complaint or ["no reason given"])[-1]
            raise HostError(
                f"{creator} cannot make an environment: {reason}",
                f"Debian and Ubuntu have its venv module in python{short}-venv.",
            )
    if options.layered:
        below = site_packages(str(creator.parent.parent.absolute()), short)
        lying = Path(site_packages(str(folder), short)) / "below.pth"
        # Not the bare path: the one below may itself lie on another, by such a file.
        lying.write_text(f"import site; site.addsitedir({below!r})\n", encoding="utf-8")
    install = [str(folder / "bin/python"), "-I", "-m", "pip", "install", "--quiet"]
    install += ["--disable-pip-version-check", "--no-input"]
    if options.find_links:
        install += ["--no-index", "--find-links", options.find_links]
    names = [str(path.absolute()) for path in (*options.beside, *(item.path for item in wheels))]
    torch = torch_given(wheels, options)
    if torch:
        # Whatever they require: another torch would be brought, and tried in its place.
        constraints = temporary / "constraints.txt"
        constraints.write_text(f"torch=={torch}\n", encoding="utf-8")
        install += ["--constraint", str(constraints)]
    if options.deps:
        names += options.numpy or (_numpy(torch),)
    else:
        install.append("--no-deps")
    try:
        done = apart([*install, *names], env=env, timeout=_INSTALL_LIMIT)
        failure = "" if done.code == 0 else done.err.strip() or "pip failed"
    except TookTooLongError as error:
        failure = str(error)
    return read_environment(folder), failure


def _numpy(torch: str) -> str:
    """Torch does not require NumPy; its bridge cannot be tried without."""
    # Compiled against NumPy 1 until 2.2, it does not understand arrays of NumPy 2.
    # https://github.com/pytorch/pytorch/issues/107302
    return "numpy<2" if torch and Version(torch).release[:2] < (2, 3) else "numpy"


def _named(wheel: Path) -> tuple[str, Version]:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return name, version
