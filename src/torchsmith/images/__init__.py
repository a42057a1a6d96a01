"""Container images: the engines that build, hold and run them, each in a module of its own.

`find.py` says which engine is used; `engine.py` says what each of them can do.
"""
