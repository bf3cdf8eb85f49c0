"""Blobs beside what they could at best be: nginx, a copy with fsync, a file for each blob, a bucket without a server.

Run with `python -m benchmarks.blobs`. Ingot is `ingot serve`, as people run it. All that is compared is done in turns:
one run of ours, one of the other, by the same process, in the same file system.
"""
