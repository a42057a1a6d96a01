"""Jobs: a workload, and the request each engine takes for it.

`files` reads a job, `resolve` makes every choice in it, one module for each engine renders its
native request, `importing` reads the requests of OpenPAI. Rendering is pure.
"""
