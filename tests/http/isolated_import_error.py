"""A handler whose module cannot be imported in the template process."""

from __future__ import annotations

import sys

from ingot.worker import Worker, WorkerJob

if "ingot.worker.isolation.template" in sys.modules:
    raise RuntimeError("not here")

worker = Worker()


@worker.handler("broken", isolate=True)
def broken(job: WorkerJob) -> None:
    pass
