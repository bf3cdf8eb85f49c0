"""The worker: runs handlers for jobs, wherever the jobs come from."""

from ingot.worker.app import Worker
from ingot.worker.job import NoRetry, WorkerJob

__all__ = ["NoRetry", "Worker", "WorkerJob"]
