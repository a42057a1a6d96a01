"""A tree is held against the commit a recipe pins, without git."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.errors import SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.bundle import bundled, read_manifest, write_bundle
from torchsmith.sources.fetch import fetch
from torchsmith.sources.git_tree import GitProof, check_commit, object_id

pytestmark = pytest.mark.unit

# A repository made with git 2.39: a link, a program, line ends by .gitattributes, a submodule.
COMMIT = "6705f9d3108aa48e4ee89ec3852d78ddc3ce9211"
_TOP = b"""tree 2ba589834f13eb3d4b6f8e49b0678ae9a96b657b
author a <a@b> 1794965784 +0000
committer a <a@b> 1794965784 +0000

top
"""
_BELOW = b"""tree a1dffc7a64c0b2d395484bf452e9aeb1da3a18f2
author a <a@b> 1794965781 +0000
committer a <a@b> 1794965781 +0000

s
"""
PROOF = GitProof(
    {
        "": base64.b64encode(_TOP).decode(),
        "third/sub": base64.b64encode(_BELOW).decode(),
    },
    crlf=("d/w.bat",),
)
PINNED = SourceChoice("git", url="https://example.org/x", commit=COMMIT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "third/sub").mkdir(parents=True)
    (tree / "empty").mkdir()
    (tree / "hello.txt").write_text("hello\n")
    (tree / "d/w.bat").write_bytes(b"a\r\nb\r\n")
    (tree / "d/run").write_text("run\n")
    (tree / "d/run").chmod(0o755)
    (tree / "l").symlink_to("hello.txt")
    (tree / ".gitattributes").write_text("*.bat text eol=crlf\n")
    (tree / ".gitmodules").write_text(
        '[submodule "third/sub"]\n\tpath = third/sub\n\turl = ../sub\n'
    )
    (tree / "third/sub/f").write_text("x\n")
    return tree


def test_the_tree_of_a_commit_is_known(tree: Path) -> None:
    check_commit(tree, PROOF, COMMIT)


@pytest.mark.parametrize(
    "change", ["file", "mode", "link", "more", "less", "submodule", "lines", "setup.py"]
)
def test_any_change_is_refused(tree: Path, change: str) -> None:
    match change:
        case "file":
            (tree / "hello.txt").write_text("hello!\n")
        case "mode":
            (tree / "hello.txt").chmod(0o755)
        case "link":
            (tree / "l").unlink()
            (tree / "l").symlink_to("d/run")
        case "more":
            (tree / "empty/x").write_text("")
        case "less":
            (tree / "d/run").unlink()
        case "submodule":
            (tree / "third/sub/f").write_text("y\n")
        case "lines":
            (tree / "d/w.bat").write_bytes(b"a\r\nc\r\n")
        case _:
            (tree / "third/sub/setup.py").write_text("evil")
    with pytest.raises(SourceError, match="does not hold the files of its commit"):
        check_commit(tree, PROOF, COMMIT)


def test_a_submodule_that_was_taken_out_is_missed(tree: Path) -> None:
    shutil.rmtree(tree / "third/sub")
    (tree / "third/sub").mkdir()
    left = {"third/sub": object_id("commit", _BELOW, COMMIT)}
    proof = GitProof({"": PROOF.commits[""]}, left, PROOF.crlf)
    with pytest.raises(SourceError, match="left out"):
        check_commit(tree, proof, COMMIT)


def test_another_commit_is_refused(tree: Path) -> None:
    with pytest.raises(SourceError, match="not of 0000"):
        check_commit(tree, PROOF, "0" * 40)


@pytest.mark.parametrize(
    "proof",
    [
        GitProof({}),
        GitProof({"": "?"}),
        GitProof({"": ""}),
        GitProof({"": PROOF.commits[""]}),
        GitProof({"": PROOF.commits["third/sub"], "third/sub": PROOF.commits["third/sub"]}),
        GitProof(PROOF.commits),
        GitProof({"": PROOF.commits[""]}, {"third/sub": "0" * 40}, PROOF.crlf),
    ],
)
def test_a_proof_that_lacks_something_proves_nothing(tree: Path, proof: GitProof) -> None:
    with pytest.raises(SourceError):
        check_commit(tree, proof, COMMIT)


def made(tree: Path, path: Path, *, proof: GitProof | None = PROOF, more: str = "") -> Path:
    """A bundle as somebody who knows the format could write it."""
    write_bundle({"torch": tree}, {}, path)
    manifest = replace(read_manifest(path), commits={} if proof is None else {"torch": proof})
    out = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            file = old.extractfile(member) if member.isreg() else None
            content = file.read() if file else b""
            if member.name == "bundle.json":
                content = manifest.as_json()
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
        if more:
            new.addfile(tarfile.TarInfo(f"sources/torch/{more}"))
    path.write_bytes(gzip.compress(out.getvalue()))
    return path


def brought(bundle: Path, into: Path, source: SourceChoice = PINNED) -> None:
    choice = bundled(source, bundle, read_manifest(bundle), "torch")
    found = fetch(choice, into / "out", cache=into / "cache")
    assert found.evidence.get("commit", "") == choice.commit


def test_a_source_that_is_its_commit_is_taken_out_of_a_bundle(tree: Path, tmp_path: Path) -> None:
    bundle = made(tree, tmp_path / "b.tar.gz")
    brought(bundle, tmp_path)
    assert bundled(PINNED, bundle, read_manifest(bundle), "torch").commit == COMMIT


def test_a_rewritten_bundle_is_refused_by_the_commit_of_the_recipe(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "hello.txt").write_text("evil\n")
    with pytest.raises(SourceError, match="does not hold the files of its commit"):
        brought(made(tree, tmp_path / "b.tar.gz"), tmp_path)
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("pin", [PINNED, SourceChoice("git", ref=COMMIT)])
def test_a_bundle_that_does_not_prove_the_pinned_commit_is_refused(
    tree: Path, tmp_path: Path, pin: SourceChoice
) -> None:
    (tree / "hello.txt").write_text("evil\n")
    bundle = made(tree, tmp_path / "b.tar.gz", proof=None)
    with pytest.raises(SourceError, match=f"does not prove that torch is of commit {COMMIT}"):
        bundled(pin, bundle, read_manifest(bundle), "torch")
    # Unless a lock knows the tree; then nothing is said of a commit.
    assert bundled(pin, bundle, read_manifest(bundle), "torch", locked=True).commit == ""


@pytest.mark.parametrize(
    "source",
    [
        SourceChoice("git", ref="v1"),
        SourceChoice("git", ref="v1", commit=COMMIT, suite="sid", package="pytorch"),
        SourceChoice("debian", package="pytorch"),
    ],
)
def test_where_no_commit_is_pinned_a_bundle_need_not_prove_one(
    tree: Path, tmp_path: Path, source: SourceChoice
) -> None:
    brought(made(tree, tmp_path / "b.tar.gz", proof=None), tmp_path, source)


def test_a_bundle_exchanged_after_planning_is_refused(tree: Path, tmp_path: Path) -> None:
    bundle = made(tree, tmp_path / "b.tar.gz", proof=None)
    choice = bundled(SourceChoice("git", ref="v1"), bundle, read_manifest(bundle), "torch")
    (tree / "hello.txt").write_text("evil\n")
    made(tree, bundle, proof=None)
    with pytest.raises(SourceError, match="not the one that was planned for"):
        fetch(choice, tmp_path / "out", cache=tmp_path / "cache")


@pytest.mark.parametrize("name", [".git/hooks/post-checkout", "third/sub/.git/config", ".GIT/x"])
def test_a_bundle_with_folders_of_git_is_refused(tree: Path, tmp_path: Path, name: str) -> None:
    bundle = made(tree, tmp_path / "b.tar.gz", more=name)
    with pytest.raises(SourceError, match="of git in the source"):
        brought(bundle, tmp_path)


def test_a_manifest_with_odd_proofs_is_refused(tree: Path, tmp_path: Path) -> None:
    bundle = made(tree, tmp_path / "b.tar.gz")
    table = json.loads(read_manifest(bundle).as_json())
    odds: tuple[object, ...] = (5, {"torch": 5}, {"torch": {"commits": {"": 5}}}, [[]])
    for odd in odds:
        text = json.dumps({**table, "commits": odd}).encode()
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            info = tarfile.TarInfo("bundle.json")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
        bundle.write_bytes(gzip.compress(out.getvalue()))
        with pytest.raises(SourceError, match="is not a torchsmith bundle"):
            read_manifest(bundle)
