"""Rows of jobs as Python objects.

A read returns all rows as one JSON text, which is decoded at once. Fetching rows one by one would acquire the
interpreter lock for each of them, which is slow while the event loop is busy.
"""

from __future__ import annotations

import msgspec

from ingot.engines.jobs import progress_of
from ingot.jobs.model import AttemptOutcome, Claim, Definition, Job, JobStatus, OnDead, Source
from ingot.kernel.clock import to_datetime, to_datetime_or_none

# The priority, run_at and ID, in the order of which jobs start, and the number of the job.
ReadyPosition = tuple[int, int, str, int]


class JobState(msgspec.Struct, array_like=True, gc=False):
    """A row of `states`. The fields are in the order of the SQL."""

    number: int
    id: str
    tenant: str
    type: str
    limit_key: str = ""
    status: JobStatus = JobStatus.QUEUED
    due: bool = True
    priority: int = 0
    run_at: int = 0
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    max_attempts: int = 0
    fence: int = 0
    dedupe_key: str | None = None
    worker_id: str | None = None
    started_at: int | None = None
    lease_expires_at: int | None = None
    cancel_requested: bool = False
    percent: float | None = None
    stage: str | None = None
    progress_reported_at: int = 0
    finished_at: int | None = None
    batch: str | None = None

    @property
    def position(self) -> ReadyPosition:
        """The position of the job in its lane when it is ready."""
        return self.priority, self.run_at, self.id, self.number


class JobBody(msgspec.Struct, array_like=True, gc=False):
    """A row of `jobs`, with the tags, the parents, the last error and the result of the job."""

    payload: msgspec.Raw
    metadata: msgspec.Raw
    created_at: int
    source: Source
    source_ref: str | None
    created_by: str | None
    correlation_id: str | None
    trace_id: str | None
    idempotency_key: str | None
    inputs: dict[str, str | None]  # `None` until the input is uploaded.
    payload_blob: str | None
    depth: int
    tags: tuple[str, ...]
    after: tuple[str, ...]
    runs_anyway: bool
    last_error: str | None
    result: msgspec.Raw


class LoggedAttempt(msgspec.Struct, array_like=True, gc=False):
    """The attempt whose log is read, and the status of its job."""

    job: int
    job_id: str
    number: int
    fence: int
    live: bool
    attempts: int
    status: JobStatus


class OutcomeRow(msgspec.Struct, array_like=True, gc=False):
    """A recorded outcome: the reported values, and those of the answer."""

    job: int
    fence: int
    outcome: AttemptOutcome
    retry: bool
    status_after: JobStatus
    run_at: int | None
    attempts: int
    finished_at: int
    exit_code: int | None
    error: str | None
    result: msgspec.Raw
    worker_id: str


class JobRow(msgspec.Struct, array_like=True, gc=False):
    """A complete job."""

    state: JobState
    body: JobBody


def job_of(state: JobState, body: JobBody) -> Job:
    """Build the job as callers get it."""
    return Job(
        id=state.id,
        tenant=state.tenant,
        type=state.type,
        status=state.status,
        priority=state.priority,
        payload=body.payload.copy(),
        run_at=to_datetime(state.run_at),
        attempts=state.attempts,
        failures=state.failures,
        crashes=state.crashes,
        max_attempts=state.max_attempts,
        fence=state.fence,
        source=body.source,
        depth=body.depth,
        created_at=to_datetime(body.created_at),
        source_ref=body.source_ref,
        created_by=body.created_by,
        idempotency_key=body.idempotency_key,
        dedupe_key=state.dedupe_key,
        correlation_id=body.correlation_id,
        trace_id=body.trace_id,
        after=body.after,
        on_dead=OnDead.RUN if body.runs_anyway else OnDead.CANCEL,
        batch=state.batch,
        inputs={name: blob for name, blob in body.inputs.items() if blob is not None},
        payload_blob=body.payload_blob,
        metadata=body.metadata.copy(),
        tags=body.tags,
        worker_id=state.worker_id,
        started_at=to_datetime_or_none(state.started_at),
        lease_expires_at=to_datetime_or_none(state.lease_expires_at),
        cancel_requested=state.cancel_requested,
        progress=progress_of(state.percent, state.stage),
        result=body.result.copy(),
        last_error=body.last_error,
        finished_at=to_datetime_or_none(state.finished_at),
    )


def claim_of(row: JobRow, definition: Definition) -> Claim:
    """Build the claim of a leased job."""
    assert row.state.lease_expires_at is not None
    return Claim(
        job=job_of(row.state, row.body),
        fence=row.state.fence,
        lease_expires_at=to_datetime(row.state.lease_expires_at),
        timeout_seconds=definition.timeout_seconds,
    )
