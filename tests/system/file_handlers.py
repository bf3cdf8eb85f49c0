"""Handlers that move files, and one that can be held up in the middle of it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ingot.kernel.errors import IngotError, InvalidInput
from ingot.worker import Worker, WorkerJob
from ingot.worker.attempt_files import AttemptFiles
from tests.system.handlers import note

MIB = 1024 * 1024
worker = Worker()


def content_of(job_id: str, attempt: int, size: int) -> bytes:
    """What an attempt makes, different from what others make."""
    return hashlib.sha256(f"{job_id} {attempt}".encode()).digest() * (size // 32)


def turned(job: WorkerJob) -> dict[str, Any]:
    """Fetch all inputs, and store each the other way round."""
    paths = {name: job.download(name) for name in job.inputs}
    made = [job.upload(path.read_bytes()[::-1], f"turned-{name}") for name, path in paths.items()]
    made.append(job.upload("ä text", "note.txt"))
    whole = job.download(job.inputs[0]).with_name("joined")
    whole.write_bytes(b"".join(path.read_bytes() for path in paths.values()))
    made.append(job.upload(whole, "joined.bin", content_type="application/x-joined"))
    return {"made": made, "folder": str(whole.parent), "user": os.geteuid()}


@worker.handler("turn.thread", concurrency=2)
def turn_in_a_thread(job: WorkerJob) -> dict[str, Any]:
    return turned(job)


@worker.handler("turn.async", concurrency=2)
async def turn_on_the_loop(job: WorkerJob) -> dict[str, Any]:
    with pytest.raises(InvalidInput, match="event loop"):
        job.download(job.inputs[0])
    return await asyncio.to_thread(turned, job)


@worker.handler("turn.apart", isolate=True, memory_mb=300)
def turn_apart(job: WorkerJob) -> dict[str, Any]:
    assert not {name for name in os.environ if name in ("INGOT_TOKEN", "INGOT_WORKER_SECRET")}
    return turned(job)


@worker.handler("only", concurrency=2)
def only(job: WorkerJob) -> str:
    return job.download().read_text(encoding="utf-8")


class Halting(io.BytesIO):
    """Bytes that stop coming at their middle, when they are read for the second time, until something is there."""

    def __init__(self, data: bytes, reached: str, go_on: str) -> None:
        super().__init__(data)
        self._middle, self._reached, self._go_on = len(data) // 2, reached, Path(go_on)
        self._passed = 0

    def read(self, size: int | None = -1, /) -> bytes:
        before = self.tell()
        data = super().read(size)
        if before < self._middle <= self.tell():
            self._passed += 1
            if self._passed == 2:
                note(self._reached, "half")
                deadline = time.monotonic() + 60
                while not self._go_on.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
        return data


@worker.handler("slow.upload", concurrency=2)
def slow_upload(job: WorkerJob) -> Any:
    """The first attempt is held up in the middle of its upload."""
    data = content_of(job.id, job.attempt, job.payload["mib"] * MIB)
    if job.attempt > 1:
        return job.upload(data, "made.bin")
    deaf = AttemptFiles(
        job.data, job.file_client.send, job.workdir, lambda: None
    )  # It does not hear that it is to stop.
    try:
        return deaf.upload(Halting(data, job.payload["reached"], job.payload["go_on"]), "made.bin")
    except IngotError as error:
        note(job.payload["reached"], error.code)
        raise
    finally:
        deaf.close()


def read_pages(job: WorkerJob) -> list[str]:
    """Make pages, each of which is saved. Before one of them it waits until something is there."""
    made: list[str] = []
    while (page := job.saved(f"{len(made)}")) is not None:
        made.append(page.decode())
    note(job.payload["place"], "from", len(made))
    for number in range(len(made), job.payload["pages"]):
        if number == job.payload["waits_before"]:
            note(job.payload["place"], "before", number)
            while not Path(job.payload["go_on"]).exists():
                job.wait(0.05)
                job.check()
        made.append(f"{number} by {job.attempt}")
        job.save(made[-1], f"{number}")
    return made


@worker.handler("pages.thread")
def pages_in_a_thread(job: WorkerJob) -> list[str]:
    return read_pages(job)


@worker.handler("pages.async")
async def pages_on_the_loop(job: WorkerJob) -> list[str]:
    return await asyncio.to_thread(read_pages, job)


@worker.handler("pages.apart", isolate=True)
def pages_apart(job: WorkerJob) -> list[str]:
    return read_pages(job)


@worker.handler("size.thread")
def size_in_a_thread(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("size.async")
async def size_on_the_loop(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("size.apart", isolate=True)
def size_apart(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("talk")
def talk(job: WorkerJob) -> None:
    for number in range(job.payload["lines"]):
        print(f"{number:07d} ä {'x' * 90}")
    if job.payload.get("fails"):
        raise ValueError("it was talk")


@worker.handler("talk.apart", isolate=True)
def talk_apart(job: WorkerJob) -> None:
    talk(job)
