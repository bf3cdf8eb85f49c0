"""The job queue on SQLite, compared with huey, litequeue, honker and a plain group commit (the floor).

Run with `python -m benchmarks.queue` or `make bench`. Each measured run is a new process on fresh files, so that no
system inherits the threads, caches or settings of another. Each round runs all systems in turn, so that a slow minute
of the machine affects all of them.
"""
