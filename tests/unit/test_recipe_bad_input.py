"""Bad input meets one clear error: exit code 2, nothing written, no traceback."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.cli import main
from torchsmith.errors import RecipeError
from torchsmith.host.models import Host
from torchsmith.recipe.load import MAX_RECIPE_BYTES, load_recipe, parse_recipe

pytestmark = pytest.mark.unit

Refused = Callable[[Path], str]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Run `torchsmith plan` in this process and return what it says when it refuses."""
    host = tmp_path / "host.json"
    host.write_text(Host(platform="linux-x86_64").model_dump_json())
    place = tmp_path / "project"
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)

    def run(recipe: Path) -> str:
        words = ["plan", str(recipe), "--host", str(host), "--as", "script", "-o", "out.sh"]
        monkeypatch.setattr(sys, "argv", ["torchsmith", *words])
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as ended:
            main()
        gc.enable()
        said = capsys.readouterr()
        assert ended.value.code == 2, said.err
        assert said.err.count("error: ") == 1
        assert "Traceback" not in said.err
        assert said.out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return said.err

    return run


def recipe(folder: Path, content: bytes | str) -> Path:
    path = folder / "recipe.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\t\r\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not text"),
        (b'\xff\xfet\x00=\x00"\x00', "UTF-16"),
        (b"\x00" * 100, "not valid TOML"),
        (b'torch = "2.6.0"\x00', "not valid TOML"),
        (b"\x89PNG\r\n\x1a\n", "is not text"),
        (b"#" * (10 << 20), "is larger than 1 MiB"),
        (b"# only a comment\n", "torch: is missing"),
        (b"torch = " + b"[" * 100_000, "nested too deeply"),
        (b"torch = " + b"[" * 300 + b"]" * 300, "torch: is one; several are listed in [matrix]"),
        (b"torch = " + b"{a=" * 5000 + b"1" + b"}" * 5000, "nested too deeply"),
        (b".".join([b"a"] * 400_000) + b" = 1", "more than 100 parts"),
        (b"[" + b" . ".join([b'"a"'] * 5000) + b"]", "more than 100 parts"),
        (b"x = {" + b".".join([b"a"] * 5000) + b" = 1}", "more than 100 parts"),
        (b"a" * 1_000_000 + b" = 1", "is not a key of a recipe"),
        (b"\n\ntorch = " + b"9" * 5000, "line 3: not valid TOML: a number has too many digits"),
        (b"torch = 0x" + b"f" * 100_000, "must be text"),
        (b'torch = "2.6"\ntorch = "2.6"', "written twice"),
        (b'torch = "2.6"\n[build]\n[build]', "written twice"),
        (b'torch = "2.6"\n[matrix.matrix]\npython = ["3.11"]', "matrix.matrix: does not belong"),
        (b'torch = "2.6"\n[[matrix.include]]\nmatrix = {python = ["3.11"]}', "does not belong"),
        (b'torch = "2.6"\n[matrix]\npython = ["3.11"]\nexclude = [{python="3.11"}]', "is excluded"),
        (b"torch = { release = { release = '2.6' } }", "must be text, not a table"),
        (b"torch = inf", "must be text"),
        (b"torch = 1979-05-27T07:32:00Z", "not a date or time"),
    ],
    ids=range(27),
)  # fmt: skip
def test_a_file_that_is_no_recipe_is_refused(
    tmp_path: Path, refused: Refused, content: bytes, said: str
) -> None:
    assert said in refused(recipe(tmp_path, content))


def test_a_path_that_is_no_file_is_refused(tmp_path: Path, refused: Refused) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "is a folder" in refused(tmp_path)
    assert "is not a file" in refused(tmp_path / "pipe")
    assert "is not a file" in refused(Path("/dev/zero"))
    assert "does not exist" in refused(tmp_path / "missing.toml")
    assert "Not a directory" in refused(Path("/dev/zero/recipe.toml"))
    assert "cannot be read" in refused(tmp_path / "loop")
    assert "cannot be read" in refused(tmp_path / ("x" * 300))


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recipe(tmp_path, 'torch = "2.6.0"')
    path.chmod(0)
    if os.geteuid() == 0:  # root may read anything: the refusal comes from the kernel's stand-in
        opened = os.open

        def refusing(name: object, *rest: object, **more: object) -> int:
            if name == path:
                raise PermissionError(13, "Permission denied")
            return opened(name, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", refusing)
    assert "Permission denied" in refused(path)


def test_a_matrix_of_a_billion_is_refused_without_making_it(
    tmp_path: Path, refused: Refused
) -> None:
    axes = {"python": "3.11", "cpu": "native", "profile": "debug"}
    lists = "\n".join(f"{axis} = {[value] * 1000}" for axis, value in axes.items())
    said = refused(recipe(tmp_path, f'torch = "2.6"\n[matrix]\n{lists}\n'))
    assert "the matrix has 1,000,000,000 combinations" in said


HOSTILE = [
    "1.9.1; rm -rf /",
    "$(reboot)",
    "`reboot`",
    "1.9\n2",
    "1.9\r",
    "a\0b",
    "\x1b[2J",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e1.9",
    "１.９",
    "٣.١",
    "2.6\u200b",
    "\ufb01",
    "\u0131",
    "\u212a",
    "-x; y",
    "--flag",
    " ",
    "",
    "a b;c",
    "&&",
    "|",
    "*",
    "'",
    '"',
    "\\",
    "x" * 5000,
]
# Every kind of text a recipe holds except lines of shell, which may hold anything printable.
NARROW = [
    "name = {}",
    "torch = {}",
    "torch = {{ release = '2.6', ref = {} }}",
    "torch = {{ release = '2.6', commit = {} }}",
    "torch = {{ release = '2.6', version = {} }}",
    "torch = {{ release = '2.6', use = {} }}",
    "python = {}",
    "platform = {}",
    "board = {}",
    "jetpack = {}",
    "system = {}",
    "cuda = {}",
    "cuda = {{ version = '12.6', cudnn = {} }}",
    "cuda = {{ version = '12.6', toolkit = {} }}",
    "gpus = {}",
    "gpus = [{}]",
    "cpu = {}",
    "profile = {}",
    "features = {{ nccl = {} }}",
    "features = {{ {} = 'on' }}",
    "source.kind = {}",
    "source.url = {}",
    "source.mirrors = [{}]",
    "source.suite = {}",
    "source.sha256 = {}",
    "patches = [{}]",
    "build.compiler = {}",
    "build.memory = {}",
    "build.apt = [{}]",
    "build.pip = [{}]",
    "build.env = {{ {} = 'x' }}",
    "build.cmake = {{ {} = 'x' }}",
    "companions.vision = {}",
    "companions.extension = [{{ name = {}, folder = 'a' }}]",
    f"companions.extension = [{{{{ name = 'a', sha256 = '{'0' * 64}', sdist = {{}} }}}}]",
    "companions.extension = [{{ name = 'a', sdist = 'a==1', sha256 = {} }}]",
    "companions.extension = [{{ name = 'a', git = {{ url = {}, ref = 'main' }} }}]",
    "companions.extension = [{{ name = 'a', git = {{ url = 'https://a/b', ref = {} }} }}]",
    "packages.label = {}",
    "packages.magma_gpus = {}",
    "image.name = {}",
    "image.base = {}",
    "image.shm_size = {}",
    "image.foundation = {{ name = 'a', from = {} }}",
    "image.train = [{{ name = 'a', user = {} }}]",
    "image.train = [{{ name = 'a', uid = {} }}]",
    "image.train = [{{ name = 'a', groups = [{}] }}]",
    "image.train = [{{ name = 'a', timezone = {} }}]",
    "image.train = [{{ name = 'a', locale = {} }}]",
    "image.train = [{{ name = 'a', shell = {} }}]",
    "image.train = [{{ name = 'a', workdir = {} }}]",
    "publish.anaconda_user = {}",
    "publish.token_env = {}",
    "publish.repository = {}",
    "publish.bucket = {}",
    "publish.registry = {}",
    "job = [{{ name = {}, role = [{{ command = 'x' }}] }}]",
    "job = [{{ name = 'a', image = {}, role = [{{ command = 'x' }}] }}]",
    "job = [{{ name = 'a', role = [{{ name = {}, command = 'x' }}] }}]",
    "matrix.python = [{}]",
    "matrix.exclude = [{{ python = {} }}]",
]
# A path may be in any language, and a name may be one letter that looks like another.
PATHS = [
    "patches = [{}]",
    "publish.index = {}",
    "publish.channel = {}",
    "image.client = [{{ files = [{}], run = ['x'] }}]",
    "companions.extension = [{{ name = 'a', folder = {} }}]",
    "source = {{ kind = 'folder', path = {} }}",
]
LINES = [
    "build.env.A = {}",
    "build.cmake.A = {}",
    "cuda = {{ version = '12.6', nvcc_flags = [{}] }}",
    "image.run = [{}]",
    "image.env.A = {}",
    "job = [{{ name = 'a', role = [{{ command = {} }}] }}]",
]


def quoted(text: str) -> str:
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


def refusal(line: str, value: str, folder: Path) -> list[str]:
    text = line.format(quoted(value)) + "\n"
    if not text.startswith("torch"):
        text = 'torch = "2.6"\n' + text
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, "recipe.toml", folder)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("line", NARROW)
def test_no_text_can_carry_what_a_shell_would_obey(line: str, tmp_path: Path) -> None:
    for value in HOSTILE:
        for problem in refusal(line, value, tmp_path):
            assert problem.isprintable()
            assert problem.startswith("line ")


@pytest.mark.parametrize("line", PATHS)
def test_no_path_can_leave_the_project_or_be_more_than_a_name(line: str, tmp_path: Path) -> None:
    out = ["../x", "a/../../x", "~", "~root/x", "a\nb", "a\0", "$(reboot)", "`x`", "a;b", "-rf"]
    if not line.startswith("source"):
        out += ["/etc/passwd", "//x"]
    for value in [*out, "/a/../b", "a b", "a\\b", "", "\x1b", "\u202e", "x" * 1001]:
        (problem,) = refusal(line, value, tmp_path)
        assert problem.isprintable()


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_shell_is_one_line(line: str, tmp_path: Path) -> None:
    for value in ["a\nb", "a\rb", "a\0b", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\x9b"]:
        (problem,) = refusal(line, value, tmp_path)
        assert "must be one line" in problem
        assert problem.isprintable()
    parse_recipe(f'torch = "2.6"\n{line.format(quoted("echo $(nproc) é"))}\n', "r", None)


@pytest.mark.parametrize(
    "url", ["https://a/b/../c", "https://a/./b", "https://a/b/%2E./c", "https://a/.."]
)
def test_no_url_leads_elsewhere_than_it_reads(url: str, tmp_path: Path) -> None:
    assert "write where it leads" in refusal("source.url = {}", url, tmp_path)[0]


@pytest.mark.parametrize(
    "url", ["https://me:secret@host/x", "ssh://git:x@host/y", "ext::sh -c x", "http://", "-u"]
)
def test_no_url_holds_a_password_or_a_command(url: str, tmp_path: Path) -> None:
    assert "without a password" in refusal("source.url = {}", url, tmp_path)[0]


def test_a_package_cannot_be_removed_by_asking_for_it(tmp_path: Path) -> None:
    assert refusal("build.apt = [{}]", "libc6-", tmp_path)
    parse_recipe('torch = "2.6"\nbuild.apt = ["g++", "gcc-9", "a=1.2-3"]\n', "r", None)


def test_a_patch_must_be_a_file_inside_the_project(tmp_path: Path, refused: Refused) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret").write_text("x")
    (inside / "out").symlink_to(tmp_path / "secret")
    (inside / "round").symlink_to("round")
    (inside / "folder").mkdir()
    os.mkfifo(inside / "pipe")
    (inside / "big").touch()
    os.truncate(inside / "big", 1 << 30)
    names = ["missing", "out", "round", "folder", "pipe", "big", "n" * 300, "secret/x", "ok"]
    (inside / "ok").write_bytes(b"--- a\n")
    said = refused(recipe(inside, f'torch = "2.6"\npatches = {names}\n')).splitlines()[:-2]
    reasons = (
        "does not exist",
        "leads out of",
        "cannot be read",
        "is a folder",
        "is not a file",
        "is larger than 16 MiB",
        "name too long",
        "does not exist",
    )
    for line, name, reason in zip(said, names[:-1], reasons, strict=True):
        assert name[:50] in line
        assert reason in line


def test_a_patch_is_read_with_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "größe.patch").write_bytes(b"--- a\n")
    path = recipe(tmp_path, 'torch = "2.6"\npatches = ["./patches/größe.patch"]\n')
    assert load_recipe(path).files == {"patches/größe.patch": b"--- a\n"}


def test_a_recipe_of_the_largest_size_is_read(tmp_path: Path) -> None:
    text = 'torch = "2.6"\n'
    path = recipe(tmp_path, text + "#" * (MAX_RECIPE_BYTES - len(text)))
    assert load_recipe(path).recipe.torch.release == "2.6"


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "recipe.toml"],
        ["doctor", "recipe.toml"],
        ["plan", "/dev/zero"],
        ["plan", "--torch", "1.9; rm -rf /"],
        ["plan", "--torch", "\udcff", "--feature", "\x1b=on"],
        ["plan", "--torch", "2.6", "--feature", "=on"],
        ["plan", "--torch", "2.6", "--python", "３.11"],
        ["init", "new.toml", "--torch", "$(reboot)"],
        ["init", "new.toml", "--torch", "2.6", "--with", "a\x7f=b"],
        ["plan", "--preset", "quikstart"],
    ],
)
def test_the_command_refuses_with_two_and_writes_nothing(words: list[str], tmp_path: Path) -> None:
    recipe(tmp_path, 'torch = "`reboot`"\n[matrix.matrix]\n')
    run = subprocess.run(
        [sys.executable, "-m", "torchsmith", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert "error: " in run.stderr
    assert "\x1b" not in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
