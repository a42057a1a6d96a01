"""A file that describes another machine cannot put commands into what is rendered for it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.conftest import Run

from torchsmith.facts.files import shipped
from torchsmith.host.models import Compiler, Host, check_described
from torchsmith.plan.build import make_plan
from torchsmith.plan.render.conda import source_build_script
from torchsmith.plan.render.dockerfile import render_dockerfile
from torchsmith.plan.render.instructions import apt_install, run
from torchsmith.plan.shell import export_unless_set, one_command
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

RECIPE = 'torch = "2.6.0"\npython = "3.11"\n[packages]\nconda = true\n'


def machine(**changes: object) -> dict[str, Any]:
    return {
        "platform": "linux-x86_64",
        "system": "debian-12",
        "pythons": [{"version": "3.11.2", "path": "/usr/bin/python3.11", "headers": True}],
        "compilers": [
            {"kind": "gcc", "version": "12.2.0", "path": "/usr/bin/gcc", "cxx": "/usr/bin/g++"}
        ],
        **changes,
    }


def compiler(**changes: str) -> dict[str, Any]:
    return machine(compilers=[machine()["compilers"][0] | changes])


BAD: tuple[dict[str, Any], ...] = (
    compiler(path="/usr/bin/gcc$(touch pwned)"),
    compiler(path="/usr/bin/gcc`touch pwned`"),
    compiler(cxx='/usr/bin/g++"; touch pwned; "'),
    compiler(path="/usr/bin/gcc\nRUN touch pwned"),
    compiler(path="/usr/bin/gcc\\"),
    *(compiler(path=f"/usr/bin/gcc{end}") for end in ("|id", ";id", "&id", " <id", " #", "(id)")),
    compiler(cxx="/usr/bin/g++ -wrapper sh,-c,id"),
    compiler(cxx="-wrapper"),
    compiler(path="/usr/bin/{gcc,id}"),
    compiler(path="/usr/bin/gcc\u00a0-x"),
    compiler(path="/usr/bin/gcc'; touch pwned; '"),
    machine(system="debian-12\nRUN touch pwned"),
    machine(platform="linux-x86_64$(touch pwned)"),
    machine(tools={"cmake$(touch pwned)": {"version": "3.25", "path": "/usr/bin/cmake"}}),
    machine(cuda=[{"version": "12.4", "path": "/usr/local/cuda$(x)", "nvcc": "/x"}]),
    machine(libraries={"cudnn": {"version": "9.1", "path": "/x\u202e"}}),
    machine(pythons=[{"version": "3.11.2", "path": "/usr/bin/$(x)", "headers": True}]),
)


@pytest.mark.parametrize("described", BAD)
def test_a_machine_that_holds_commands_is_refused(
    described: dict[str, Any], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "host.json").write_text(json.dumps(described), encoding="utf-8")
    code, _, said = run("plan", "recipe.toml")
    assert code == 2
    assert "does not describe a machine" in said


def test_what_a_machine_says_in_prose_is_taken() -> None:
    check_described(
        machine(
            cpu_name='Intel(R) Xeon(R) "Gold"',
            engines=[{"name": "docker", "detail": "it's not\n`running`"}],
        )
    )


def test_a_path_of_this_machine_is_quoted_wherever_it_is_written(tmp_path: Path) -> None:
    # Not out of a file: read on a machine whose owner likes such names.
    odd = "/opt/a b/gcc$(touch pwned)`touch pwned`\"'};touch pwned;#"
    host = Host(
        platform="linux-x86_64",
        system="debian-12",
        compilers=(Compiler(kind="gcc", version="11.4.0", path=odd, cxx=odd),),
    )
    recipe = parse_recipe(RECIPE, "test", None).recipe
    (found,) = [resolve(item, shipped(), host, {}) for item in expand(recipe)]
    assert isinstance(found, Resolution)
    assert found.compiler.cc == odd
    exports = [line for line in source_build_script(found).splitlines() if "export C" in line]
    for text in ("\n".join(exports), _runs(apt_install([odd, "git"]))):
        _harmless(text, tmp_path)
    plan = make_plan(recipe, [found], shipped(), "test")
    docker = render_dockerfile(recipe, found, plan.of(found.variant), "test")
    exports = [line for line in docker.splitlines() if "export C" in line]
    assert any("touch" in line for line in exports)
    _harmless("\n".join(line.removesuffix("; \\") for line in exports), tmp_path)


def _runs(lines: list[str]) -> str:
    return "\n".join(line.partition("; \\\n")[2] for line in lines)


def _harmless(script: str, folder: Path) -> None:
    """Run it where no program but those of the shell is found."""
    subprocess.run(
        ["/bin/bash", "-c", f'PATH=; touch() {{ echo > "{folder}/pwned"; }}\n{script}'],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("text", ["gcc", "a$b", "a`b`", 'a"b', "a}b", "a\\b", "a'b", "$(x)"])
@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_a_default_means_itself_and_gives_way(text: str, shell: str) -> None:
    script = f'set -eu; {export_unless_set("X", text)}; printf %s "$X"'
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout == text
    done = subprocess.run(
        [shell, "-c", f"X=mine; {script}"], capture_output=True, check=True, text=True
    )
    assert done.stdout == "mine"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo a # a note", "a\nb\n"),
        ("# only a note", "b\n"),
        ("echo 'a # b'", "a # b\nb\n"),
        ("x=1#2; echo $x", "1#2\nb\n"),
        ("cd /; pwd", "/\nb\n"),
        ("echo ${PATH:+a}", "a\nb\n"),
    ],
)
def test_a_comment_ends_with_its_line(line: str, expected: str) -> None:
    (written,) = run([line, "echo b"])
    script = written.removeprefix("RUN ").replace("\\\n", "")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout == expected


@pytest.mark.parametrize("line", ["echo 'a", 'echo "a', "echo a \\", "echo $(a"])
def test_a_line_without_an_end_does_not_take_the_next_one(line: str) -> None:
    (written,) = run([line, "echo next"])
    script = written.removeprefix("RUN ").replace("\\\n", "")
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=False, text=True)
    assert done.returncode != 0 or done.stdout == "a\nnext\n" or "next" in done.stdout.splitlines()


def test_a_line_is_no_section_of_a_definition() -> None:
    assert one_command("%environment").startswith("eval ")
    assert one_command("echo plain") == "echo plain"
