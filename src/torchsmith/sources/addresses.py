"""Addresses: which may be used, how they are shown, what a relative one means."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from pathlib import Path

from torchsmith.errors import SourceError

_CONTROL = re.compile(r"[\x00-\x20\x7f]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# host:path, as ssh understands it; a slash before the colon makes it a path.
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9._-]*):(?!/)[^:]")
_REMOTE = frozenset({"http", "https", "ssh", "git"})


def shown(url: str) -> str:
    """The address without the name and password in it: messages and logs are read by many."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


def is_local(url: str) -> bool:
    """Whether an address names a place on this machine."""
    return url.startswith(("file://", "/"))


def check_git_address(url: str, *, local: bool, what: str) -> None:
    """Refuse an address git could take for an option, a command, or a place not meant.

    `ext::sh -c …` runs a command, a host that starts with a dash is an option to ssh, and a
    local path in a submodule would copy this machine's own files into the tree.
    """
    hint = "Use an https, http, ssh or git address."
    if not url or url.startswith("-") or _CONTROL.search(url):
        raise SourceError(f"{what}: {url!r} is not an address git can safely be given", hint)
    if is_local(url):
        if not local:
            raise SourceError(
                f"{what}: {url!r} is a path on this machine, in a repository that is not", hint
            )
        return
    scheme = _SCHEME.match(url)
    if scheme is None:
        if _SCP.match(url) and "::" not in url:
            return
        raise SourceError(f"{what}: {url!r} is not an address git can safely be given", hint)
    if scheme[1].lower() not in _REMOTE:
        raise SourceError(f"{what}: {scheme[1]!r} addresses are not allowed ({shown(url)!r})", hint)
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
    except ValueError as error:
        raise SourceError(f"{what}: {shown(url)!r} is not an address: {error}", hint) from None
    if not host or host.startswith("-"):
        raise SourceError(f"{what}: {shown(url)!r} names no host git can safely be given", hint)


def joined(base: str, relative: str) -> str:
    """What a submodule's `../other.git` means beside its parent's address."""
    # git takes the parent's address as a folder, unlike a link in a web page.
    scheme = _SCHEME.match(base)
    if scheme:
        root, slash, path = base[scheme.end() :].partition("/")
        root = base[: scheme.end()] + root + slash
    elif base.startswith("/"):
        root, path = "/", base[1:]
    else:
        host, _, path = base.partition(":")
        root = f"{host}:"
    climbed = posixpath.normpath(posixpath.join(path.rstrip("/"), relative))
    if climbed.startswith(".."):
        raise SourceError(f"submodule address {relative!r} climbs out of {shown(base)}")
    return root + climbed


def local_path(url: str) -> Path:
    """The file an address on this machine names."""
    if not url.startswith("file://"):
        return Path(url)
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SourceError(f"{url!r} names a file on another machine", "Write file:///path/to/it.")
    return Path(urllib.parse.unquote(parts.path))
