"""Jobs: a workload, the request each engine takes for it, and handing it over.

`files` reads a job, `resolve` makes every choice in it, one module for each engine renders its
native request, `importing` reads the requests of OpenPAI. Rendering is pure. `submit` and `watch`
hand jobs to the clients in `engines` and tell of them; `submissions` is the journal of that.
"""
