"""Tests of the SQLite engine."""
