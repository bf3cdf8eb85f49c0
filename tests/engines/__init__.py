"""Tests of one storage engine beyond the conformance suite."""
