"""The steps that bring source trees: fetch, then patch."""

from __future__ import annotations

from torchsmith.plan.models import Cost, Step, digest
from torchsmith.plan.shell import sh, unless
from torchsmith.resolve.models import CompanionChoice, PatchChoice, Resolution, SourceChoice

DEBIAN_MIRROR = "https://deb.debian.org/debian"


def git_commands(
    folder: str, url: str, mirrors: tuple[str, ...], ref: str, commit: str
) -> list[str]:
    """A shallow clone at a ref, its commit checked, its submodules brought along."""
    git = ("git", "-C", folder)
    fetches = [
        sh(*git, "fetch", "--quiet", "--depth", "1", source, ref) for source in (url, *mirrors)
    ]
    commands = [
        sh("mkdir", "-p", folder),
        sh(*git, "init", "--quiet"),
        # Submodules with relative addresses need a remote to be relative to.
        f"{sh(*git, 'remote', 'add', 'origin', url)} 2>/dev/null || "
        + sh(*git, "remote", "set-url", "origin", url),
        " || ".join(fetches),
        sh(*git, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--force", "FETCH_HEAD"),
    ]
    if commit:
        commands.append(
            unless(
                f'test "$({sh(*git, "rev-parse", "HEAD")})" = {commit}',
                f"{ref} does not point to {commit}: the tag was moved, or this is another repository",
            )
        )
    return [
        *commands,
        sh(*git, "submodule", "sync", "--quiet", "--recursive"),
        sh(
            *git,
            "submodule",
            "update",
            "--quiet",
            "--init",
            "--recursive",
            "--depth",
            "1",
            "--jobs",
            "8",
        ),
    ]


def debian_commands(folder: str, suite: str, package: str) -> list[str]:
    """A source package through a private apt list: the host's own lists stay as they are."""
    apt = (
        'apt-get -qq -o Dir::Etc::SourceList="$WORK/apt/sources.list" '
        '-o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists="$WORK/apt/lists" '
        '-o Dir::Cache="$WORK/apt/cache"'
    )
    return [
        "mkdir -p apt/lists/partial apt/cache/archives/partial sources",
        f"printf 'deb-src %s {suite} main contrib\\n' "
        f'"${{DEBIAN_MIRROR:-{DEBIAN_MIRROR}}}" > apt/sources.list',
        f"{apt} update",
        f"rm -rf apt/unpack {folder} && mkdir -p apt/unpack",
        # dpkg-source checks the signature's hashes and applies the package's patch series.
        f"(cd apt/unpack && {apt} source {sh(package)})",
        f"mv apt/unpack/*/ {sh(folder)}",
    ]


def archive_commands(folder: str, url: str, path: str, sha256: str) -> list[str]:
    """An archive, its hash checked before a byte of it is unpacked."""
    name = (url or path).rsplit("/", 1)[-1].split("?")[0] or "source.tar.gz"
    file = f"downloads/{sha256[:12]}-{name}"
    bring = (
        sh("curl", "--fail", "--silent", "--show-error", "--location", "--output", file, url)
        if url
        else sh("cp", path, file)
    )
    return [
        "mkdir -p downloads",
        bring,
        f"echo '{sha256}  {file}' > {file}.sha256",
        unless(f"sha256sum --check --quiet {file}.sha256", f"{file} has another hash"),
        sh("rm", "-rf", folder),
        sh("mkdir", "-p", folder),
        sh("tar", "--extract", "--file", file, "--directory", folder, "--strip-components=1"),
    ]


def _torch_commands(folder: str, source: SourceChoice) -> list[str]:
    if source.kind == "debian":
        return debian_commands(folder, source.suite, source.package)
    if source.kind == "archive":
        return archive_commands(folder, source.url, source.path, source.sha256)
    if source.kind in ("folder", "bundle"):
        name = sh(source.path)
        unpack = sh("tar", "--extract", "--file", source.path, "--directory", "sources")
        return [
            f"mkdir -p sources && rm -rf {sh(folder)}",
            f"cp -a {name} {sh(folder)}" if source.kind == "folder" else unpack,
        ]
    return git_commands(folder, source.url, source.mirrors, source.ref, source.commit)


def fetch_torch(resolution: Resolution) -> Step:
    """Bring torch's source."""
    source = resolution.source
    label = source.ref.replace("/", "-") if source.kind == "git" else resolution.torch
    folder = f"sources/torch-{label.removeprefix('v')}"
    where = {
        "git": f"{source.url} at {source.ref}",
        "debian": f"Debian {source.suite}, source package {source.package}",
        "archive": source.url or source.path,
    }.get(source.kind, source.path)
    return Step(
        id=f"fetch-torch-{label}",
        kind="fetch",
        title=f"Fetch torch {label}",
        why=where,
        project="torch",
        commands=tuple(_torch_commands(folder, source)),
        outputs=(folder,),
        cost=Cost(core_seconds=60, disk_mb=3000, basis="a shallow clone with submodules"),
        details=(("source", source.kind), ("commit", source.commit or "not pinned")),
    )


def fetch_companion(companion: CompanionChoice, debian: tuple[str, str] | None = None) -> Step:
    """Bring a companion's source: from git, or from the Debian suite torch came from."""
    folder = f"sources/{companion.name}-{companion.version}"
    if debian is None:
        repository = companion.repository.removesuffix(".git") + ".git"
        commands = git_commands(folder, repository, (), companion.tag, companion.commit)
        why = f"{companion.repository} at {companion.tag}"
    else:
        commands = debian_commands(folder, *debian)
        why = f"Debian {debian[0]}, source package {debian[1]}"
    return Step(
        id=f"fetch-{companion.name}-{companion.version}",
        kind="fetch",
        title=f"Fetch {companion.package} {companion.version}",
        why=why,
        project=companion.name,
        commands=tuple(commands),
        outputs=(folder,),
        cost=Cost(core_seconds=5, disk_mb=200, basis="a shallow clone"),
    )


def patch_source(fetch: Step, patches: tuple[PatchChoice, ...], files: dict[str, bytes]) -> Step:
    """Apply patches to a copy of a tree: every one is tried before any is applied."""
    inputs: list[str] = []
    for patch in patches:
        name = f"patches/{patch.project}/{patch.name}"
        files[name] = patch.content
        inputs.append(name)
    mark = digest(b"\0".join(patch.content for patch in patches))[:8]
    folder = f"{fetch.outputs[0]}-patched-{mark}"
    commands = [sh("rm", "-rf", folder), sh("cp", "-a", fetch.outputs[0], folder)]
    for patch, name in zip(patches, inputs, strict=True):
        apply = sh("patch", "--directory", folder, "--forward", "--batch", f"--strip={patch.strip}")
        given = f'--input="$WORK"/{sh(name)}'
        commands.append(
            unless(
                f"{apply} --dry-run {given}", f"{patch.name} does not apply: nothing was changed"
            )
        )
        commands.append(f"{apply} --quiet {given}")
    return Step(
        id=f"{fetch.id.replace('fetch', 'patch', 1)}-{mark}",
        kind="patch",
        title=f"Patch {fetch.project}: {', '.join(patch.name for patch in patches)}",
        why="; ".join(dict.fromkeys(patch.why for patch in patches)),
        project=fetch.project,
        needs=(fetch.id,),
        inputs=tuple(inputs),
        commands=tuple(commands),
        outputs=(folder,),
        cost=Cost(core_seconds=10, disk_mb=3000, basis="a copy of the tree"),
    )
