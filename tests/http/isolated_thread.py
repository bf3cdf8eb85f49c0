"""A handler that needs a thread that its module starts at import."""

from __future__ import annotations

import threading

from ingot.worker import Worker, WorkerJob

worker = Worker()
requested, answered = threading.Semaphore(0), threading.Event()


def _answer() -> None:
    requested.acquire()
    answered.set()


threading.Thread(target=_answer, daemon=True).start()


@worker.handler("thread", isolate=True)
def thread(job: WorkerJob) -> str:
    requested.release()
    return "answered" if answered.wait(20) else "there is no thread"
