"""A plan written down for people who do not have torchsmith: script, Dockerfile, conda recipe."""
