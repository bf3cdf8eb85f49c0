"""What can go wrong with a job.

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
          └─ OutputMissing (in `files`)
TooMany ─┬─ JobLimitExceeded
         └─ RateLimited
"""

from __future__ import annotations

from ingot.kernel.errors import Conflict, InvalidInput, NotFound, TooMany


class JobNotFound(NotFound):
    """There is no such job in this tenant."""

    code = "job_not_found"


class BatchNotFound(NotFound):
    """There is no job of such a batch in this tenant."""

    code = "batch_not_found"
    hint = "Check the name and the tenant; a batch is there once a job was enqueued under its name."


class AttemptNotFound(NotFound):
    """The job has had no such attempt."""

    code = "attempt_not_found"
    hint = "Attempts are counted from 1; leave it out to get the newest."


class WorkerNotFound(NotFound):
    """There is no such worker in this tenant."""

    code = "worker_not_found"
    hint = "A worker registers before it beats; one that was removed, or not seen for long, registers again."


class ParentNotFound(InvalidInput):
    """A job that this one is to wait for is not there."""

    code = "parent_not_found"
    hint = "Enqueue the jobs it waits for before it, or in the same call; nothing was changed."


class DependencyCycle(InvalidInput):
    """These jobs would wait for each other."""

    code = "dependency_cycle"
    hint = "Let some job wait for none of the others; nothing was changed."


class PayloadTooLarge(InvalidInput):
    """This is too large to travel inside a job."""

    code = "payload_too_large"
    status = 413
    hint = "Upload it as a blob and name that: a payload as payload_blob, other bytes as inputs. Nothing was changed."


class LeaseLost(Conflict):
    """This attempt no longer holds the job."""

    code = "lease_lost"
    hint = "Drop the attempt and claim again; nothing was changed."


class DuplicateJob(Conflict):
    """An unfinished job holds this dedupe key."""

    code = "duplicate_job"
    hint = "Wait for the holder to finish, or cancel it; nothing was changed."

    def __init__(self, detail: str | None = None, *, holder_id: str) -> None:
        super().__init__(detail)
        self.holder_id = holder_id


class JobFinished(Conflict):
    """The job is finished already."""

    code = "job_finished"
    hint = "Retry it to run it again; nothing was changed."


class JobNotFinished(Conflict):
    """The job is not finished yet."""

    code = "job_not_finished"
    hint = "Cancel it first, or reschedule it while it waits; nothing was changed."


class JobNotQueued(Conflict):
    """Only a waiting job can be rescheduled."""

    code = "job_not_queued"
    hint = "A running job keeps its place; a finished one can be retried. Nothing was changed."


class JobLimitExceeded(TooMany):
    """The tenant has as many unfinished jobs as it may have."""

    code = "job_limit_exceeded"
    hint = "Wait until jobs finish, cancel some, or have the limit raised; nothing was changed."


class RateLimited(TooMany):
    """The tenant enqueues faster than it may."""

    code = "rate_limited"
    hint = "Wait `retry_after_seconds` and send it again, with no more jobs than fit at once; nothing was changed."

    def __init__(self, detail: str | None = None, *, retry_after_seconds: float) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds
