"""Applying patch files: all of them, or none and the reason."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from torchsmith.errors import SourceError
from torchsmith.programs import Answer, apart
from torchsmith.resolve.models import PatchChoice
from torchsmith.sources.tree import Progress, quiet
from torchsmith.temporary import temporary_folder

_HEADER = re.compile(rb"(?:---|\+\+\+|Index:|rename (?:from|to)|copy (?:from|to)) (.+)")
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_GIT_HEADER = re.compile(rb"diff --git (.+)")
_GIT_MODE = re.compile(rb"(?:new|new file|deleted file|old) mode (\d+)")
_FILE = re.compile(r"^patching (?:file|symbolic link) (.+?)(?: \(.*\))?$", re.MULTILINE)
_FAILED = re.compile(r"Hunk #(\d+) FAILED at (\d+)")
_MOVED = re.compile(r"Hunk #(\d+) succeeded at (\d+) (?:with fuzz (\d+)|\(offset)")
_SHOWN_LINES = 40


def _unquoted(name: bytes) -> bytes:
    """A name as git writes one with odd bytes in it: quoted, with octal escapes."""
    if len(name) < 2 or not (name.startswith(b'"') and name.endswith(b'"')):
        return name
    return re.sub(
        rb"\\([0-7]{3}|.)",
        lambda found: bytes([int(found[1], 8) & 255]) if len(found[1]) == 3 else found[1],
        name[1:-1],
    )


def _outside_hunks(content: bytes) -> Iterator[bytes]:
    """The lines that are not a hunk's: a removed line `-- x` reads like a header, `--- x`."""
    old = new = 0
    for line in content.splitlines():
        if old > 0 or new > 0:
            old -= not line.startswith((b"+", b"\\"))
            new -= not line.startswith((b"-", b"\\"))
        elif found := _HUNK.match(line):
            old, new = (int(count) if count else 1 for count in found.groups())
        else:
            yield line


def touched(patch: PatchChoice) -> tuple[PurePosixPath, ...]:
    """Every path a patch may reach, its leading folders stripped; refused if outside the tree.

    `patch` chooses among several names by rules of its own, so all of them are judged.
    """
    names: list[bytes] = []
    for line in _outside_hunks(patch.content):
        mode = _GIT_MODE.match(line)
        if mode and mode[1][-6:-3] not in (b"100", b""):
            raise SourceError(
                f"{patch.name} makes a link or a submodule (mode {mode[1].decode()})",
                "Patches may change files only.",
            )
        if line.startswith(b"GIT binary patch"):
            raise SourceError(
                f"{patch.name} holds a binary change, which `patch` cannot make",
                "Make the patch without --binary, or change the file in a source folder.",
            )
        if found := _GIT_HEADER.match(line):
            names.extend(re.findall(rb'"(?:\\.|[^"\\])*"|\S+', found[1]))
        elif found := _HEADER.match(line):
            whole = found[1].split(b"\t")[0].strip()
            # Without a tab before the date, `patch` ends a name at the first space.
            names += [whole, whole.split(b" ")[0]] if not whole.startswith(b'"') else [whole]
    paths: dict[PurePosixPath, None] = {}
    for name in dict.fromkeys(map(_unquoted, names)):
        if name == b"/dev/null":
            continue
        path = PurePosixPath(os.fsdecode(name))
        if path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise SourceError(
                f"{patch.name} reaches out of the source tree, to {str(path)!r}",
                "Make the patch with paths inside the tree: a/file, b/file.",
            )
        if len(path.parts) > patch.strip:
            paths[PurePosixPath(*path.parts[patch.strip :])] = None
    return tuple(paths)


def _check_no_links(tree: Path, path: PurePosixPath, patch: PatchChoice) -> None:
    for part in (path, *path.parents):
        if (tree / part).is_symlink():
            raise SourceError(
                f"{patch.name} reaches {str(path)!r} through the link {str(part)!r}",
                "Patch the file the link points to.",
            )


def _run(tree: Path, patch: PatchChoice, *, fuzz: int, remove_empty: bool) -> Answer:
    argv = ["patch", f"--strip={patch.strip}", f"--fuzz={fuzz}"]
    # As unified text and nothing else: an ed script inside a patch would run commands.
    argv += ["--forward", "--batch", "--unified", "--get=0", "--no-backup-if-mismatch"]
    argv += ["--remove-empty-files"] if remove_empty else []
    known = ("PATH", "TMPDIR", "HOME")
    env = {name: os.environ[name] for name in known if name in os.environ} | {"LC_ALL": "C"}
    return apart(argv, env=env, package="patch", cwd=tree, stdin=patch.content or b"\n")


def _failure(tree: Path, patch: PatchChoice, answer: Answer) -> SourceError:
    """Say which hunk does not fit, where, and show it."""
    file, misfits = "", list[str]()
    for line in answer.out.splitlines():
        if found := _FILE.match(line):
            file = found[1].strip("'")
        elif found := _FAILED.match(line):
            misfits.append(f"{file}: hunk {found[1]} does not fit at line {found[2]}")
    if "previously applied" in answer.out:
        return SourceError(
            f"{patch.name} is already in {file or 'the tree'}, or was made the other way round",
            "Leave the patch out: this source has the change.",
        )
    if not misfits:
        detail = (answer.out + answer.err).strip().splitlines() or ["it holds no change"]
        return SourceError(
            f"{patch.name} cannot be applied: {detail[-1]}",
            "It must be a unified diff (diff -u, git diff) against this very source.",
        )
    rejects = sorted(tree.rglob("*.rej"))
    shown = rejects[0].read_text("utf-8", "replace").splitlines() if rejects else []
    more = ["…"] if len(shown) > _SHOWN_LINES else []
    text = "\n".join(["; ".join(misfits), *shown[:_SHOWN_LINES], *more])
    return SourceError(
        f"{patch.name} does not apply; nothing was changed. {text}",
        "The source differs from what the patch was made for: remake the patch, or leave it out.",
    )


def _remarks(patch: PatchChoice, answer: Answer) -> list[str]:
    file, remarks = "", []
    for line in answer.out.splitlines():
        if found := _FILE.match(line):
            file = found[1].strip("'")
        elif (found := _MOVED.match(line)) and found[3]:
            remarks.append(
                f"{patch.name}: hunk {found[1]} of {file} fits line {found[2]} only loosely"
                f" (fuzz {found[3]})"
            )
    return remarks


def apply_patches(
    tree: Path,
    patches: Sequence[PatchChoice],
    *,
    fuzz: int = 2,
    remove_empty: bool = False,
    progress: Progress = quiet,
) -> tuple[str, ...]:
    """Apply patches in order; if one does not fit, the tree stays as it was.

    All are first applied to a copy of the files they touch, where each sees the changes of
    those before it. Returns remarks on hunks that fit only loosely.
    """
    remarks: list[str] = []
    with temporary_folder("patch") as scratch:
        for patch in patches:
            for path in touched(patch):
                _check_no_links(tree, path, patch)
                if (tree / path).is_file() and not (scratch / path).exists():
                    (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(tree / path, scratch / path)
        for patch in patches:
            progress(f"trying {patch.name}", None, None)
            answer = _run(scratch, patch, fuzz=fuzz, remove_empty=remove_empty)
            # Text without a unified hunk is passed over in silence: it would seem applied.
            if answer.code or not _FILE.search(answer.out):
                raise _failure(scratch, patch, answer)
            remarks += _remarks(patch, answer)
    for patch in patches:
        progress(f"applying {patch.name}", None, None)
        answer = _run(tree, patch, fuzz=fuzz, remove_empty=remove_empty)
        if answer.code:
            raise _failure(tree, patch, answer)
    return tuple(remarks)
