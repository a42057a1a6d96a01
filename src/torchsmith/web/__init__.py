"""The portal: builds, packages, recipes, jobs and this machine in a browser; index and channel too.

What is shown is read by the functions that the commands call; nothing here reads the store itself.
"""
