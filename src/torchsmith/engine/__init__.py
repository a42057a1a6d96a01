"""Running a plan: which steps, where their results live, what is reported and kept.

`build` is the door, `runner` the order of steps. `store` keeps results by key, `journal` what was
run, `events` what happens meanwhile; `schedule` decides and is pure, `process` runs a script.
"""
