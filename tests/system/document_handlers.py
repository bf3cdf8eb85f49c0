"""Stand-ins for the document handlers: they need no library, and obey words in the file."""

from __future__ import annotations

from ingot.worker import NoRetry, Worker, WorkerJob

worker = Worker()


@worker.handler("pdf", concurrency=8)
def pdf(job: WorkerJob) -> dict[str, object]:
    """Upload the text in reverse order, and return the options."""
    (name,) = job.inputs
    content = job.download().read_bytes()
    if b"fails" in content:
        raise NoRetry("page 3 is torn")
    job.progress(30, "page 3 of 10")
    if b"waits" in content:
        job.wait(60)
        job.check()
    job.upload(content[::-1], f"{name.rpartition('.')[0]}.md")
    job.upload(b"a picture", "picture.png")
    return {"options": job.payload, "path": job.metadata}


@worker.handler("ocr", concurrency=8)
def ocr(job: WorkerJob) -> None:
    """Do the same for images."""
    pdf(job)
