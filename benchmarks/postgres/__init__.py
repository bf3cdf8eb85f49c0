"""The job queue on PostgreSQL beside pgqueuer, procrastinate, chancy, awa, graphile-worker and the hand-written floor.

Run with `python -m benchmarks.postgres`. One server with fsync on runs in a folder of the measured disk; every measured
run is a process of its own on a database of its own, made fresh for it. Rounds visit all systems in turn, so a slow
minute of the machine falls on all of them alike.
"""
