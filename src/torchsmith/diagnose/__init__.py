"""Naming a failure from its log: what it means, why it happened, what cures it.

What is known are the TOML files in ``data/``, one for each area; ``models`` says what they may
hold and ``knowledge`` reads them. ``scan`` goes through a log once, however long it is;
``diagnose`` says what was seen in it. ``recipe_change`` is for cures that are a line of a recipe.
"""
