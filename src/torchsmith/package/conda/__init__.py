"""Conda packages: from a wheel or from the folder of a prefix, the same bytes on any machine."""
