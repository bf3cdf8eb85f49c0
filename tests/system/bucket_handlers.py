"""A handler that reverses files, prints many lines and has a large payload."""

from __future__ import annotations

from ingot.worker import Worker, WorkerJob

worker = Worker()


def expected_log(lines: int) -> str:
    """Return the output of the handler."""
    return "".join(f"{number:07d} {'x' * 90}\n" for number in range(lines))


@worker.handler("turn")
def turn(job: WorkerJob) -> int:
    """Upload each input with its bytes in reverse order."""
    for name in job.inputs:
        job.upload(job.download(name).read_bytes()[::-1], f"turned-{name}")
    print(expected_log(job.payload["lines"]), end="")
    return len(job.payload["text"])
