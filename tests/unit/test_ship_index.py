"""A pip index: what its pages say, what it refuses, and that it is never seen half."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import urllib.parse
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.tiny_packages import conda, tarred, wheel
from tests.unit.conftest import Run

from torchsmith.errors import OutputError, UsageError, VerificationError
from torchsmith.plan.attest import attestations
from torchsmith.ship import folder
from torchsmith.ship.channel import publish_packages
from torchsmith.ship.index import publish_wheels, remove_wheels, yank_wheels
from torchsmith.ship.publish import Places, publish

pytestmark = pytest.mark.unit

NAME = "tiny_lib-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def _same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def page(index: Path, project: str = "tiny-lib") -> dict[str, object]:
    table: dict[str, object] = json.loads((index / f"simple/{project}/index.json").read_bytes())
    return table


def files(index: Path, project: str = "tiny-lib") -> dict[str, dict[str, object]]:
    listed = page(index, project)["files"]
    assert isinstance(listed, list)
    return {item["filename"]: item for item in listed}


class Links(HTMLParser):
    """The links of a page, by their text's file name."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.found: dict[str, dict[str, str | None]] = {}
        self._last: dict[str, str | None] = {}
        self.feed(content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._last = dict(attrs)

    def handle_data(self, data: str) -> None:
        if self._last:
            self.found[data] = self._last
            self._last = {}


def test_json_names_hash_size_python_metadata_and_time(index: Path, made: Path) -> None:
    path = wheel(made, "Tiny.Lib", "1.0")
    publish_wheels(index, [path])
    held = index / "simple/tiny-lib" / path.name
    metadata = held.with_name(f"{path.name}.metadata").read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert metadata == archive.read("Tiny.Lib-1.0.dist-info/METADATA")
    digest = {"sha256": hashlib.sha256(metadata).hexdigest()}
    assert held.read_bytes() == path.read_bytes()
    assert page(index) == {
        "meta": {"api-version": "1.4"},
        "name": "tiny-lib",
        "versions": ["1.0"],
        "files": [
            {
                "filename": path.name,
                "url": path.name,
                "hashes": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
                "size": path.stat().st_size,
                "upload-time": "2023-11-14T22:13:20Z",
                "requires-python": ">=3.8",
                # Not also under its first name: pip up to 23.1 stumbles over that (PEP 714).
                "core-metadata": digest,
            }
        ],
    }


def test_html_says_the_same_as_json(index: Path, made: Path) -> None:
    for version in ("1.0", "1.0+cpu.sm86", "0.9"):
        publish_wheels(index, [wheel(made, "tiny-lib", version)])
    yank_wheels(index, "tiny-lib==0.9", reason='<"old" & slow>')
    content = (index / "simple/tiny-lib/index.html").read_bytes()
    assert b'<meta name="pypi:repository-version" content="1.4">' in content
    links = Links(content).found
    assert list(links) == list(files(index))
    for name, file in files(index).items():
        hashes, metadata = file["hashes"], file["core-metadata"]
        assert isinstance(hashes, dict)
        assert isinstance(metadata, dict)
        assert links[name]["href"] == f"{file['url']}#sha256={hashes['sha256']}"
        assert links[name]["data-core-metadata"] == f"sha256={metadata['sha256']}"
        assert links[name]["data-dist-info-metadata"] == f"sha256={metadata['sha256']}"
        assert links[name]["data-requires-python"] == ">=3.8"
        assert links[name].get("data-yanked", False) == file.get("yanked", False)


def test_a_plus_in_a_name_is_quoted_in_its_address(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0+cpu")])
    (file,) = files(index).values()
    assert file["url"] == "tiny_lib-1.0%2Bcpu-py3-none-any.whl"


def test_the_documents_on_a_wheel_go_along_and_leave_with_it(index: Path, made: Path) -> None:
    path = wheel(made, "tiny_lib", "1.0")
    documents = [path.with_name(name) for name in attestations(path.name)]
    for document in documents:
        document.write_bytes(document.name.encode())
    publish_wheels(index, [path])
    there = index / "simple/tiny-lib"
    assert all((there / item.name).read_bytes() == item.read_bytes() for item in documents)
    assert list(files(index)) == [path.name]
    remove_wheels(index, path.name)
    assert not there.exists()


def test_the_first_page_lists_every_project(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "b", "1"), wheel(made, "A_c", "1")])
    listed = json.loads((index / "simple/index.json").read_bytes())
    assert listed["projects"] == [{"name": "a-c"}, {"name": "b"}]
    assert list(Links((index / "simple/index.html").read_bytes()).found) == ["a-c", "b"]


def test_the_same_file_again_changes_nothing(
    index: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(made, "tiny-lib", "1.0")
    assert [change.action for change in publish_wheels(index, [path])] == ["added"]
    before = {name: (index / name).stat().st_mtime_ns for name in tree(index)}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    assert [change.action for change in publish_wheels(index, [path])] == ["same"]
    assert {name: (index / name).stat().st_mtime_ns for name in tree(index)} == before


def test_other_bytes_under_a_published_name_are_refused(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    before = tree(index)
    new = [wheel(made, "tiny-lib", "1.1"), wheel(made, "tiny-lib", "1.0", content="# new")]
    with pytest.raises(OutputError, match="with other bytes"):
        publish_wheels(index, new)
    assert tree(index) == before


def test_two_files_of_one_name_in_one_call_are_refused(index: Path, made: Path) -> None:
    with pytest.raises(OutputError, match="with other bytes"):
        publish_wheels(
            index,
            [
                wheel(made / "a", "tiny-lib", "1.0"),
                wheel(made / "b", "tiny-lib", "1.0", content="# other"),
            ],
        )
    assert not index.exists()


def test_the_time_of_publication_is_that_of_the_clock(
    index: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    (file,) = files(index).values()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(file["upload-time"]))


def _truncated(made: Path) -> Path:
    path = wheel(made, "tiny-lib", "1.0")
    path.write_bytes(path.read_bytes()[:-30])
    return path


def _misnamed(made: Path) -> Path:
    return wheel(made, "tiny-lib", "1.0", says="another")


def _escaping(made: Path) -> Path:
    return wheel(made, "tiny-lib", "1.0", member="../../evil.py")


def _changed(made: Path) -> Path:
    return wheel(made, "tiny-lib", "1.0", record="tiny_lib/__init__.py,sha256=AAAA,16")


def _no_wheel(made: Path) -> Path:
    path = wheel(made, "tiny-lib", "1.0")
    path.write_bytes(b"<html>not found</html>")
    return path


@pytest.mark.parametrize("bad", [_truncated, _misnamed, _escaping, _changed, _no_wheel])
def test_a_bad_wheel_is_refused_and_the_index_stays_as_it_was(
    bad: Callable[[Path], Path], index: Path, made: Path
) -> None:
    publish_wheels(index, [wheel(made, "good", "1.0")])
    before = tree(index)
    with pytest.raises(VerificationError, match="is not a sound wheel"):
        publish_wheels(index, [wheel(made, "good", "2.0"), bad(made)])
    assert tree(index) == before
    assert not (index / ".incoming").exists()


@pytest.mark.parametrize(
    "name",
    [
        # Installed, these are the file that is there already, or lie below it.
        "tiny_lib/./__init__.py",
        "tiny_lib//__init__.py",
        "./tiny_lib/__init__.py",
        "tiny_lib/__init__.py/x",
        "../tiny/",
        "tiny_lib/\u202exyp.py",
        "tiny_lib/\x1b]0;x\x07.py",
        f"tiny_lib/{'n' * 300}.py",
    ],
)
def test_a_wheel_with_a_name_that_means_another_is_refused(
    name: str, index: Path, made: Path
) -> None:
    with pytest.raises(VerificationError, match="file names"):
        publish_wheels(index, [wheel(made, "tiny-lib", "1.0", member=name)])


def test_a_wheel_that_names_itself_twice_is_refused(index: Path, made: Path) -> None:
    with pytest.raises(VerificationError, match="name: METADATA"):
        publish_wheels(index, [wheel(made, "tiny-lib", "1.0", says="tiny-lib\nName: torch")])


def test_a_bad_wheel_leaves_no_new_folder(index: Path, made: Path) -> None:
    with pytest.raises(VerificationError):
        publish_wheels(index / "deep", [_truncated(made)])
    assert not index.exists()


@pytest.mark.parametrize("name", ["tiny.whl", "tiny_lib-1.0.whl", "tiny_lib-x-py3-none-any.whl"])
def test_a_file_with_no_wheels_name_is_refused(name: str, index: Path, made: Path) -> None:
    path = wheel(made, "tiny-lib", "1.0")
    with pytest.raises(UsageError, match="not the name of a wheel"):
        publish_wheels(index, [path.rename(made / name)])
    assert not index.exists()


def test_a_wheel_variant_is_refused_and_the_plain_wheel_named(index: Path, made: Path) -> None:
    path = wheel(made, "tiny-lib", "1.0")
    variant = path.rename(path.with_name(f"{path.stem}-cu130_90.whl"))
    with pytest.raises(UsageError, match="is a wheel variant") as refused:
        publish_wheels(index, [variant])
    assert "whose name has no label" in refused.value.hint
    assert not index.exists()


def test_a_file_that_is_not_there_is_said_to_be(index: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        publish_wheels(index, [Path(NAME)])


def test_a_folder_with_other_things_is_left_alone(index: Path, made: Path) -> None:
    index.mkdir()
    (index / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="neither empty nor a pip index"):
        publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    assert tree(index) == {"thesis.txt": b"years of work"}


def test_a_file_in_the_place_of_a_folder_is_said_to_be_one(index: Path, made: Path) -> None:
    index.write_text("x")
    with pytest.raises(OutputError, match="is not a folder"):
        publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])


def test_an_address_is_no_folder_to_publish_into(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(made, "tiny-lib", "1.0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is an address"):
        publish_wheels(Path("https://pypi.example/simple"), [path])
    assert not (tmp_path / "https:").exists()


def test_a_dry_run_says_what_would_be_added_and_writes_nothing(index: Path, made: Path) -> None:
    path = wheel(made, "tiny-lib", "1.0")
    (change,) = publish_wheels(index, [path], dry_run=True)
    assert (change.action, change.path) == ("added", f"simple/tiny-lib/{NAME}")
    assert not index.exists()


def test_a_page_somebody_else_wrote_is_not_guessed_at(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    (index / "simple/tiny-lib/index.json").write_text("{}")
    with pytest.raises(OutputError, match="not a page torchsmith wrote"):
        publish_wheels(index, [wheel(made, "tiny-lib", "1.1")])


def test_yanking_takes_every_file_of_a_version_and_can_be_undone(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", version) for version in ("1.0", "1.0+cpu")])
    before = tree(index)
    (change,) = yank_wheels(index, "Tiny_Lib==1.0", reason="broken")
    assert change.action == "yanked"
    assert {name: file.get("yanked") for name, file in files(index).items()} == {
        NAME: "broken",
        "tiny_lib-1.0+cpu-py3-none-any.whl": None,
    }
    (change,) = yank_wheels(index, NAME, undo=True)
    assert change.action == "restored"
    assert tree(index) == before


def test_yanking_what_is_not_there_names_what_is(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    with pytest.raises(UsageError, match="is not in") as caught:
        yank_wheels(index, "tiny-lib==2.0")
    assert caught.value.hint == "Of tiny-lib it has 1.0."


def test_the_last_file_of_a_project_takes_the_project_along(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "other", "1.0")])
    before = tree(index)
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    remove_wheels(index, NAME)
    assert tree(index) == before
    assert not (index / "simple/tiny-lib").exists()


def test_a_release_is_removed_with_all_its_files_wherever_it_was_published(
    run: Run, index: Path, made: Path
) -> None:
    files = [wheel(made, "tiny", "1.0", tag=tag) for tag in ("py3-none-any", "py2-none-any")]
    publish_wheels(index, [*files, wheel(made, "tiny", "1.1")])
    publish_packages(made / "channel", [conda(made, "tiny", "1.0"), conda(made, "tiny", "1.1")])
    places = ("--index", str(index), "--channel", str(made / "channel"))
    code, out, _ = run("remove", "tiny==1.0", *places)
    assert code == 0
    assert sorted(line.split()[1] for line in out.splitlines()) == [
        "noarch/tiny-1.0-0.conda",
        "simple/tiny/tiny-1.0-py2-none-any.whl",
        "simple/tiny/tiny-1.0-py3-none-any.whl",
    ]
    assert [path.name for path in index.rglob("*.whl")] == ["tiny-1.1-py3-none-any.whl"]
    assert [path.name for path in made.glob("channel/*/*.conda")] == ["tiny-1.1-0.conda"]
    code, _, err = run("remove", "tiny==1.0", "--index", str(index))
    assert code == 2
    assert "Of tiny it has 1.1." in err


def test_every_label_has_a_folder_as_in_pytorchs_own_index(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "torch", "2.6.0+cpu"), wheel(made, "tiny-lib", "1.0")])
    before = tree(index)
    publish_wheels(
        index,
        [wheel(made, "torch", "2.6.0+cu130.sm90"), wheel(made, "torch", "2.7.0+cu130")],
    )
    assert sorted(path.name for path in (index / "whl").iterdir()) == ["cpu", "cu130"]
    links = Links((index / "whl/cu130/torch/index.html").read_bytes()).found
    assert [name.split("-")[1] for name in links] == ["2.6.0+cu130.sm90", "2.7.0+cu130"]
    for name, link in links.items():
        address, _, digest = (link["href"] or "").partition("#sha256=")
        there = index / "whl/cu130/torch" / urllib.parse.unquote(address)
        assert there.samefile(index / "simple/torch" / name)
        assert hashlib.sha256(there.read_bytes()).hexdigest() == digest
    # What has no label and is for any machine is in all of them.
    assert list(Links((index / "whl/cpu/index.html").read_bytes()).found) == ["tiny-lib", "torch"]
    for version in ("2.6.0+cu130.sm90", "2.7.0+cu130"):
        remove_wheels(index, f"torch-{version}-py3-none-any.whl")
    assert tree(index) == before
    assert not (index / "whl/cu130").exists()


def test_a_removed_name_may_come_again_with_other_bytes(index: Path, made: Path) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    remove_wheels(index, NAME)
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0", content="# mended")])


def test_libtorch_lies_beside_with_its_hash(index: Path, made: Path) -> None:
    made.mkdir()
    archive = made / "libtorch-2.6.0+cpu-linux-x86_64.tar.gz"
    archive.write_bytes(gzip.compress(tarred({"libtorch/build-version": b"2.6.0"})))
    for action in ("added", "same"):
        (change,) = publish([archive], Places(index))
        assert (change.action, change.path) == (action, f"libtorch/{archive.name}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    said = (index / f"libtorch/{archive.name}.sha256").read_text()
    assert said == f"{digest}  {archive.name}\n"
    archive.write_bytes(archive.read_bytes()[:-8])
    with pytest.raises(OutputError, match="with other bytes"):
        publish([archive], Places(index))
    bad = archive.rename(made / "libtorch-2.7.0-linux-x86_64.tar.gz")
    with pytest.raises(VerificationError, match="cannot be unpacked"):
        publish([bad], Places(index))


def test_a_left_over_file_with_other_bytes_is_refused_until_it_is_removed(
    index: Path, made: Path
) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "0.9")])
    held = index / "simple/tiny-lib" / NAME
    held.write_bytes(b"of a publication that was killed")
    path = wheel(made, "tiny-lib", "1.0")
    with pytest.raises(OutputError, match="with other bytes"):
        publish_wheels(index, [path])
    remove_wheels(index, NAME)
    publish_wheels(index, [path])
    assert held.read_bytes() == path.read_bytes()


def test_the_command_says_what_it_did(run: Run, tmp_path: Path) -> None:
    path = wheel(tmp_path, "tiny-lib", "1.0")
    code, out, _ = run("publish", str(path), "--index", "idx")
    assert (code, out) == (0, f"added          simple/tiny-lib/{NAME}\n")
    code, out, _ = run("publish", str(path), "--index", "idx")
    assert (code, out.splitlines()[-1]) == (0, "nothing changed")
    code, out, _ = run("publish", str(path), "--index", "idx", "--json")
    assert json.loads(out)["changes"][0]["action"] == "same"
    code, out, _ = run("yank", "tiny-lib==1.0", "--index", "idx")
    assert (code, out) == (0, f"yanked         simple/tiny-lib/{NAME}\n")
    code, out, _ = run("remove", NAME, "--index", "idx")
    assert (code, out) == (0, f"removed        simple/tiny-lib/{NAME}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("publish", "x.whl"), 2, "neither an index nor a channel"),
        (("publish", "x.txt", "--index", "idx"), 2, "cannot be published"),
        (("publish", "x-1-0.conda", "--index", "idx"), 2, "no channel was named"),
        (("publish", "x.whl", "--to", "ftp"), 2, "nothing is uploaded to ftp"),
        (("publish", "x-1-0.conda", "--to", "pypi"), 2, "no wheel to upload"),
        (("publish", "x.whl", "--to", "anaconda"), 2, "no conda package to upload"),
        (("publish", "x-1-0.conda", "--to", "anaconda"), 2, "no user of anaconda.org"),
        (("publish", "x.whl", "--to", "s3"), 2, "no bucket was named"),
        (("publish", "x.whl", "--to", "s3", "--bucket", "s3://lab"), 2, "a copy of an index"),
        (("publish", "--to", "s3", "--index", "idx", "--bucket", "lab"), 2, "is not a pip index"),
        (("yank", "x==1", "--index", "idx"), 2, "is not a pip index of torchsmith"),
        (("remove", "../x.whl", "--index", "idx"), 2, "a file's name is needed"),
        (("serve",), 2, "Add --index DIR or --channel DIR; a recipe names them under [publish]"),
        (("serve", "--index", "idx"), 2, "is not a pip index of torchsmith"),
        (("publish", "recipe.toml", "--index", "idx"), 2, "nothing to publish was built"),
    ],
)
def test_mistakes_get_a_sentence(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "recipe.toml").write_text('torch = "2.6.0"\n')
    more = ("--store", str(tmp_path / "store")) if arguments[0] == "publish" else ()
    ended, _, err = run(*arguments, *more)
    assert ended == code
    assert said in err


def test_a_recipe_says_where_its_build_is_published(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "lab.toml").write_text(
        'name = "lab"\ntorch = "2.6.0"\npublish = { index = "idx" }\n'
    )
    wheel(tmp_path / "store/work/lab/dist/lab", "tiny-lib", "1.0")
    code, out, _ = run("publish", str(project / "lab.toml"), "--store", str(tmp_path / "store"))
    assert (code, out) == (0, f"added          simple/tiny-lib/{NAME}\n")
    assert (project / "idx/simple/tiny-lib" / NAME).is_file()


def test_a_project_is_marked_and_stays_installable(made: Path, index: Path, run: Run) -> None:
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0+cpu")])
    words = ("yank", "Tiny_Lib", "--index", str(index), "--project")
    code, out, _ = run(*words, "archived", "--reason", "it <ended>")
    assert (code, out.split()) == (0, ["marked", "simple/tiny-lib"])
    page = json.loads((index / "simple/tiny-lib/index.json").read_text())
    assert page["project-status"] == {"status": "archived", "reason": "it <ended>"}
    assert page["meta"]["api-version"] == "1.4"
    assert len(page["files"]) == 1
    for name in ("simple/tiny-lib", "whl/cpu/tiny-lib"):
        text = (index / name / "index.html").read_text()
        assert '<meta name="pypi:project-status" content="archived">' in text
        assert '<meta name="pypi:project-status-reason" content="it &lt;ended&gt;">' in text
    # The same file again is no upload; a new one is.
    code, out, _ = run("publish", str(made / "tiny_lib-1.0+cpu-py3-none-any.whl"), *words[2:4])
    assert code == 0, out
    new = wheel(made, "tiny-lib", "2.0")
    code, _, err = run("publish", str(new), *words[2:4])
    assert code != 0
    assert "tiny-lib is archived" in err
    assert run(*words, "archived", "--undo")[0] == 0
    assert "project-status" not in (index / "simple/tiny-lib/index.html").read_text()
    assert run("publish", str(new), *words[2:4])[0] == 0
    assert run(*words, "haunted")[0] != 0
    assert run("yank", "nothing", *words[2:], "archived")[0] != 0


def test_a_folder_that_another_makes_an_index_meanwhile_is_taken(
    index: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = wheel(tmp_path / "other", "other", "1.0")
    asked = folder.is_published

    def asked_too_early(root: Path, kind: folder.FolderKind) -> bool:
        answer = asked(root, kind)
        monkeypatch.setattr(folder, "is_published", asked)
        publish_wheels(index, [other])
        return answer

    monkeypatch.setattr(folder, "is_published", asked_too_early)
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    assert {path.name for path in index.glob("simple/*")} >= {"other", "tiny-lib"}
