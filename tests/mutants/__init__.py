"""Planted bugs: each breaks one promise, and the test of that promise must fail.

A test that cannot fail proves nothing. `tests/system/test_mutants.py` runs each against a copy of the package.
"""
