"""The build farm: each variant of a matrix built by a job of a cluster, into one store.

`request` copies what the jobs read and writes a variant's job, `attempt` reads what a job left
behind, `farm` submits, watches and resubmits.
"""
