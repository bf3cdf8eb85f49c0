"""Workers: claim jobs from a server or a database and run handlers for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.kernel.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from ingot.worker.app import Worker
    from ingot.worker.job import NoRetry, WorkerJob

__all__ = ["NoRetry", "Worker", "WorkerJob"]

__getattr__, __dir__ = lazy_imports(
    __name__, {"Worker": "ingot.worker.app", "NoRetry": "ingot.worker.job", "WorkerJob": "ingot.worker.job"}
)
