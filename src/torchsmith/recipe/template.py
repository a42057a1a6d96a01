"""The commented recipe `torchsmith init` writes."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.recipe.compose import compose

_HEAD = """\
# A torchsmith recipe: what is wanted. `torchsmith plan` says whether it can exist and what
# would be done; `torchsmith schema` describes every key. An editor with Even Better TOML
# (Taplo) completes and checks this file once `torchsmith schema > recipe.schema.json` was run
# and this line stands first:  #:schema ./recipe.schema.json

"""

_MORE = {
    "features": """\
#
# [features]                  # what to build with or without: torchsmith facts features
# nccl = "system"             # on, off, system or static
# mkldnn = "off"
""",
    "companions": """\
#
# [companions]                # libraries that only work with their matching torch
# vision = "match"            # or a release such as "0.21.0"
""",
    "image": """\
#
# [image]                     # a container image of it
# name = "pytorch"
# shm_size = "8G"
""",
    "matrix": """\
#
# [matrix]                    # several at once: every combination becomes a variant
# python = ["3.11", "3.12"]
""",
}


def commented_recipe(wishes: Mapping[str, object]) -> str:
    """A recipe for these wishes that explains itself."""
    body = compose({"torch": "2.6.0", "python": ["host"], **wishes}, commented=True)
    # A table may stand in a file once.
    more = "".join(text for name, text in _MORE.items() if not wishes.get(name))
    return f"{_HEAD}{body}\n# More that can be said; every line below is optional.\n{more}"
