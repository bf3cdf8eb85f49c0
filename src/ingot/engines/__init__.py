"""Engines implement the commands of the ports, one folder per database system, with the same file names in each."""
