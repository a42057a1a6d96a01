"""A recipe's folder with an extension of its own, and the command line in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.containers import EngineHere

# An extension in C++ that answers a question, built against torch as they are.
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
setup(
    name="near", version="1.0", cmdclass={"build_ext": BuildExtension},
    ext_modules=[CppExtension("near", ["near.cpp"])],
)
"""
SOURCE = """
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "near", "", -1, methods};
PyMODINIT_FUNC PyInit_near() { return PyModule_Create(&definition); }
"""
# A vendor's installer: it wants a licence, and puts a program where it likes.
INSTALLER = """#!/bin/sh
set -eu
test "$LICENCE" = open-sesame
echo "client 9.0 beside $1" > /usr/local/share/vendor
printf '#!/bin/sh\\ncat /usr/local/share/vendor\\n' > /usr/local/bin/vendor-client
chmod +x /usr/local/bin/vendor-client
"""


@dataclass
class Torchsmith:
    """The command line in a recipe's folder, with an engine and a store of its own."""

    project: Path
    env: Mapping[str, str]
    store: Path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "torchsmith", *words]

    def tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.project,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def __call__(self, *words: str) -> str:
        done = self.tried(*words)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout


def in_folder(folder: Path, recipe: str, engine: EngineHere, **env: str) -> Torchsmith:
    project = folder / "project"
    (project / "near").mkdir(parents=True)
    (project / "near/setup.py").write_text(SETUP)
    (project / "near/near.cpp").write_text(SOURCE)
    (project / "install-client").write_text(INSTALLER)
    (project / "install-client").chmod(0o755)
    (project / "recipe.toml").write_text(recipe)
    store = folder / "store"
    return Torchsmith(project, {**engine.env, "TORCHSMITH_STORE": str(store), **env}, store)


def from_preset(
    folder: Path, preset: str, changes: Mapping[str, str], engine: EngineHere, **env: str
) -> Torchsmith:
    """A preset as `init` writes it, with what cannot run on a test machine replaced."""
    here = in_folder(folder, "", engine, **env)
    here("init", "recipe.toml", "--preset", preset, "--force")
    path = here.project / "recipe.toml"
    text = path.read_text()
    for old, new in changes.items():
        assert old in text, f"{preset} has no {old!r} any more"
        text = text.replace(old, new)
    path.write_text(text)
    return here


def git_repository(bare: Path, *commits: Mapping[str, str]) -> str:
    """A repository that a server of files can serve; the first of its commits."""
    tree = bare.parent / f"{bare.name}.tree"
    tree.mkdir(parents=True)

    def git(*words: str | Path) -> str:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        command = ["git", "-C", tree, *who, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    for files in commits:
        for name, text in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_text(text)
        git("add", ".")
        git("commit", "--quiet", "--message", "as it is")
    git("clone", "--quiet", "--bare", tree, bare)
    subprocess.run(["git", "update-server-info"], cwd=bare, check=True)
    return git("rev-list", "--max-parents=0", "HEAD")
