"""Handlers that download and upload files, and one whose upload pauses in the middle."""

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
    """Return the output of an attempt, which differs from that of other attempts."""
    return hashlib.sha256(f"{job_id} {attempt}".encode()).digest() * (size // 32)


def reverse_inputs(job: WorkerJob) -> dict[str, Any]:
    """Download all inputs, and upload each with its bytes in reverse order."""
    paths = {name: job.download(name) for name in job.inputs}
    outputs = [job.upload(path.read_bytes()[::-1], f"turned-{name}") for name, path in paths.items()]
    outputs.append(job.upload("ä text", "note.txt"))
    whole = job.download(job.inputs[0]).with_name("joined")
    whole.write_bytes(b"".join(path.read_bytes() for path in paths.values()))
    outputs.append(job.upload(whole, "joined.bin", content_type="application/x-joined"))
    return {"outputs": outputs, "folder": str(whole.parent), "user": os.geteuid()}


@worker.handler("turn.thread", concurrency=2)
def turn_in_a_thread(job: WorkerJob) -> dict[str, Any]:
    return reverse_inputs(job)


@worker.handler("turn.async", concurrency=2)
async def turn_on_the_loop(job: WorkerJob) -> dict[str, Any]:
    with pytest.raises(InvalidInput, match="event loop"):
        job.download(job.inputs[0])
    return await asyncio.to_thread(reverse_inputs, job)


@worker.handler("turn.isolated", isolate=True, memory_mb=300)
def turn_isolated(job: WorkerJob) -> dict[str, Any]:
    assert not {name for name in os.environ if name in ("INGOT_TOKEN", "INGOT_WORKER_SECRET")}
    return reverse_inputs(job)


@worker.handler("only", concurrency=2)
def only(job: WorkerJob) -> str:
    return job.download().read_text(encoding="utf-8")


class PausingReader(io.BytesIO):
    """Bytes whose second read pauses in the middle until a file exists."""

    def __init__(self, data: bytes, note_file: str, resume_file: str) -> None:
        super().__init__(data)
        self._middle, self._note_file, self._resume_file = len(data) // 2, note_file, Path(resume_file)
        self._passed = 0

    def read(self, size: int | None = -1, /) -> bytes:
        before = self.tell()
        data = super().read(size)
        if before < self._middle <= self.tell():
            self._passed += 1
            if self._passed == 2:
                note(self._note_file, "half")
                deadline = time.monotonic() + 60
                while not self._resume_file.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
        return data


@worker.handler("slow.upload", concurrency=2)
def slow_upload(job: WorkerJob) -> Any:
    """Upload a file; the first attempt pauses in the middle."""
    data = content_of(job.id, job.attempt, job.payload["mib"] * MIB)
    if job.attempt > 1:
        return job.upload(data, "made.bin")
    ignoring_stop = AttemptFiles(
        job.data, job.file_client.send, job.workdir, lambda: None
    )  # This client ignores that the attempt has to stop.
    try:
        return ignoring_stop.upload(
            PausingReader(data, job.payload["note_file"], job.payload["resume_file"]), "made.bin"
        )
    except IngotError as error:
        note(job.payload["note_file"], error.code)
        raise
    finally:
        ignoring_stop.close()


def read_pages(job: WorkerJob) -> list[str]:
    """Create pages and save each as a checkpoint. Before one of them, wait until a file exists."""
    outputs: list[str] = []
    while (page := job.saved(f"{len(outputs)}")) is not None:
        outputs.append(page.decode())
    note(job.payload["note_file"], "from", len(outputs))
    for number in range(len(outputs), job.payload["pages"]):
        if number == job.payload["waits_before"]:
            note(job.payload["note_file"], "before", number)
            while not Path(job.payload["resume_file"]).exists():
                job.wait(0.05)
                job.check()
        outputs.append(f"{number} by {job.attempt}")
        job.save(outputs[-1], f"{number}")
    return outputs


@worker.handler("pages.thread")
def pages_in_a_thread(job: WorkerJob) -> list[str]:
    return read_pages(job)


@worker.handler("pages.async")
async def pages_on_the_loop(job: WorkerJob) -> list[str]:
    return await asyncio.to_thread(read_pages, job)


@worker.handler("pages.isolated", isolate=True)
def pages_isolated(job: WorkerJob) -> list[str]:
    return read_pages(job)


@worker.handler("size.thread")
def size_in_a_thread(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("size.async")
async def size_on_the_loop(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("size.isolated", isolate=True)
def size_isolated(job: WorkerJob) -> int:
    return len(job.payload["text"])


@worker.handler("talk")
def talk(job: WorkerJob) -> None:
    for number in range(job.payload["lines"]):
        print(f"{number:07d} ä {'x' * 90}")
    if job.payload.get("fails"):
        raise ValueError("it was talk")


@worker.handler("talk.isolated", isolate=True)
def talk_isolated(job: WorkerJob) -> None:
    talk(job)
