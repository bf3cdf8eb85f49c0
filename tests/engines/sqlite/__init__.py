"""Tests of the SQLite engine alone."""
