"""The job queue on PostgreSQL, compared with pgqueuer, procrastinate, chancy, awa, graphile-worker and plain SQL.

Run with `python -m benchmarks.postgres`. One server with fsync on runs on the measured disk. Each measured run is a new
process on a fresh database. Each round runs all systems in turn, so that a slow minute of the machine affects all of
them.
"""
