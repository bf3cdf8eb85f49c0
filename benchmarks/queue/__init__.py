"""The job queue on SQLite beside huey, litequeue, honker and the raw group-commit floor.

Run with `python -m benchmarks.queue` (or `make bench`). Every measured run is a process of its own on fresh files, so
no system inherits another's threads, caches or settings; rounds visit all systems in turn, so a slow minute of the
machine falls on all of them alike.
"""
