"""Finishing a wheel: what it needs from outside is settled, and its tag says what is true.

`finish_wheel()` in `finish.py` does it. `outside.py` decides about each library that is not in
the wheel, `audit.py` asks auditwheel, `design.py` says what will change.
"""
