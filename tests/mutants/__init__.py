"""Planted bugs: each breaks one promise, and a test that holds that promise must notice.

A test that cannot fail proves nothing. `tests/system/test_mutants.py` runs each of these against a copy of the package.
"""
