"""Jobs: a workload, the request each target takes for it, and handing it over.

`files` reads a job, `models` makes every choice in it, one module for each target renders its
request, `importing` reads those of OpenPAI. Rendering is pure. `submit` hands jobs to the clients
in `targets` and watches them; `submissions` is the journal of that.
"""
