"""Benchmarks: Ingot measured beside its peers, on one machine, in one run."""
