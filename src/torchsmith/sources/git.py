"""Git repositories with their submodules, at a commit.

Every repository has a bare copy in the cache, into which it is fetched; the tree is then
checked out from there. A broken transfer so costs the one repository it broke in: PyTorch
has some sixty, and the next attempt fetches only those that are missing. Submodules are read
from a commit, and each is judged before anything is fetched.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from torchsmith.errors import NotServedError, SourceError, UnreachableError
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import entry_for, find_release
from torchsmith.host.probe import run
from torchsmith.programs import Answer
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import SourceChoice
from torchsmith.resolve.sources import TORCH_REPOSITORY, debian_source, lacks_libraries
from torchsmith.sources.addresses import check_git_address, is_local, joined, shown
from torchsmith.sources.download import PATIENT, Retry, locked
from torchsmith.sources.git_program import answer, git, is_final, is_refused, reason, unreachable
from torchsmith.sources.tree import FetchedSource, Progress, check_links

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
    """Fetch a commit, and as little else as the server allows."""
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
    """Fetch a commit into the cache from the first address that gives it."""
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


class _Shared:
    """A progress that several threads may report to, and that can tell them to stop."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let every thread that reports from now on end with an error."""
        self._stopped.set()

    def __call__(self, what: str, done: int | None, total: int | None) -> None:
        """Report, one thread at a time."""
        if self._stopped.is_set():
            raise SourceError(f"{what}: stopped")
        with self._lock:
            self._progress(what, done, total)


class _Clone:
    """One recursive clone under way."""

    def __init__(self, cache: Path, progress: Progress, retry: Retry) -> None:
        self.cache, self.progress, self.retry = cache, _Shared(progress), retry
        self.commits: dict[str, str] = {}
        self.notes: list[str] = []

    def mirror_all(self, wanted: Sequence[Repository]) -> list[Mirrored]:
        """Fetch several repositories into the cache, a few at once."""
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


@dataclass(frozen=True, slots=True)
class Submodule:
    """Another repository at a commit, in a folder of this one."""

    path: PurePosixPath
    commit: str
    addresses: tuple[str, ...]


def check_path(path: str) -> PurePosixPath:
    """Refuse a submodule folder that is not plainly inside the tree."""
    parts = path.split("/")
    hostile = (
        not path
        or path.startswith(("/", "-"))
        or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
        or any(ord(char) < 32 or ord(char) == 127 for char in path)
        or "\\" in path
    )
    if hostile:
        raise SourceError(
            f"submodule path {path!r} is not a plain folder inside the repository",
            "The repository is broken or hostile; nothing of it was kept.",
        )
    return PurePosixPath(path)


def check_place(tree: Path, path: PurePosixPath) -> Path:
    """The folder a submodule goes to, made; refused if a link stands in the way."""
    where = tree
    for part in path.parts:
        where = where / part
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            raise SourceError(
                f"submodule path {str(path)!r} leads through {part!r}, which is not a folder",
                "The repository is broken or hostile; nothing of it was kept.",
            )
    where.mkdir(parents=True, exist_ok=True)
    if any(where.iterdir()):
        raise SourceError(f"submodule path {str(path)!r} is not empty")
    return where


def _addresses(url: str, parents: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Where a submodule can be had: a relative address is beside each of its parent's."""
    what = f"submodule {path!r}"
    if not url.startswith(("./", "../")):
        check_git_address(url, local=all(map(is_local, parents)), what=what)
        return (url,)
    beside = tuple(joined(parent, url) for parent in parents)
    for parent, address in zip(parents, beside, strict=True):
        check_git_address(address, local=is_local(parent), what=what)
    return beside


def submodules(
    repository: Path, commit: str, parents: tuple[str, ...]
) -> tuple[tuple[Submodule, ...], tuple[str, ...]]:
    """The submodules of a commit, and notes on those it holds but does not explain."""
    links: dict[str, str] = {}
    listing = answer("ls-tree", "-r", "-z", "--full-tree", commit, folder=repository)
    has_file = False
    for line in listing.split("\0"):
        kind, _, path = line.partition("\t")
        has_file |= path == ".gitmodules" and kind.startswith("100")
        if kind.startswith("160000"):
            links[path] = kind.split()[2]
    if not has_file:
        notes = tuple(
            f"submodule {path!r} has no entry in .gitmodules: left empty" for path in links
        )
        return (), notes
    reply = git("config", "--blob", f"{commit}:.gitmodules", "-z", "--list", folder=repository)
    if reply.code:
        raise SourceError(".gitmodules of the repository cannot be read")
    entries: dict[str, dict[str, str]] = {}
    for item in reply.out.split("\0"):
        key, _, value = item.partition("\n")
        if key.startswith("submodule.") and key.count(".") >= 2:
            name, _, field = key[len("submodule.") :].rpartition(".")
            entries.setdefault(name, {})[field] = value
    found: dict[str, Submodule] = {}
    for name, entry in entries.items():
        path, url = entry.get("path", name), entry.get("url", "")
        # Judged even where the commit does not use it: a hostile line is reason enough to stop.
        place = check_path(path)
        addresses = _addresses(url, parents, path)
        if path in links:
            found[path] = Submodule(place, links[path], addresses)
    notes = tuple(
        f"submodule {path!r} has no entry in .gitmodules: left empty"
        for path in links
        if path not in found
    )
    return tuple(found.values()), notes


_SECONDS = 10


def answers(url: str) -> bool:
    """Whether the repository at this address can be asked for its branches."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "ls-remote", "--quiet", "--heads", "--", url, "HEAD"]
    return run(command, environment, _SECONDS) is not None


def with_reachable_source(
    recipe: Recipe, facts: Facts, answers: Callable[[str], bool] = answers
) -> tuple[Recipe, str]:
    """The recipe with Debian's source where it leaves the choice open and git does not answer.

    The second value is a sentence that says so; empty where git answers. Only for a release whose
    Debian source we know how to build, and a distribution that has the libraries for it: otherwise
    git stays, and its own error says what is wrong.
    """
    source = recipe.source
    torch = recipe.torch
    if source.kind != "auto" or torch.use != "source" or torch.ref or torch.commit:
        return recipe, ""
    release = find_release(facts, recipe.torch.release)
    known = entry_for(facts.systems.debian_build, release.version) if release else None
    if release is None or known is None or lacks_libraries(facts, known, recipe):
        return recipe, ""
    entry = debian_source(facts, release.version, source.suite)
    url = source.url or TORCH_REPOSITORY
    if entry is None or answers(url):
        return recipe, ""
    chosen = source.model_copy(update={"kind": "debian", "suite": entry.suite})
    message = f"{url} does not answer: Debian {entry.suite}'s source of {release.version} is taken"
    return recipe.model_copy(update={"source": chosen}), message
