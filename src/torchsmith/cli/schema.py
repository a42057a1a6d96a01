"""`torchsmith schema`."""

from __future__ import annotations

from torchsmith.cli.output import print_content


def schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    from torchsmith.facts.files import shipped
    from torchsmith.recipe.schema import schema_text

    print_content(schema_text(shipped()))
