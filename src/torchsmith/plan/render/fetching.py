"""Bringing a source tree with git, apt, curl and tar alone."""

from __future__ import annotations

import re

from torchsmith.plan.models import Fetch
from torchsmith.plan.shell import in_project, needs_program, plain_name, sh, unless
from torchsmith.plan.sources import folder_commands
from torchsmith.resolve.models import SourceChoice

PYPI = "https://pypi.org/simple"
DEBIAN_MIRROR = "https://deb.debian.org/debian"
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def git_commands(
    folder: str, url: str, mirrors: tuple[str, ...], ref: str, commit: str
) -> list[str]:
    """A shallow clone at a ref, its commit checked, its submodules brought along."""
    git = ("git", "-C", folder)
    fetches = [
        sh(*git, "fetch", "--quiet", "--depth", "1", source, ref) for source in (url, *mirrors)
    ]
    commands = [
        needs_program("git", "install git"),
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
                f"{ref} does not point to {commit}: the tag was moved, "
                "or this is another repository",
            )
        )
    update = (*git, "submodule", "update", "--quiet", "--init", "--recursive")
    return [
        *commands,
        sh(*git, "submodule", "sync", "--quiet", "--recursive"),
        # git before 2.8 has no --jobs, and some servers give no single commits: then all of it.
        f"{sh(*update, '--depth', '1', '--jobs', '8')} || "
        f"{{ {sh(*git, 'submodule', 'deinit', '--quiet', '--force', '.')}; "
        f"{sh('rm', '-rf', f'{folder}/.git/modules')}; {sh(*update)}; }}",
    ]


def _alone(apt: str, package: str, version: str) -> str:
    """A source package; where its Debian part is not to be had, what upstream released."""
    tree = sh(f"{package}-{version}")
    warning = (
        f"warning: Debian's part of {package} {version} cannot be had; upstream's is taken alone"
    )
    # Only for want of the file: a package that came whole and cannot be unpacked is an error.
    return (
        f"if {apt} source --download-only {sh(package)}; then {apt} source {sh(package)}; "
        f"else echo {sh(warning)} >&2; {apt} source --tar-only {sh(package)}; mkdir {tree}; "
        f"tar --extract --file {sh(f'{package}_{version}')}*.orig.tar.* --directory {tree} "
        "--strip-components=1; fi"
    )


def debian_commands(folder: str, source: SourceChoice, version: str, home: str = "") -> list[str]:
    """A source package through a private apt list: the host's own lists stay as they are.

    The lists and what is downloaded lie in `home`.
    """
    suite, package = source.suite, source.package
    home = home or f"apt/{package}"
    options = (
        f'Dir::Etc::SourceList="$WORK"/{home}/sources.list',
        "Dir::Etc::SourceParts=/dev/null",
        f'Dir::State::Lists="$WORK"/{home}/lists',
        f'Dir::Cache="$WORK"/{home}/cache',
        # Whatever this host's own configuration says.
        "Acquire::AllowInsecureRepositories=false",
        "APT::Get::AllowUnauthenticated=false",
        # Root's apt otherwise reads the work folder as the user _apt, who may not enter it.
        "APT::Sandbox::User=root",
    )
    apt = " ".join(["apt-get -qq", *(f"-o {option}" for option in options)])
    tree = sh(f"{package}-{version}") + "*/"
    bring = (
        _alone(apt, package, version) if source.upstream_alone else f"{apt} source {sh(package)}"
    )
    return [
        needs_program("apt-get", "Debian's source packages need a Debian or Ubuntu machine"),
        needs_program("dpkg-source", "apt-get install dpkg-dev"),
        unless(
            f"test -e {DEBIAN_KEYS}",
            "the keys of Debian's archive are missing: apt-get install debian-archive-keyring",
        ),
        sh("mkdir", "-p", f"{home}/lists/partial", f"{home}/cache/archives/partial", "sources"),
        f"printf 'deb-src [signed-by=%s] %s %s main contrib\\n' {DEBIAN_KEYS} "
        f'"${{DEBIAN_MIRROR:-{DEBIAN_MIRROR}}}" {sh(suite)} > {home}/sources.list',
        f"{apt} update",
        sh("rm", "-rf", f"{home}/unpack", folder),
        sh("mkdir", "-p", f"{home}/unpack"),
        # apt checks the files against the signed index; dpkg-source applies the patch series.
        f"(cd {home}/unpack; {bring})",
        unless(
            f"ls -d {home}/unpack/{tree} >/dev/null 2>&1",
            f"Debian {suite} no longer has {package} {version}",
        ),
        f"mv {home}/unpack/{tree} {sh(folder)}",
        sh("rm", "-rf", f"{home}/unpack"),
    ]


_CURL = "curl --fail --silent --show-error --location --retry 3"


def _checked(file: str, sha256: str, whose: str) -> str:
    """End the step where a file is not the one that the recipe, or the facts, name."""
    return unless(
        f"echo '{sha256}  {file}' | sha256sum --check --status",
        f"{file} does not have the hash the {whose}",
    )


def _unpacked(file: str, folder: str, unpack: str = "") -> list[str]:
    """An archive without the folder it is all in, in an empty folder."""
    tar = sh("tar", "--extract", "--file", file, "--directory", folder, "--strip-components=1")
    return [sh("rm", "-rf", folder), sh("mkdir", "-p", folder), unpack or tar]


def archive_commands(folder: str, url: str, path: str, sha256: str) -> list[str]:
    """An archive, its hash checked before a byte of it is unpacked."""
    name = plain_name((url or path).split("?")[0].rsplit("/", 1)[-1])
    file = f"downloads/{sha256[:12]}-{name}"
    bring = [needs_program("curl", "install curl"), f"{_CURL} --output {file} {sh(url)}"]
    return [
        "mkdir -p downloads",
        *(bring if url else [f"cp {in_project(path)} {file}"]),
        _checked(file, sha256, "recipe says"),
        *_unpacked(file, folder),
    ]


def pool_commands(folder: str, path: str, sha256: str) -> list[str]:
    """One file of Debian's pool, its hash checked before it is unpacked."""
    file = f"downloads/{sha256[:12]}-{plain_name(path.rsplit('/', 1)[-1])}"
    # ./usr is taken off, as the one folder that an archive is in.
    package = (
        f"ar p {file} data.tar.xz | tar --extract --xz --directory {sh(folder)} "
        "--strip-components=2 ./usr"
    )
    return [
        needs_program("curl", "install curl"),
        "mkdir -p downloads",
        f'{_CURL} --output {file} "${{DEBIAN_MIRROR:-{DEBIAN_MIRROR}}}"/{sh(f"pool/{path}")}',
        _checked(file, sha256, "facts say"),
        *_unpacked(file, folder, package if path.endswith(".deb") else ""),
    ]


def sdist_commands(folder: str, project: str, sha256: str, *, wheel: bool = False) -> list[str]:
    """A source archive, or a wheel, found in a package index by its hash; none of it is run."""
    # As PEP 503 writes a project's name in the address of its page.
    page = re.sub(r"[-_.]+", "-", project).lower()
    file = f"downloads/{sha256[:12]}-{page}.{'whl' if wheel else 'tar.gz'}"
    unzip = sh("python3", "-m", "zipfile", "--extract", file, folder) if wheel else ""
    return [
        needs_program("curl", "install curl"),
        "mkdir -p downloads",
        f'page="${{PIP_INDEX_URL:-{PYPI}}}"; page="${{page%/}}/{page}/"',
        f'{_CURL} --output {file}.html "$page"',
        f'url="$(sed -n \'s/.*href="\\([^"]*\\)#sha256={sha256}".*/\\1/p\' {file}.html)"',
        unless('test -n "$url"', f"the index has no file of {project} with the sha256 {sha256}"),
        # A link may be relative: to the index's host, or to the page.
        'case "$url" in *://*) ;; '
        '/*) url="$(echo "$page" | cut -d/ -f1-3)$url" ;; '
        '*) url="$page$url" ;; esac',
        f'{_CURL} --output {file} "$url"',
        _checked(file, sha256, "recipe says"),
        *_unpacked(file, folder, unzip),
    ]


def fetch_commands(fetch: Fetch) -> list[str]:
    """The commands that bring a source, whatever kind it is."""
    source, folder = fetch.source, fetch.into
    match source.kind:
        case "debian" | "wheel" | "pool" if source.files:
            return _lent_commands(fetch)
        case "debian":
            return debian_commands(folder, source, fetch.version)
        case "archive":
            return archive_commands(folder, source.url, source.path, source.sha256)
        case "sdist":
            return sdist_commands(folder, source.package, source.sha256)
        case "folder":
            return list(folder_commands(folder, source.path))
        case "bundle":
            return [
                "mkdir -p sources",
                sh("rm", "-rf", folder),
                f"tar --extract --file {in_project(source.path)} --directory sources",
                unless(f"test -d {sh(folder)}", f"the bundle does not hold {folder}"),
            ]
    return git_commands(folder, source.url, source.mirrors, source.ref, source.commit)


def _lent_commands(fetch: Fetch) -> list[str]:
    """A source package, or a wheel, of which only a few files are kept."""
    source, folder = fetch.source, fetch.into
    home = f"apt/{plain_name(f'{source.package}-{source.ref}')}"
    tree = f"{home}/tree"
    copies = [
        line
        for file in source.files
        for line in (
            sh("mkdir", "-p", f"{folder}/{file}".rpartition("/")[0]),
            sh("cp", "-R", f"{tree}/{file}", f"{folder}/{file}"),
        )
    ]
    match source.kind:
        case "wheel":
            bring = sdist_commands(tree, source.package, source.sha256, wheel=True)
        case "pool":
            bring = pool_commands(tree, source.url, source.sha256)
        case _:
            bring = debian_commands(tree, source, source.ref, home)
    return [
        *bring,
        sh("rm", "-rf", folder),
        *copies,
        sh("rm", "-rf", tree),
    ]
