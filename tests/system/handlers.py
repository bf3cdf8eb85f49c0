"""Handlers for tests of workers, some of which misbehave."""

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


def note(note_file: str, *arguments: object) -> None:
    """Append a line to a file in one write, so that concurrent lines stay whole."""
    descriptor = os.open(note_file, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o666)
    with suppress(PermissionError):
        os.fchmod(descriptor, 0o666)  # Each isolated attempt runs as another user.
    try:
        os.write(descriptor, (" ".join(map(str, arguments)) + "\n").encode())
    finally:
        os.close(descriptor)


@worker.handler("tick", concurrency=8)
def tick(job: WorkerJob) -> dict[str, int]:
    time.sleep(job.payload.get("seconds", 0))
    note(job.payload["note_file"], job.id, job.attempt)
    return {"pid": os.getpid(), "attempt": job.attempt}


@worker.handler("wait", concurrency=8)
def wait(job: WorkerJob) -> int:
    """Run until the first attempt is stopped; later attempts end at once."""
    if job.attempt == 1:
        if job.wait(60) and job.payload is not None:
            note(job.payload["note_file"], "stopped", job.id)
        job.check()
    return job.attempt


@worker.handler("hold", concurrency=2)
def hold(job: WorkerJob) -> dict[str, int]:
    """Let the first attempt run until it is stopped, or too late, until the end file exists."""
    note_file, end_file = job.payload["note_file"], job.payload["end_file"]
    while job.attempt == 1:
        print("attempt", job.attempt)
        if job.canceled:
            note(note_file, "stopped", job.id, job.attempt)
            job.check()
        time.sleep(0.02)
        if end_file is not None and Path(end_file).exists():
            job.progress(99, "stale")
            print("attempt", job.attempt, "is late")
            note(note_file, "late", job.id, job.attempt)
            break
    print("attempt", job.attempt)
    return {"attempt": job.attempt, "fence": job.data.fence}


@worker.handler("rude", concurrency=2)
async def block_loop(job: WorkerJob) -> int:
    note(job.payload["note_file"], "blocks", job.id)
    time.sleep(job.payload["seconds"])  # noqa: ASYNC251 - it blocks the loop on purpose
    note(job.payload["note_file"], "blocked", job.id)
    return job.attempt


@worker.handler("polite", concurrency=2)
async def sleep_async(job: WorkerJob) -> None:
    await asyncio.sleep(60)


@worker.handler("poison")
def poison(job: WorkerJob) -> None:
    note(job.payload["note_file"], job.id, job.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


@worker.handler("deaf")
def ignore_stop(job: WorkerJob) -> None:
    note(job.payload["note_file"], "began", job.id, job.attempt)
    time.sleep(job.payload["seconds"])
    note(job.payload["note_file"], "ended", job.id, job.attempt)


@worker.handler("copy")
def copy(job: WorkerJob) -> int:
    """Fork a copy of the worker that keeps all its open files."""
    if (child := os.fork()) == 0:
        time.sleep(120)
        os._exit(0)
    return child


@worker.handler("flood")
def flood(job: WorkerJob) -> int:
    for number in range(job.payload["lines"]):
        print(number, LINE)
    return number


@worker.handler("isolated", isolate=True, concurrency=4, memory_mb=300)
def isolated(job: WorkerJob) -> Any:
    match job.payload["does"]:
        case "flood":
            for number in range(job.payload["lines"]):
                print(number, LINE)
            return job.payload["lines"]
        case "leak":
            blocks = []
            while True:
                blocks.append(bytearray(1024 * 1024))
        case "forks":
            _fork(job.payload["note_file"])
            time.sleep(600)
    return None


@worker.handler("isolated.briefly", isolate=True, timeout="6s")
def isolated_briefly(job: WorkerJob) -> None:
    _fork(job.payload["note_file"])
    time.sleep(600)


def _fork(note_file: str) -> None:
    """Start two more processes, and let all three ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["/bin/sleep", "600"])
    if (forked := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    note(note_file, os.getpid(), child.pid, forked)
