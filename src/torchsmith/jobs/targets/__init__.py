"""The clients of the targets that jobs go to; each alone starts the programs of its target."""
