"""Proving that a wheel or an environment holds the torch that was asked for.

`verify()` does everything and returns a `Report`. Files are only looked at here; what has to
run runs in the target's own Python (`probe/`), each check in a process of its own.
"""
