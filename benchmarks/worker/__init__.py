"""One worker process compared with the workers of its peers, on jobs that do nothing.

Run with `python -m benchmarks.worker`. Ingot runs as `ingot serve` and `ingot worker`. For each run, a system has a
fresh server or database, a process that submits, and one worker process with its fastest settings. Handlers record when
they start in a file that all processes share, by the clock of the machine.
"""
