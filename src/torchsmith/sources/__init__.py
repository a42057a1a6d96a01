"""Where source comes from: git, Debian's source archive, an archive, a folder, a bundle.

`fetch` brings whatever a `SourceChoice` names into an empty folder; each kind has its module
(`git`, `debian`, `archive`, `folder`, `bundle`), and `patches` changes what was brought.
`extract` is the only one that unpacks, `download` the only one that speaks http, `programs`
the only one that starts a program. Everything that comes is a stranger's until it is checked.
"""

from torchsmith.sources.bundle import Manifest, open_bundle, read_manifest, write_bundle
from torchsmith.sources.errors import NotServedError, SourceError, UnreachableError
from torchsmith.sources.fetch import fetch
from torchsmith.sources.models import FetchedSource, Progress
from torchsmith.sources.patches import apply_patches
from torchsmith.sources.tree import tree_hash

__all__ = [
    "FetchedSource",
    "Manifest",
    "NotServedError",
    "Progress",
    "SourceError",
    "UnreachableError",
    "apply_patches",
    "fetch",
    "open_bundle",
    "read_manifest",
    "tree_hash",
    "write_bundle",
]
