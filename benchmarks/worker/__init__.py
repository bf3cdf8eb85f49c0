"""One worker process beside the workers of its peers: jobs that do nothing, from the first start to the last settle.

Run with `python -m benchmarks.worker`. Ingot is `ingot serve` and `ingot worker`, as people run them. Every system has
a fresh server or database for each run, a process that submits, and one worker process with its own fast settings. All
handlers note when they start in a file that the processes share: the machine has one clock.
"""
