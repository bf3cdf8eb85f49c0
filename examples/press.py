"""The handlers of the demo. `ingot worker --app press:worker` in this folder runs them beside any server."""

from __future__ import annotations

import asyncio

from ingot import NoRetry, Worker, WorkerJob

worker = Worker()


@worker.handler("thumbnail", concurrency=8)
def thumbnail(job: WorkerJob) -> dict[str, int]:
    """Quick work in a thread."""
    job.wait("30ms")
    return {"width": 200, "of": job.payload["page"]}


@worker.handler("convert", concurrency=8)
async def convert(job: WorkerJob) -> str:
    """Quick work on the event loop that fails as often as it is told to."""
    print("reading page", job.payload["page"])
    await asyncio.sleep(0.02)
    if job.data.failures < job.payload["fails"]:
        raise OSError(f"page {job.payload['page']} could not be read")
    return f"page {job.payload['page']}"


@worker.handler("report", concurrency=4)
def report(job: WorkerJob) -> int:
    """Work that takes a while and says how far it is. With bad luck the first attempt never ends."""
    if job.payload["unlucky"] and job.data.crashes == 0:
        while not job.wait("100ms"):
            pass
    for step in range(1, 11):
        job.progress(10 * step, f"part {step} of 10")
        job.wait("100ms")
        job.check()
    return job.attempt


@worker.handler("misprint")
def misprint(job: WorkerJob) -> None:
    """Work that cannot be done, and says so."""
    raise NoRetry("there is nothing on this page")


@worker.handler("listen")
async def listen(job: WorkerJob) -> None:
    """Work without an end: it runs until somebody cancels it."""
    await asyncio.Event().wait()
