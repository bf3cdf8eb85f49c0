"""Blobs, compared with nginx, a copy with fsync, a file per blob, and a bucket without a server.

Run with `python -m benchmarks.blobs`. Ingot runs as `ingot serve`. Compared operations alternate, and are done by the
same process in the same file system.
"""
