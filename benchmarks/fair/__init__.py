"""Many tenants on one queue, and limits on what runs: what they cost beside one tenant without any.

python -m benchmarks.fair
"""
