"""Running a plan: which steps, where their results live, what is told and remembered.

``runner`` is the door. ``store`` keeps results by key, ``journal`` what was run, ``events``
what happens while it is; ``schedule`` decides and is pure, ``process`` alone starts programs.
"""
