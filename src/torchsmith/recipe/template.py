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

_TAIL = """
# More that can be said; every line below is optional.
#
# [features]                  # what to build with or without: torchsmith facts features
# nccl = "system"             # on, off, system or static
# mkldnn = "off"
#
# [companions]                # libraries that only work with their matching torch
# vision = "match"            # or a release such as "0.21.0"
#
# [image]                     # a container image of it
# name = "pytorch"
# shm_size = "8G"
#
# [matrix]                    # several at once: every combination becomes a variant
# python = ["3.11", "3.12"]
"""


def commented_recipe(wishes: Mapping[str, object]) -> str:
    """A recipe for these wishes that explains itself."""
    body = compose({"torch": "2.6.0", "python": ["host"], **wishes}, commented=True)
    return _HEAD + body + _TAIL
