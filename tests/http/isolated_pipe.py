"""A handler that reads from a pipe that its module opens at import."""

from __future__ import annotations

import os

from ingot.worker import Worker, WorkerJob

worker = Worker()
reading, writing = os.pipe()
os.write(writing, b"from the pipe")
os.close(writing)


@worker.handler("pipe", isolate=True)
def pipe(job: WorkerJob) -> str:
    return os.read(reading, 100).decode()
