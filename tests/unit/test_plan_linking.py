"""How an extension is compiled and linked: as the plan says, not as the interpreter was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.companions import companion_env
from torchsmith.plan.torch import build_env
from torchsmith.recipe.load import load_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.presets import find_preset
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

# An interpreter of pyenv's was linked with its own folder to look in, and tells setuptools so.
LINKED = """
import setuptools, sysconfig
from distutils.ccompiler import new_compiler
from distutils.sysconfig import customize_compiler
names = sysconfig.get_config_vars()
names["LDSHARED"] = names["LDCXXSHARED"] = names["CC"] + " -shared -Wl,-rpath,/home/someone/lib"
compiler = new_compiler()
customize_compiler(compiler)
print(*compiler.linker_so)
print(*getattr(compiler, "linker_so_cxx", compiler.linker_so))
"""


def linked(env: dict[str, str]) -> list[str]:
    left = {name: value for name, value in os.environ.items() if "SHARED" not in name}
    program = [sys.executable, "-W", "ignore", "-c", LINKED]
    run = subprocess.run(program, capture_output=True, text=True, check=True, env=left | env)
    return run.stdout.splitlines()


def resolved(preset: str) -> Resolution:
    loaded = load_recipe(find_preset(preset).path)
    host = Host(platform="linux-x86_64", system="debian-12")
    resolution = resolve(next(iter(expand(loaded.recipe))), shipped(), host, loaded.files)
    assert isinstance(resolution, Resolution)
    return resolution


def test_the_folders_of_the_interpreter_are_not_linked_in() -> None:
    assert all("/home/someone/lib" in line for line in linked({}))
    resolution = with_mkl("off")
    compilers = {resolution.compiler.cc, resolution.compiler.cxx}
    for line in linked(dict(build_env(resolution))):
        words = line.split()
        assert (words[0], words[1]) in {(compiler, "-shared") for compiler in compilers}
        assert set(words[2:]) <= {"-Wl,-Bsymbolic-functions"}


def test_companions_have_debugging_information_only_where_it_is_asked_for() -> None:
    resolution = resolved("vision-quickstart")
    (companion,) = resolution.companions

    def flags(given: Resolution) -> dict[str, str]:
        env = companion_env(given, companion)
        return {name: value for name, value in env if name.endswith("FLAGS")}

    assert flags(resolution) == {"CFLAGS": "-g0", "CXXFLAGS": "-g0"}
    assert flags(replace(resolution, profile="debug")) == {}
    tuned = replace(resolution, cpu_flags="-mcpu=neoverse-n1")
    assert flags(tuned)["CXXFLAGS"] == "-mcpu=neoverse-n1 -g0"
    own = replace(resolution, env=(*resolution.env, ("CFLAGS", "-g3")))
    assert flags(own) == {"CFLAGS": "-g3", "CXXFLAGS": "-g0"}


@pytest.mark.parametrize(
    ("named", "flags"),
    [("g++", None), ("/usr/bin/c++", None), ("g++-13", "-Wl,--allow-shlib-undefined")],
)
def test_a_gcc_beside_the_distribution_s_own_links_with_its_libraries(
    named: str, flags: str | None
) -> None:
    resolution = replace(with_mkl("off"), profile="debug")
    numbered = replace(resolution, compiler=replace(resolution.compiler, cxx=named))
    assert dict(build_env(numbered)).get("LDFLAGS") == flags
    own = replace(numbered, env=(*numbered.env, ("LDFLAGS", "-Wl,-z,now")))
    assert dict(build_env(own))["LDFLAGS"] == " ".join(filter(None, (flags, "-Wl,-z,now")))


def test_mkls_archives_bring_no_executable_stack() -> None:
    assert dict(build_env(with_mkl("static")))["LDFLAGS"].split()[0] == "-Wl,-z,noexecstack"


def test_a_torch_built_here_calls_its_own_functions_directly() -> None:
    built = with_mkl("off")
    assert dict(build_env(built))["LDFLAGS"] == "-Wl,-Bsymbolic-functions"
    for other in (
        replace(built, profile="debug"),
        replace(built, torch="1.13.1"),
        resolved("vision-quickstart"),
        resolved("left-behind-gpus"),
    ):
        assert "symbolic" not in dict(build_env(other)).get("LDFLAGS", "")


def with_mkl(mode: str) -> Resolution:
    found = resolved("quickstart")
    features = tuple((name, mode if name == "mkl" else now) for name, now in found.features)
    return replace(found, features=features)
