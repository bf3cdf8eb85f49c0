"""Limits on the cost of requests, counted and not timed."""
