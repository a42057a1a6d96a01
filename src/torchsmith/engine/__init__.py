"""Running a plan: which steps, where their results live, what is reported and kept.

`door` makes the plan of a recipe, `build` runs one with everything in place, `runner` is the order
of steps. `store` keeps results by key, `journal` what was run, `events` what happens meanwhile;
`schedule` decides and is pure, `process` runs a script, `places` runs it in a container.
"""
