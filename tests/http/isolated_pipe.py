"""A handler whose module opens a pipe at import, from which each job wants to read for itself."""

from __future__ import annotations

import os

from ingot.worker import Worker, WorkerJob

worker = Worker()
reading, writing = os.pipe()
os.write(writing, b"for one")
os.close(writing)


@worker.handler("pipe", isolate=True)
def pipe(job: WorkerJob) -> str:
    return os.read(reading, 100).decode()
