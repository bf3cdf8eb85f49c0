"""Helpers of the plan tests: a meter of the work of SQLite, and calls that run every statement."""
