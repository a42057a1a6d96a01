"""A bundle comes out as it went in, or not at all."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine.door import Wanted, plan_recipe
from torchsmith.engine.store import Store
from torchsmith.errors import SourceError, UsageError
from torchsmith.host.models import Host
from torchsmith.package.materials import read_tree
from torchsmith.plan.attest import Attest, Origin
from torchsmith.plan.models import Plan
from torchsmith.recipe.load import parse_recipe
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.bundle import (
    archive_name,
    from_bundle,
    open_bundle,
    read_manifest,
    write_bundle,
)
from torchsmith.sources.fetch import fetch
from torchsmith.sources.tree import file_hash, tree_hash

pytestmark = pytest.mark.unit

FILES = {"patches/torch/a.patch": b"--- a/x\n", "recipe.toml": b"[torch]\n"}


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    torch, vision = tmp_path / "t", tmp_path / "v"
    (torch / "src" / "empty").mkdir(parents=True)
    (torch / "src" / "a.cpp").write_text("int a;\n")
    (torch / "run.sh").write_text("#!/bin/sh\n")
    (torch / "run.sh").chmod(0o755)
    (torch / "link").symlink_to("src/a.cpp")
    (torch / ".git").mkdir()
    (torch / ".git" / "index").write_text("differs")
    vision.mkdir()
    (vision / ("n" * 200)).write_text("a long name\n")
    return {"torch-2.6.0": torch, "vision-0.21.0": vision}


@pytest.fixture
def bundle(tmp_path: Path, trees: dict[str, Path]) -> Path:
    write_bundle(trees, FILES, tmp_path / "b.tar.gz", plan="demo")
    return tmp_path / "b.tar.gz"


def test_a_bundle_comes_out_as_it_went_in(
    tmp_path: Path, trees: dict[str, Path], bundle: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    manifest = open_bundle(bundle, out)
    assert manifest.plan == "demo"
    for name, tree in trees.items():
        assert tree_hash(out / "sources" / name) == tree_hash(tree) == manifest.trees[name]
    for name, content in FILES.items():
        assert (out / "files" / name).read_bytes() == content
    assert not (out / "sources/torch-2.6.0/.git").exists()


def test_the_same_content_gives_the_same_bytes(
    tmp_path: Path, trees: dict[str, Path], bundle: Path
) -> None:
    (trees["torch-2.6.0"] / "run.sh").touch()
    (trees["torch-2.6.0"] / ".git" / "index").write_text("differs more")
    shuffled = dict(reversed(trees.items()))
    write_bundle(shuffled, dict(reversed(FILES.items())), tmp_path / "c.tar.gz", plan="demo")
    assert (tmp_path / "c.tar.gz").read_bytes() == bundle.read_bytes()


def test_one_source_is_taken_out_of_a_bundle(
    tmp_path: Path, trees: dict[str, Path], bundle: Path
) -> None:
    torch = fetch(SourceChoice("bundle", path=str(bundle)), tmp_path / "1", cache=tmp_path / "k")
    assert torch.evidence["entry"] == "torch-2.6.0"
    assert tree_hash(tmp_path / "1") == torch.evidence["tree"] == tree_hash(trees["torch-2.6.0"])
    choice = SourceChoice("bundle", path=str(bundle), package="vision-0.21.0")
    fetch(choice, tmp_path / "2", cache=tmp_path / "k")
    assert tree_hash(tmp_path / "2") == tree_hash(trees["vision-0.21.0"])


def test_a_source_the_bundle_lacks_is_named_with_those_it_has(tmp_path: Path, bundle: Path) -> None:
    choice = SourceChoice("bundle", path=str(bundle), package="audio-2.6.0")
    with pytest.raises(SourceError, match=r"audio-2\.6\.0.*torch-2\.6\.0, vision-0\.21\.0"):
        fetch(choice, tmp_path / "2", cache=tmp_path / "k")


def rewritten(bundle: Path, change: Callable[[str, bytes], bytes | None], extra: str = "") -> None:
    """The bundle again, as somebody with tar could have changed it."""
    out = io.BytesIO()
    with tarfile.open(bundle) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old:
            file = old.extractfile(member) if member.isreg() else None
            content = change(member.name, file.read() if file else b"")
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
        if extra:
            new.addfile(tarfile.TarInfo(extra), io.BytesIO())
    bundle.write_bytes(gzip.compress(out.getvalue()))


def only(name: str, content: bytes | None) -> Callable[[str, bytes], bytes | None]:
    return lambda found, old: content if found == name else old


@pytest.mark.parametrize(
    ("change", "extra"),
    [
        (only("sources/torch-2.6.0/src/a.cpp", b"int b;\n"), ""),
        (only("sources/torch-2.6.0/src/a.cpp", None), ""),
        (only("files/recipe.toml", b"[torch]\n# more\n"), ""),
        (only("files/recipe.toml", None), ""),
        (only("bundle.json", None), ""),
        (only("bundle.json", b"{}"), ""),
        (only("bundle.json", b"[1]"), ""),
        (only("bundle.json", b'{"format": 1, "trees": {"../x": ""}, "files": {}}'), ""),
        (only("bundle.json", b'{"format": 1, "trees": {"a": 1}, "files": {}}'), ""),
        (lambda name, old: old, "sources/torch-2.6.0/more"),
        (lambda name, old: old, "sources/more"),
        (lambda name, old: old, "files/more"),
        (lambda name, old: old, "more"),
        (lambda name, old: old, "../more"),
    ],
)
def test_a_changed_bundle_is_refused_whole(
    tmp_path: Path, bundle: Path, change: Callable[[str, bytes], bytes | None], extra: str
) -> None:
    rewritten(bundle, change, extra)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(SourceError):
        open_bundle(bundle, out)
    assert not any(out.iterdir())


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_manifest_that_is_no_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("bundle.json")
        member.type = kind
        tar.addfile(member)
    with pytest.raises(SourceError, match="does not begin with a manifest"):
        read_manifest(tmp_path / "b.tar.gz")


def test_names_too_long_for_a_disk_are_refused_in_a_sentence(tmp_path: Path, bundle: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    named = json.dumps({"format": 1, "trees": {}, "files": {"n" * 300: ""}}).encode()
    rewritten(bundle, lambda name, old: old, f"sources/torch-2.6.0/{'n' * 300}")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        open_bundle(bundle, out)
    rewritten(bundle, only("bundle.json", named))
    with pytest.raises(SourceError, match="cannot be the name"):
        read_manifest(bundle)
    assert not any(out.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_bundle_is_refused(tmp_path: Path, bundle: Path, share: float) -> None:
    content = bundle.read_bytes()
    bundle.write_bytes(content[: int(len(content) * share)])
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(SourceError):
        open_bundle(bundle, out)
    assert not any(out.iterdir())


def test_a_bundle_of_a_later_format_says_so(tmp_path: Path, bundle: Path) -> None:
    later = json.dumps({"format": 2, "trees": {}, "files": {}}).encode()
    rewritten(bundle, only("bundle.json", later))
    with pytest.raises(SourceError, match="format is 2"):
        read_manifest(bundle)


def test_a_bundle_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, trees: dict[str, Path]
) -> None:
    (trees["torch-2.6.0"] / "out").symlink_to("/etc")
    with pytest.raises(SourceError, match="leads out"):
        write_bundle(trees, {}, tmp_path / "new.tar.gz")
    with pytest.raises(SourceError, match="name"):
        write_bundle({}, {"../x": b""}, tmp_path / "new.tar.gz")
    with pytest.raises(SourceError, match="name"):
        write_bundle({"../x": trees["vision-0.21.0"]}, {}, tmp_path / "new.tar.gz")
    assert not [path for path in tmp_path.iterdir() if "new.tar.gz" in path.name]


RECIPE = """
name = "near"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
[[companions.extension]]
name = "near"
git = { url = "https://example.org/near.git", ref = "main" }
"""


ARCHIVED = """
name = "near"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
[[companions.extension]]
name = "near"
sdist = "near==1.0"
sha256 = "@"
"""


def test_an_archive_in_a_bundle_is_held_against_the_hash_the_recipe_pins(tmp_path: Path) -> None:
    archive = tmp_path / "near-1.0.tar.gz"
    (tmp_path / "near-1.0").mkdir()
    (tmp_path / "near-1.0/PKG-INFO").write_text("Metadata-Version: 2.1\nName: near\nVersion: 1.0\n")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "near-1.0", "near-1.0")
    sha256 = file_hash(archive)
    loaded = parse_recipe(ARCHIVED.replace("@", sha256), "test", None)
    host = Host(platform="linux-x86_64", system="debian-12")
    store = Store(tmp_path / "store")
    plain = plan_recipe(loaded, host, store, Wanted(elsewhere=True))
    source = plain.step("fetch-extension-near").source
    assert source is not None
    name = archive_name(source)

    def planned(trees: dict[str, Path], files: dict[str, bytes | Path]) -> Plan:
        bundle = tmp_path / "b.bundle"
        write_bundle(trees, files, bundle)
        return plan_recipe(loaded, host, store, Wanted(elsewhere=True, bundle=bundle))

    honest = planned({}, {name: archive})
    assert {step.id: step.key for step in honest.steps} == {
        step.id: step.key for step in plain.steps
    }
    attest = honest.step("attest-near").task
    assert attest is not None
    assert isinstance(attest.arguments, Attest)
    assert [item.source for item in attest.arguments.origins] == [source]
    choice = from_bundle(tmp_path / "b.bundle", source, tmp_path / "cache")
    fetch(choice, tmp_path / "out", cache=tmp_path / "cache")
    assert (tmp_path / "out/PKG-INFO").is_file()
    # Another archive under the right name, and a tree in its place.
    planned({}, {name: b"evil"})
    with pytest.raises(SourceError, match="another archive than the recipe pins"):
        from_bundle(tmp_path / "b.bundle", source, tmp_path / "new")
    with pytest.raises(UsageError, match="does not hold the archive of extension-near"):
        planned({"extension-near": tmp_path / "near-1.0"}, {})


def test_a_file_of_debians_pool_comes_out_of_a_bundle_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBIAN_MIRROR", "http://127.0.0.1:9")
    archive = tmp_path / "near_1.0.orig.tar.gz"
    (tmp_path / "near-1.0").mkdir()
    (tmp_path / "near-1.0/near.h").write_text("#pragma once")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "near-1.0", "near-1.0")
    source = SourceChoice("pool", url="main/n/near/near_1.0.orig.tar.gz", sha256=file_hash(archive))
    write_bundle({}, {archive_name(source): archive}, tmp_path / "b.bundle")
    choice = from_bundle(tmp_path / "b.bundle", source, tmp_path / "cache")
    fetch(choice, tmp_path / "out", cache=tmp_path / "cache")
    assert (tmp_path / "out/near.h").is_file()


def test_python_packages_of_a_bundle_are_in_the_keys_of_what_takes_them(tmp_path: Path) -> None:
    loaded = parse_recipe(RECIPE, "test", None)
    host = Host(platform="linux-x86_64", system="debian-12")
    tree, wheels = tmp_path / "tree", tmp_path / "wheels"
    for folder in (tree, wheels):
        folder.mkdir()
        (folder / "a").write_text("a")

    def key() -> str:
        bundle = tmp_path / "b.bundle"
        write_bundle({"extension-near": tree, "wheels": wheels}, {}, bundle)
        wanted = Wanted(elsewhere=True, bundle=bundle)
        return plan_recipe(loaded, host, Store(tmp_path / "s"), wanted).step("environment-near").key

    plain = plan_recipe(loaded, host, Store(tmp_path / "s"), Wanted(elsewhere=True))
    first = key()
    assert first != plain.step("environment-near").key
    assert first == key()
    (wheels / "a").write_text("evil")
    assert key() != first


def test_provenance_says_that_an_unproven_source_came_from_a_bundle(tmp_path: Path) -> None:
    loaded = parse_recipe(RECIPE, "test", None)
    host = Host(platform="linux-x86_64", system="debian-12")
    tree = tmp_path / "tree"
    (tree / "debian").mkdir(parents=True)
    (tree / "debian/changelog").write_text("pytorch (2.6.0+dfsg-7) sid; urgency=medium\n")
    write_bundle({"extension-near": tree}, {}, tmp_path / "b.bundle")
    wanted = Wanted(elsewhere=True, bundle=tmp_path / "b.bundle")
    plan = plan_recipe(loaded, host, Store(tmp_path / "store"), wanted)
    attest = plan.step("attest-near").task
    assert attest is not None
    assert isinstance(attest.arguments, Attest)
    (origin,) = attest.arguments.origins
    found = read_tree(replace(origin, tree=str(tree)))
    assert found.kind == "bundle"
    assert found.digest == {}
    assert "example.org" not in found.purl.to_string()
    assert "deb" not in found.purl.to_string()


def test_a_changelog_of_debians_in_an_archive_does_not_make_it_debians(tmp_path: Path) -> None:
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/changelog").write_text("pytorch (2.6.0+dfsg-7) sid; urgency=medium\n")
    sdist = SourceChoice("sdist", package="near", ref="1.0", sha256="0" * 64)
    found = read_tree(Origin("near", str(tmp_path), sdist))
    assert found.kind == "sdist"
    assert found.purl.to_string() == "pkg:pypi/near@1.0"
    debian = SourceChoice("debian", suite="sid", package="pytorch")
    assert read_tree(Origin("torch", str(tmp_path), debian)).version == "2.6.0+dfsg-7"


def test_what_is_made_of_an_unproven_bundle_passes_for_nothing_else(tmp_path: Path) -> None:
    loaded = parse_recipe(RECIPE, "test", None)
    host = Host(platform="linux-x86_64", system="debian-12")
    store = Store(tmp_path / "store")

    def keys(content: str | None) -> dict[str, str]:
        bundle = None
        if content is not None:
            tree = tmp_path / content
            tree.mkdir(exist_ok=True)
            (tree / "setup.py").write_text(content)
            bundle = tmp_path / f"{content}.bundle"
            write_bundle({"extension-near": tree}, {}, bundle, plan="near")
        wanted = Wanted(elsewhere=True, bundle=bundle)
        return {step.id: step.key for step in plan_recipe(loaded, host, store, wanted).steps}

    plain, first, other = keys(None), keys("first"), keys("other")
    made_of_it = {"fetch-extension-near", "compile-near-near", "verify-near-near", "attest-near"}
    for step, key in plain.items():
        assert (first[step] == key) == (step not in made_of_it), step
        assert (first[step] == other[step]) == (step not in made_of_it), step
    assert keys("first") == first


def test_a_bundle_of_debians_source_is_planned_as_such_where_the_recipe_leaves_it_open(
    tmp_path: Path,
) -> None:
    text = 'name = "near"\ntorch = "2.6.0"\npython = "3.11"\ncuda = "none"\nprofile = "minimal"'
    tree = tmp_path / "torch"
    tree.mkdir()
    (tree / "setup.py").write_text("")
    write_bundle({"torch-2.6.0": tree}, {}, tmp_path / "near.bundle", plan="near")
    host = Host(platform="linux-x86_64", system="debian-12")
    said: list[str] = []
    plan = plan_recipe(
        parse_recipe(text, "test", None),
        host,
        Store(tmp_path / "store"),
        Wanted(bundle=tmp_path / "near.bundle"),
        said.append,
    )
    (resolution,) = plan.variants
    assert resolution.source.kind == "debian"
    assert dict(resolution.env)["USE_SYSTEM_LIBS"] == "1"
    assert not said
