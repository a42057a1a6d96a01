"""`torchsmith schema`."""

from __future__ import annotations

import sys


def schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    from torchsmith.facts.files import shipped
    from torchsmith.recipe.schema import schema_text

    sys.stdout.write(schema_text(shipped()))
