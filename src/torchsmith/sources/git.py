"""Git repositories with their submodules, at a commit.

Every repository has a bare copy in the cache, into which it is fetched; the tree is then
checked out from there. A broken transfer so costs the one repository it broke in: PyTorch
has some sixty, and the next attempt brings only those that are missing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.programs import Answer
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.addresses import check_git_address, is_local, shown
from torchsmith.sources.download import PATIENT, Retry, locked
from torchsmith.sources.git_program import answer, git, is_final, is_refused, reason, unreachable
from torchsmith.sources.models import FetchedSource, Progress, Shared
from torchsmith.sources.submodules import check_place, submodules
from torchsmith.sources.tree import check_links

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"(?!.*(?:\.\.|@\{|//|\.lock$|/$))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
# Waiting for servers, not computing; more would only annoy them.
_AT_ONCE = 4
# Deeper than any project nests them; a repository may hold itself.
_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Repository:
    """What is wanted of one repository: a ref, a commit, or both, from any of its addresses."""

    label: str
    addresses: tuple[str, ...]
    ref: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A commit that is whole in the cache."""

    bare: Path
    commit: str
    tag: str = ""
    used: str = ""
    notes: tuple[str, ...] = ()


def _mark(commit: str) -> str:
    """The ref that says a commit came whole; git sets it only after its connectivity check."""
    return f"refs/torchsmith/{commit}"


def _network(
    *arguments: str, url: str, bare: Path, retry: Retry, progress: Progress | None, label: str
) -> Answer:
    reply = Answer(1, "", "")
    for attempt in range(retry.attempts):
        retry.wait(attempt)
        reply = git(*arguments, folder=bare, local=is_local(url), progress=progress, label=label)
        if reply.code == 0 or is_final(reply):
            break
    return reply


def _open_bare(bare: Path) -> None:
    """Make the cache's copy, or clean up after one that was interrupted."""
    if not (bare / "HEAD").is_file():
        shutil.rmtree(bare, ignore_errors=True)
        bare.mkdir(parents=True)
        answer("init", "--quiet", "--bare", "--template=", folder=bare)
        # The tree is checked out from here by commit, which is behind no branch.
        answer("config", "uploadpack.allowAnySHA1InWant", "true", folder=bare)
    # We hold the folder: a lock in it belongs to a git that was killed.
    for left in (
        *bare.glob("*.lock"),
        *bare.glob("refs/**/*.lock"),
        *bare.glob("objects/pack/tmp_*"),
    ):
        left.unlink(missing_ok=True)


def _named(url: str, wanted: Repository, bare: Path, retry: Retry) -> dict[str, str]:
    """What the server calls by this ref: full ref name to commit, tags followed."""
    ref = wanted.ref
    full = (
        [ref]
        if ref.startswith("refs/")
        else [f"refs/tags/{ref}", f"refs/heads/{ref}", f"refs/{ref}"]
    )
    patterns = [pattern for name in full for pattern in (name, name + "^{}")]
    reply = _network(
        "ls-remote", "--", url, *patterns, url=url, bare=bare, retry=retry, progress=None, label=""
    )
    if reply.code:
        raise unreachable(url, reply)
    listed: dict[str, str] = {}
    for line in reply.out.splitlines():
        commit, _, name = line.partition("\t")
        if name in patterns and _COMMIT.fullmatch(commit):
            # The peeled line comes after the tag's own and takes its place.
            listed[name.removesuffix("^{}")] = commit
    return {name: listed[name] for name in full if name in listed}


def _has(bare: Path, commit: str) -> bool:
    return git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", folder=bare).code == 0


def _fetch_commit(
    url: str,
    wanted: Repository,
    commit: str,
    names: Sequence[str],
    bare: Path,
    retry: Retry,
    progress: Progress,
) -> None:
    """Bring a commit, as little else as the server allows."""
    last = Answer(1, "", "")
    # The commit itself, then a name that points to it: servers differ in what may be asked for.
    for want in (commit, *names):
        last = _network(
            "fetch", "--progress", "--no-tags", "--force", "--depth=1", "--", url,
            f"{want}:{_mark(commit)}",
            url=url, bare=bare, retry=retry, progress=progress, label=wanted.label,
        )  # fmt: skip
        if last.code == 0:
            break
        if not is_refused(last):
            raise unreachable(url, last)
    else:
        shallow = answer("rev-parse", "--is-shallow-repository", folder=bare) == "true"
        everything = ("+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")
        last = _network(
            "fetch", "--progress", "--no-tags", "--prune", *(["--unshallow"] if shallow else []),
            "--", url, *everything,
            url=url, bare=bare, retry=retry, progress=progress, label=wanted.label,
        )  # fmt: skip
        if last.code:
            raise unreachable(url, last)
        if not _has(bare, commit):
            raise NotServedError(
                f"{shown(url)} has no commit {commit}",
                "Check the commit, and whether this is the right repository.",
            )
        answer("update-ref", _mark(commit), commit, folder=bare)
    found = answer("rev-parse", "--verify", f"{_mark(commit)}^{{commit}}", folder=bare)
    if found != commit:
        answer("update-ref", "-d", _mark(commit), folder=bare)
        raise SourceError(f"{shown(url)} answered with commit {found} when asked for {commit}")


def _from(
    url: str, wanted: Repository, bare: Path, retry: Retry, progress: Progress
) -> tuple[str, str, tuple[str, ...]]:
    """Fetch from one address; the commit, the tag that names it, and notes."""
    names = _named(url, wanted, bare, retry) if wanted.ref else {}
    name, pointed = next(iter(names.items()), ("", ""))
    notes: tuple[str, ...] = ()
    if wanted.commit and pointed and pointed != wanted.commit:
        if name.startswith("refs/tags/"):
            raise SourceError(
                f"{wanted.ref} of {shown(url)} points to {pointed}, not to {wanted.commit}:"
                " the tag was moved, or this is another repository",
                "Find out why before changing torch.commit in the recipe.",
            )
        # A branch is meant to move; the commit is what was asked for.
        notes = (f"{wanted.ref} has moved on to {pointed[:12]}; {wanted.commit[:12]} was taken",)
    commit = wanted.commit or pointed
    if not commit:
        raise NotServedError(
            f"{shown(url)} has no tag or branch {wanted.ref!r}",
            "Check torch.ref in the recipe; a commit is written with all its 40 digits.",
        )
    same = [name for name, target in names.items() if target == commit]
    if not _has(bare, _mark(commit)):
        _fetch_commit(url, wanted, commit, same, bare, retry, progress)
    tag = next((name for name in same if name.startswith("refs/tags/")), "")
    return commit, tag, notes


def _short(url: str) -> str:
    """What people call the repository at an address."""
    last = re.split(r"[/:]", shown(url).rstrip("/"))[-1].removesuffix(".git")
    return re.sub(r"[^A-Za-z0-9._-]", "", last).lstrip("-.") or "source"


def mirror(wanted: Repository, cache: Path, progress: Progress, retry: Retry) -> Mirrored:
    """Bring a commit into the cache from the first address that gives it."""
    key = hashlib.sha256(shown(wanted.addresses[0]).encode()).hexdigest()[:16]
    bare = cache / "git" / f"{_short(wanted.addresses[0])}-{key}.git"
    with locked(bare):
        _open_bare(bare)
        if wanted.commit and not wanted.ref and _has(bare, _mark(wanted.commit)):
            return Mirrored(bare, wanted.commit)
        problems: list[UnreachableError] = []
        for url in wanted.addresses:
            try:
                commit, tag, notes = _from(url, wanted, bare, retry, progress)
            except UnreachableError as error:
                problems.append(error)
                continue
            failed = tuple(f"{error.message}; {shown(url)} was used instead" for error in problems)
            return Mirrored(bare, commit, tag, url, failed + notes)
        if wanted.commit and _has(bare, _mark(wanted.commit)):
            note = (
                f"{wanted.label}: no server answered; commit {wanted.commit[:12]} was in the cache"
            )
            return Mirrored(bare, wanted.commit, notes=(note,))
    if len(problems) == 1:
        raise problems[0]
    raise UnreachableError("; ".join(error.message for error in problems), problems[0].hint)


def _check_out(mirrored: Mirrored, where: Path, origin: str) -> None:
    """Make a working tree of its own from the cache's copy."""
    answer("init", "--quiet", "--template=", folder=where)
    # git reads the path as an address: absolute, so that it can be nothing else.
    source = str(mirrored.bare.resolve())
    reply = git(
        "fetch", "--quiet", "--no-tags", "--depth=1", "--", source, _mark(mirrored.commit),
        folder=where, local=True,
    )  # fmt: skip
    if reply.code:
        raise SourceError(
            f"the cache's copy {mirrored.bare} is broken: {reason(reply)}",
            "Remove that folder and run again: it will be fetched anew.",
        )
    answer("checkout", "--quiet", "--force", "--detach", mirrored.commit, folder=where)
    if mirrored.tag:
        # PyTorch's build asks `git describe` which release it is.
        answer("update-ref", mirrored.tag, mirrored.commit, folder=where)
    answer("config", "remote.origin.url", shown(origin), folder=where)
    found = answer("rev-parse", "HEAD", folder=where)
    if found != mirrored.commit:
        raise SourceError(f"the tree is at {found}, not at {mirrored.commit}")


class _Clone:
    """One recursive clone under way."""

    def __init__(self, cache: Path, progress: Progress, retry: Retry) -> None:
        self.cache, self.progress, self.retry = cache, Shared(progress), retry
        self.commits: dict[str, str] = {}
        self.notes: list[str] = []

    def mirror_all(self, wanted: Sequence[Repository]) -> list[Mirrored]:
        """Bring several repositories into the cache, a few at once."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            jobs = [
                pool.submit(mirror, one, self.cache, self.progress, self.retry) for one in wanted
            ]
            try:
                return [job.result() for job in jobs]
            except SourceError:
                # What is under way may finish: it need not be fetched again.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            except BaseException:
                self.progress.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def grow(
        self,
        mirrored: Mirrored,
        addresses: tuple[str, ...],
        tree: Path,
        at: PurePosixPath,
        depth: int = 0,
    ) -> None:
        """Check out a repository, then its submodules in it."""
        if depth > _DEEPEST:
            raise SourceError(f"submodules are nested without end at {str(at)!r}")
        where = check_place(tree, at) if at.parts else tree
        _check_out(mirrored, where, addresses[0])
        self.commits[str(at)] = mirrored.commit
        self.notes += mirrored.notes
        parts, notes = submodules(mirrored.bare, mirrored.commit, addresses)
        self.notes += [f"{at}: {note}" if at.parts else note for note in notes]
        wanted = [
            Repository(str(at / part.path), part.addresses, commit=part.commit) for part in parts
        ]
        below = self.mirror_all(wanted)
        for part, one in zip(parts, below, strict=True):
            self.grow(one, part.addresses, tree, at / part.path, depth + 1)
        if parts:
            # For people and tools that ask git: without it, it takes them for left out.
            answer("submodule", "--quiet", "init", folder=where)


def fetch_git(
    choice: SourceChoice,
    destination: Path,
    *,
    cache: Path,
    progress: Progress,
    retry: Retry = PATIENT,
) -> FetchedSource:
    """Clone a repository and all its submodules at a commit, which is verified."""
    addresses = (choice.url, *choice.mirrors)
    for url in addresses:
        check_git_address(url, local=True, what="source address")
    if choice.ref and not _REF.fullmatch(choice.ref):
        raise SourceError(f"{choice.ref!r} is not a git tag, branch or commit")
    if choice.commit and not _COMMIT.fullmatch(choice.commit):
        raise SourceError(f"{choice.commit!r} is not a commit: it has 40 hexadecimal digits")
    ref, commit = choice.ref, choice.commit
    if _COMMIT.fullmatch(ref):
        if commit and commit != ref:
            raise SourceError(f"the recipe asks for commit {ref} and for commit {commit}")
        ref, commit = "", ref
    if not (ref or commit):
        raise SourceError("a git source needs a tag, a branch or a commit")
    wanted = Repository(_short(choice.url), addresses, ref, commit)
    clone = _Clone(cache, progress, retry)
    top = mirror(wanted, cache, clone.progress, retry)
    used = top.used or addresses[0]
    # Relative submodules are looked for beside the server that answered, then beside the others.
    order = (used, *(url for url in addresses if url != used))
    clone.grow(top, order, destination, PurePosixPath())
    check_links(destination, shown(used))
    below = "".join(f"{path} {commit}\n" for path, commit in sorted(clone.commits.items()))
    evidence = {"commit": top.commit, "ref": choice.ref, "submodules": str(len(clone.commits) - 1)}
    evidence["submodules-sha256"] = hashlib.sha256(below.encode()).hexdigest()
    if not choice.commit and not _COMMIT.fullmatch(choice.ref):
        clone.notes.append(f"{choice.ref} was not pinned: it is {top.commit} today")
    return FetchedSource("git", shown(used), evidence, tuple(dict.fromkeys(clone.notes)))
