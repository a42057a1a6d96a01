"""What a person asks for: the recipe file, its models, its matrix, its presets.

``load`` is the door: it turns a file into a `Recipe` or one error that lists everything
wrong with it. ``matrix`` expands a recipe into its variants.
"""
