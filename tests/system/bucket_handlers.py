"""A handler that moves files, writes much, and has a large payload."""

from __future__ import annotations

from ingot.worker import Worker, WorkerJob

worker = Worker()


def written(lines: int) -> str:
    """What it writes."""
    return "".join(f"{number:07d} {'x' * 90}\n" for number in range(lines))


@worker.handler("turn")
def turn(job: WorkerJob) -> int:
    """Store each input the other way round."""
    for name in job.inputs:
        job.upload(job.download(name).read_bytes()[::-1], f"turned-{name}")
    print(written(job.payload["lines"]), end="")
    return len(job.payload["text"])
