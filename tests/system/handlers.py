"""Handlers that behave, and handlers that do not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingot.worker import Worker, WorkerJob

LINE = "x" * 99
worker = Worker()


def note(place: str, *words: object) -> None:
    """Write a line that everybody keeps whole."""
    descriptor = os.open(place, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o666)
    with suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # Each isolated attempt is another user.
    try:
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(descriptor)


@worker.handler("tick", concurrency=8)
def tick(job: WorkerJob) -> dict[str, int]:
    time.sleep(job.payload.get("seconds", 0))
    note(job.payload["place"], job.id, job.attempt)
    return {"pid": os.getpid(), "attempt": job.attempt}


@worker.handler("wait", concurrency=8)
def wait(job: WorkerJob) -> int:
    """Works as long as it is let, at first."""
    if job.attempt == 1:
        if job.wait(60) and job.payload is not None:
            note(job.payload["place"], "stopped", job.id)
        job.check()
    return job.attempt


@worker.handler("hold", concurrency=2)
def hold(job: WorkerJob) -> dict[str, int]:
    """Its first attempt works until it is told to stop. With the name of a file it ends, too late, when that exists."""
    place, end_file = job.payload["place"], job.payload["end_file"]
    while job.attempt == 1:
        print("attempt", job.attempt)
        if job.canceled:
            note(place, "stopped", job.id, job.attempt)
            job.check()
        time.sleep(0.02)
        if end_file is not None and Path(end_file).exists():
            job.progress(99, "stale")
            print("attempt", job.attempt, "is late")
            note(place, "late", job.id, job.attempt)
            break
    print("attempt", job.attempt)
    return {"attempt": job.attempt, "fence": job.data.fence}


@worker.handler("rude", concurrency=2)
async def rude(job: WorkerJob) -> int:
    note(job.payload["place"], "blocks", job.id)
    time.sleep(job.payload["seconds"])  # noqa: ASYNC251 - that is what is rude
    note(job.payload["place"], "blocked", job.id)
    return job.attempt


@worker.handler("polite", concurrency=2)
async def polite(job: WorkerJob) -> None:
    await asyncio.sleep(60)


@worker.handler("poison")
def poison(job: WorkerJob) -> None:
    note(job.payload["place"], job.id, job.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@worker.handler("deaf")
def deaf(job: WorkerJob) -> None:
    note(job.payload["place"], "began", job.id, job.attempt)
    time.sleep(job.payload["seconds"])
    note(job.payload["place"], "ended", job.id, job.attempt)


@worker.handler("copy")
def copy(job: WorkerJob) -> int:
    """Leave a copy of the worker behind, which has all that it has open."""
    if (copied := os.fork()) == 0:
        time.sleep(120)
        os._exit(0)
    return copied


@worker.handler("flood")
def flood(job: WorkerJob) -> int:
    for number in range(job.payload["lines"]):
        print(number, LINE)
    return number


@worker.handler("apart", isolate=True, concurrency=4, memory_mb=300)
def apart(job: WorkerJob) -> Any:
    match job.payload["does"]:
        case "flood":
            for number in range(job.payload["lines"]):
                print(number, LINE)
            return job.payload["lines"]
        case "leak":
            kept = []
            while True:
                kept.append(bytearray(1024 * 1024))
        case "forks":
            _fork(job.payload["place"])
            time.sleep(600)
    return None


@worker.handler("apart.briefly", isolate=True, timeout="6s")
def apart_briefly(job: WorkerJob) -> None:
    _fork(job.payload["place"])
    time.sleep(600)


def _fork(place: str) -> None:
    """Become three processes that do not go by themselves, and do not care about TERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["/bin/sleep", "600"])
    if (forked := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    note(place, os.getpid(), child.pid, forked)
