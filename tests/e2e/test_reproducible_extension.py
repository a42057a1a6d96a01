"""One recipe built twice, under different circumstances: one wheel, one package, bit for bit."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from tests.conftest import PUBLISHED_TORCH
from tests.e2e.conftest import Torchsmith

pytestmark = pytest.mark.e2e

COUNT = 9
RECIPE = """
name = "tiny"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "host"

[[companions.extension]]
name = "tiny"
folder = "tiny"
check = "from tiny._C import part; assert part(2) == 4"

[packages]
conda = true
conda_format = "both"
"""
# No headers of torch, which would take minutes: where its build system is told what to do is tried.
CODE = """
#include <Python.h>
#include <string>
long part3(long x);
static PyObject* part(PyObject*, PyObject* x) { return PyLong_FromLong(part3(PyLong_AsLong(x))); }
static PyMethodDef methods[] = {{"part", part, METH_O, __FILE__}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", __FILE__, -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
# What a project does that tells where and when it was built.
FILE = """
#include <cassert>
#include <stdexcept>
#include "part.h"
namespace {{ const char* made{number} = __FILE__ " " __DATE__ " " __TIME__; }}
long part{number}(long x) {{
  assert(x >= 0);
  if (x == {number}) throw std::runtime_error(made{number});
  return square(x);
}}
"""
HEADER = """
#pragma once
#include <stdexcept>
template <class T> T square(T x) { return x > 9 ? throw std::range_error(__FILE__) : x * x; }
"""


@pytest.fixture
def project(tiny: Path, published_torch: Path) -> Path:
    folder = tiny / "tiny"
    (folder / "part.h").write_text(HEADER, encoding="utf-8")
    names = [f"part{number}.cpp" for number in range(COUNT)]
    for number, name in enumerate(names):
        (folder / name).write_text(FILE.format(number=number), encoding="utf-8")
    setup = (folder / "setup.py").read_text(encoding="utf-8")
    (folder / "setup.py").write_text(
        setup.replace('["tiny.cpp"]', f'["tiny.cpp", *{names!r}], extra_compile_args=["-UNDEBUG"]'),
        encoding="utf-8",
    )
    (folder / "tiny.cpp").write_text(CODE, encoding="utf-8")
    (folder / "tiny/__init__.py").write_text("", encoding="utf-8")
    text = RECIPE.format(release=PUBLISHED_TORCH, environment=published_torch)
    (tiny / "recipe.toml").write_text(text, encoding="utf-8")
    return tiny


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def built(
    torchsmith: Torchsmith, project: Path, store: str, jobs: int, before: str, **env: str
) -> dict[str, Path]:
    made = torchsmith(
        project,
        *("build", "--reproducible", "--no-lock", "--quiet", "--jobs", str(jobs)),
        *("--step", "package-conda-tiny-tiny"),
        # Each where the other's results are not.
        *("--output", str(project / f"out-{jobs}")),
        store=store,
        before=("bash", "-c", f'{before}; exec "$@"', "bash"),
        env=env,
    )
    assert made.returncode == 0, made.stderr
    return {Path(line).name: Path(line) for line in made.stdout.split()}


def test_another_folder_core_count_umask_user_and_zone_give_the_same_bytes(
    project: Path, torchsmith: Torchsmith
) -> None:
    first_time = built(torchsmith, project, "s", 1, "umask 022")
    second_time = built(
        torchsmith,
        project,
        "another/place/with-a-longer-name",
        3,
        "umask 077",
        TZ="Asia/Seoul",
        LANG="de_DE.UTF-8",
        HOME=str(project.parent),
        USER="somebody",
        LOGNAME="somebody",
    )
    assert sorted(name.rpartition("-")[2].partition(".")[2] for name in first_time) == [
        "conda",
        "tar.bz2",
        "whl",
    ]
    assert first_time.keys() == second_time.keys()
    (wheel,) = (name for name in first_time if name.endswith(".whl"))
    one, other = first_time[wheel], second_time[wheel]
    assert one.parent != other.parent
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        assert first.namelist() == second.namelist()
        for name in first.namelist():
            content = first.read(name)
            assert content == second.read(name), name
            assert os.fsencode(project.parent) not in content, name
            if name.endswith(".so"):
                # It is named, from the work folder on.
                assert b"part3.cpp" in content
    for name, path in first_time.items():
        assert digest(path) == digest(second_time[name]), name
