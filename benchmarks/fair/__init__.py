"""The cost of many tenants on one queue and of limits, and what a tenant notices of another one that abuses the server.

Run with `python -m benchmarks.fair`.
"""
