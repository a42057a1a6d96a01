"""Shipping what was built: a pip index, a conda channel, uploads, and a server to try them.

`publish()` is the door for files. An index or a channel is a plain folder that any web server or
bucket can serve; its own pages are the record of what is in it, so that there is nothing beside
them to go out of date. `folder` makes changes appear whole; each external client has one module.
"""
