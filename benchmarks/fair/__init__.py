"""The cost of many tenants on one queue and of limits, compared with one tenant without limits.

Run with `python -m benchmarks.fair`.
"""
