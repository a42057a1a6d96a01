"""Container images: the tools that build, hold and run them, and the registries they come from.

`tools.py` says what each tool can do, and which is used; `transfer.py` pushes and pulls.
"""
