"""Errors of jobs and workers.

NotFound ─┬─ JobNotFound
          ├─ BatchNotFound
          ├─ AttemptNotFound
          ├─ FileNotFound (in `files`)
          └─ WorkerNotFound
InvalidInput ─┬─ PayloadTooLarge
              ├─ ParentNotFound
              └─ DependencyCycle
Conflict ─┬─ LeaseLost
          ├─ DuplicateJob
          ├─ JobFinished
          ├─ JobNotFinished
          ├─ JobNotQueued
          ├─ ProtocolMismatch
          └─ OutputMissing (in `files`)
TooMany ─┬─ JobLimitExceeded
         ├─ TypeLimitExceeded
         └─ RateLimited
"""

from __future__ import annotations

from ingot.kernel.errors import Conflict, InvalidInput, NotFound, TooMany


class JobNotFound(NotFound):
    """The job does not exist in this tenant."""

    code = "job_not_found"


class BatchNotFound(NotFound):
    """The batch does not exist in this tenant."""

    code = "batch_not_found"
    hint = "Check the name and the tenant. A batch exists once a job has been enqueued with its name."


class AttemptNotFound(NotFound):
    """The job has no attempt with this number."""

    code = "attempt_not_found"
    hint = "Attempts are numbered from 1. Omit the number to get the newest attempt."


class WorkerNotFound(NotFound):
    """The worker does not exist in this tenant."""

    code = "worker_not_found"
    hint = "Check the ID and the tenant. A worker must register before it sends heartbeats, and again after removal."


class ProtocolMismatch(Conflict):
    """The worker uses a version of the worker protocol that the server does not support."""

    code = "protocol_mismatch"
    hint = "Install the same version of Ingot on both: upgrade the servers first, and then the workers."


class ParentNotFound(InvalidInput):
    """A parent of the job does not exist in this tenant."""

    code = "parent_not_found"
    hint = "Enqueue the parents first, or in the same call. Nothing was changed."


class DependencyCycle(InvalidInput):
    """The jobs would wait for each other."""

    code = "dependency_cycle"
    hint = "Remove an `after` that leads from a job back to itself. Nothing was changed."


class PayloadTooLarge(InvalidInput):
    """The data is too large to be part of a job."""

    code = "payload_too_large"
    status = 413
    hint = "Upload the data as a blob: a payload as payload_blob, other data as an input. Nothing was changed."


class LeaseLost(Conflict):
    """The attempt no longer holds the lease of the job."""

    code = "lease_lost"
    hint = "Stop the attempt and claim another job. Nothing was changed."


class DuplicateJob(Conflict):
    """An unfinished job already has this dedupe key."""

    code = "duplicate_job"
    hint = "Wait until that job is finished, or cancel it. Nothing was changed."

    def __init__(self, detail: str | None = None, *, holder_id: str) -> None:
        super().__init__(detail)
        self.holder_id = holder_id


class JobFinished(Conflict):
    """The job is already finished."""

    code = "job_finished"
    hint = "To run the job again, retry it. Nothing was changed."


class JobNotFinished(Conflict):
    """The job is not finished yet."""

    code = "job_not_finished"
    hint = "Wait until the job is finished, or cancel it first. Nothing was changed."


class JobNotQueued(Conflict):
    """Only a waiting job can be rescheduled."""

    code = "job_not_queued"
    hint = "Wait until a running job is finished. To run a finished job again, retry it. Nothing was changed."


class JobLimitExceeded(TooMany):
    """The tenant has reached its limit of unfinished jobs."""

    code = "job_limit_exceeded"
    hint = "Wait until jobs are finished, cancel some, or ask an operator to raise the limit. Nothing was changed."


class TypeLimitExceeded(TooMany):
    """The tenant has jobs of as many types as its limit allows."""

    code = "type_limit_exceeded"
    hint = (
        "Put IDs and other data into the payload, not into the type. Types without jobs do not count: set a retention, "
        "or ask an operator to raise `max_job_types`. Nothing was changed."
    )


class RateLimited(TooMany):
    """The tenant enqueues jobs faster than its rate limit allows."""

    code = "rate_limited"
    hint = "Wait `retry_after_seconds`, then try again with no more jobs than the burst allows. Nothing was changed."

    def __init__(self, detail: str | None = None, *, retry_after_seconds: float) -> None:
        super().__init__(detail)
        self.retry_after_seconds = self.retry_after = retry_after_seconds
        self.members = {"retry_after_seconds": retry_after_seconds}
