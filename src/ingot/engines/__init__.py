"""Engines: the stores behind the ports, one folder each, with the same file names in each."""
