"""A handler whose module begins a thread at import, which each job wants to have."""

from __future__ import annotations

import threading

from ingot.worker import Worker, WorkerJob

worker = Worker()
asked, answered = threading.Semaphore(0), threading.Event()


def _answer() -> None:
    asked.acquire()
    answered.set()


threading.Thread(target=_answer, daemon=True).start()


@worker.handler("thread", isolate=True)
def thread(job: WorkerJob) -> str:
    asked.release()
    return "answered" if answered.wait(20) else "there is no thread"
