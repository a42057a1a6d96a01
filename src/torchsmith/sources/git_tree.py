"""Whether a source tree is that of a git commit, told without git and without a repository.

A commit's id is the hash of a few lines, among them the id of its tree; that is the hash of names,
modes and contents, and of the commits of its submodules. The lines of each commit go along with a
bundle; all else is hashed again from the files.
https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from pathlib import Path

from msgspec import Struct

from torchsmith.errors import SourceError
from torchsmith.sources.git_program import answer, git

_DEEPEST = 64
_TREE = re.compile(rb"tree ([0-9a-f]{40}|[0-9a-f]{64})\n")
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitProof(Struct, frozen=True):
    """What it takes besides the files: commits by the folder they are in, "" for the tree itself.

    `links` are submodules that .gitmodules does not name, which are left empty. `crlf` are files
    git gave other line ends than are in the repository: of these only the line ends are not
    vouched for.
    """

    commits: dict[str, str]
    links: dict[str, str] = {}
    crlf: tuple[str, ...] = ()


def object_id(kind: str, content: bytes, like: str) -> str:
    """The id of a git object, hashed as the repository of another id does."""
    mark = hashlib.sha1(usedforsecurity=False) if len(like) == 40 else hashlib.sha256()
    mark.update(f"{kind} {len(content)}\0".encode() + content)
    return mark.hexdigest()


class _Checker:
    def __init__(self, tree: Path, proof: GitProof, like: str) -> None:
        self.root, self.proof, self.like = tree, proof, like
        self.crlf = frozenset(proof.crlf)

    def tree_id(self, at: str, depth: int = 0) -> str | None:
        """The id of the tree in a folder; None where git would have nothing to keep."""
        if depth > _DEEPEST:
            raise SourceError(f"folders are nested too deep at {at!r}")
        entries: list[tuple[bytes, bytes]] = []
        with os.scandir(self.root / at) as found:
            for entry in found:
                # git keeps nothing of this name; a bundle that has one is refused before.
                if entry.name == ".git":
                    continue
                path = f"{at}/{entry.name}" if at else entry.name
                if (kept := self.entry(path, depth)) is not None:
                    mode, name_id = kept
                    name = os.fsencode(entry.name)
                    # git sorts a folder as if its name ended in a slash.
                    order = name + b"/" if mode == b"40000" else name
                    entries.append((order, mode + b" " + name + b"\0" + bytes.fromhex(name_id)))
        if not entries:
            return None
        return object_id("tree", b"".join(line for _, line in sorted(entries)), self.like)

    def entry(self, path: str, depth: int) -> tuple[bytes, str] | None:
        """The mode and id of one name."""
        full = self.root / path
        mode = full.lstat().st_mode
        if stat.S_ISLNK(mode):
            return b"120000", object_id("blob", os.fsencode(full.readlink()), self.like)
        if stat.S_ISDIR(mode):
            if path in self.proof.commits:
                return b"160000", self.commit(path, depth + 1)
            if path in self.proof.links and not any(full.iterdir()):
                if self.is_named(path):
                    raise SourceError(
                        f"the submodule {path!r} was left out of the source",
                        "Somebody removed it: copy it again from where it was made.",
                    )
                link = self.proof.links[path]
                return (b"160000", link) if _ID.fullmatch(link) else None
            made = self.tree_id(path, depth + 1)
            return None if made is None else (b"40000", made)
        content = full.read_bytes()
        if path in self.crlf:
            content = content.replace(b"\r\n", b"\n")
        return b"100755" if mode & stat.S_IXUSR else b"100644", object_id(
            "blob", content, self.like
        )

    def is_named(self, path: str) -> bool:
        """Whether the repository says where a submodule comes from: then it is brought."""
        above = [at for at in self.proof.commits if not at or path.startswith(f"{at}/")]
        at = max(above, key=len, default="")
        listed = self.root / at / ".gitmodules"
        if listed.is_symlink() or not listed.is_file():
            return False
        names = set()
        for line in map(str.strip, listed.read_text("utf-8", "surrogateescape").splitlines()):
            key, _, value = line.partition("=")
            if key.strip().lower() == "path":
                names.add(value.strip().strip('"').rstrip("/"))
            elif line.startswith("[submodule "):
                names.add(line.partition('"')[2].rpartition('"')[0])
        return path.removeprefix(f"{at}/" if at else "") in names

    def commit(self, at: str, depth: int = 0) -> str:
        """The id of the commit a folder is at; refused if its tree is another."""
        try:
            raw = base64.b64decode(self.proof.commits[at], validate=True)
        except (KeyError, binascii.Error):
            raise SourceError(f"the commit of {at or 'the source'!r} is not given") from None
        tree = _TREE.match(raw)
        if tree is None or self.tree_id(at, depth) != tree[1].decode():
            raise SourceError(
                f"{at or 'the source'!r} does not hold the files of its commit",
                "Somebody changed it: copy it again from where it was made.",
            )
        return object_id("commit", raw, self.like)


def check_commit(tree: Path, proof: GitProof, commit: str) -> None:
    """Refuse a tree that is not the one of a commit, submodules included."""
    found = _Checker(tree, proof, commit).commit("")
    if found != commit:
        raise SourceError(
            f"the source is that of commit {found}, not of {commit}",
            "It was made for another recipe, or changed: take the right one.",
        )


def git_proof(tree: Path) -> GitProof | None:
    """What proves the commit of a clone; None if it is none, or cannot be proven."""
    if not (tree / ".git").exists():
        return None
    commits: dict[str, str] = {}
    links: dict[str, str] = {}
    crlf: list[str] = []
    try:
        _collect(tree, "", commits, links, crlf)
        made = GitProof(commits, links, tuple(sorted(crlf)))
        check_commit(tree, made, answer("rev-parse", "HEAD", folder=tree))
    except SourceError:
        # Files were changed after they were checked out, or a commit is in no known letters.
        return None
    return made


def _collect(
    tree: Path, at: str, commits: dict[str, str], links: dict[str, str], crlf: list[str]
) -> None:
    folder = tree / at
    raw = git("cat-file", "commit", "HEAD", folder=folder).out.encode()
    commits[at] = base64.b64encode(raw).decode()
    for line in git("ls-files", "--stage", "-z", folder=folder).out.split("\0"):
        fields, _, name = line.partition("\t")
        path = f"{at}/{name}" if at else name
        if not name:
            continue
        mode, blob, _ = fields.split()
        if mode == "160000":
            if (tree / path / ".git").exists():
                _collect(tree, path, commits, links, crlf)
            else:
                links[path] = blob
        elif mode.startswith("100") and (tree / path).is_file():
            content = (tree / path).read_bytes()
            if b"\r\n" in content and object_id("blob", content, blob) != blob:
                crlf.append(path)
