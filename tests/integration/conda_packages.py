"""A channel made here: this machine's Python as a conda package, and a small compiled wheel."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.package.conda.pack import pack
from torchsmith.package.pack import pack_folder
from torchsmith.package.patchelf import Patch, patch
from torchsmith.plan.conda import CondaSpec, conda_subdir

if TYPE_CHECKING:
    from rattler import RepoDataRecord

MACHINE = platform.machine()
SUBDIR = conda_subdir(f"linux-{MACHINE}")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
_LEFT_OUT = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
    *("site-packages", "dist-packages", "__pycache__", "config-*", "distutils", "pydoc_data"),
)


def pack_python(channel: Path, folder: Path) -> None:
    """Pack the Python the tests run in: its programs, its modules, its library if it has one."""
    tree = folder / "python"
    (tree / "bin").mkdir(parents=True)
    program = tree / f"bin/python{PYTHON}"
    shutil.copy2(Path(sys.executable).resolve(), program)
    (tree / "bin/python").symlink_to(program.name)
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        tree / f"lib/python{PYTHON}",
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
    )
    (tree / f"lib/python{PYTHON}/site-packages").mkdir()
    # Debian's own Python looks for modules elsewhere.
    elsewhere = tree / f"lib/python{PYTHON}/dist-packages"
    elsewhere.mkdir()
    (elsewhere / "conda.pth").write_text("../site-packages\n")
    library = sysconfig.get_config_var("INSTSONAME")
    shared = Path(sysconfig.get_config_var("LIBDIR") or "/", library or "")
    if library and library.endswith(".so.1.0") and shared.is_file():
        shutil.copy2(shared, tree / "lib")
        patch(program, Patch(search=("$ORIGIN/../lib",)))
    spec = CondaSpec(
        output=str(channel),
        name="python",
        version=platform.python_version(),
        build="0_cpython",
        subdir=SUBDIR,
        tree=str(tree),
        # /usr is in every script: it says nothing.
        prefix="" if sys.base_prefix == "/usr" else sys.base_prefix,
        depends=(f"python_abi {PYTHON}.* *_{TAG}",),
        license="PSF-2.0",
    )
    # Python looks for its modules beside itself; what was compiled in is only tried last.
    pack(spec, ignore=("bin/*", "lib/*.so*", "*/lib-dynload/*"))


def pack_empty(
    channel: Path,
    name: str,
    version: str,
    build: str = "0",
    depends: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> None:
    """Pack a package without files, such as a channel has to choose others with."""
    nothing = channel.parent / "nothing"
    nothing.mkdir(exist_ok=True)
    spec = CondaSpec(
        output=str(channel),
        name=name,
        version=version,
        build=build,
        subdir=SUBDIR,
        tree=str(nothing),
        depends=depends,
        flags=flags,
    )
    pack(spec)


def make_index(channel: Path) -> None:
    """Index a channel as its owner would."""
    from rattler.index import index_fs

    (channel / "noarch").mkdir(parents=True, exist_ok=True)
    asyncio.run(index_fs(channel))


def solved(where: str | Sequence[str], *specs: str) -> list[RepoDataRecord]:
    """What a client chooses from channels; RATTLER_CACHE_DIR says where it keeps listings."""
    from rattler import Channel, Gateway, VirtualPackage, VirtualPackageOverrides, solve

    virtual = VirtualPackage.detect(VirtualPackageOverrides.from_env())
    channels = [Channel(text) for text in ([where] if isinstance(where, str) else where)]
    # The default gateway keeps listings at home, and cannot be told "304 Not Modified" of them.
    gateway = Gateway(cache_dir=Path(os.environ["RATTLER_CACHE_DIR"]))
    return asyncio.run(solve(channels, list(specs), gateway, virtual_packages=virtual))


def installed(where: str | Sequence[str], prefix: Path, *specs: str) -> Path:
    """A prefix with what a client chooses."""
    from rattler import install

    records = solved(where, *specs)
    cache = Path(os.environ["RATTLER_CACHE_DIR"], "pkgs")
    asyncio.run(install(records, prefix, cache, show_progress=False))
    return prefix


_MODULE = r"""
#include <Python.h>
extern int deep(void);
static const char prefix[] = PREFIX "/share/tiny";
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(deep()); }
static PyObject *home(PyObject *self, PyObject *unused) { return PyUnicode_FromString(prefix); }
static PyMethodDef methods[] = {
    {"answer", answer, METH_NOARGS, ""}, {"home", home, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_tiny", "", -1, methods};
PyMODINIT_FUNC PyInit__tiny(void) { return PyModule_Create(&module); }
"""


def make_wheel(folder: Path, prefix: str, version: str = "1.2+cpu") -> Path:
    """A wheel with everything a wheel may have; its library lies where only a path leads."""
    tree = folder / "tree"
    package = tree / "tiny"
    (package / "lib").mkdir(parents=True)
    (folder / "deep.c").write_text('#include <stdlib.h>\nint deep(void) { return atoi("42"); }\n')
    (folder / "tiny.c").write_text(_MODULE)
    shared = ("gcc", "-shared", "-fPIC")
    library = package / "lib/libdeep.so"
    subprocess.run([*shared, "-o", library, folder / "deep.c"], check=True)
    subprocess.run(
        [
            *shared,
            f'-DPREFIX="{prefix}"',
            f"-I{sysconfig.get_path('include')}",
            *("-o", package / f"_tiny{sysconfig.get_config_var('EXT_SUFFIX')}"),
            folder / "tiny.c",
            *(f"-L{package}/lib", "-ldeep"),
            f"-Wl,--enable-new-dtags,-rpath,{package}/lib:$ORIGIN/lib",
        ],
        check=True,
    )
    main = """\
        from tiny._tiny import answer, home

        def main():
            print("answer", answer())
            return 0
        """
    (package / "__init__.py").write_text(textwrap.dedent(main))
    (package / "where.txt").write_text(f"{prefix}/share/tiny and not {prefix}2\n")
    stem = f"tiny-{version}"
    scripts = tree / f"{stem}.data/scripts"
    scripts.mkdir(parents=True)
    (scripts / "tiny-old").write_text("#!python\nimport tiny\nprint('old', tiny.answer())\n")
    for scheme, name in (("data/share/tiny", "data.txt"), ("headers", "tiny.h")):
        (tree / f"{stem}.data" / scheme).mkdir(parents=True)
        (tree / f"{stem}.data" / scheme / name).write_text(f"{scheme}\n")
    info = tree / f"{stem}.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "licenses/LICENSE").write_text("Anybody may.\n")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: tiny\nVersion: {version}\nSummary: A small one\n"
        "License-Expression: MIT\nRequires-Dist: helper>=1.0,!=1.5.*\n"
        "Requires-Dist: windows-only; sys_platform == 'win32'\n"
        "Requires-Dist: more; extra == 'more'\n"
    )
    tags = f"{TAG}-{TAG}-linux_{MACHINE}"
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n")
    (info / "entry_points.txt").write_text("[console_scripts]\ntiny-say = tiny:main\n")
    (info / "RECORD").write_text("")
    wheel = folder / f"{stem}-{tags}.whl"
    pack_folder(tree, wheel)
    return wheel
