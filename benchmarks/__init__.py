"""Benchmarks that compare Ingot with its peers on one machine, in one run."""
