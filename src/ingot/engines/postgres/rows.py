"""Rows as Python sees them."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from ingot.engines.postgres.connection import Record
from ingot.jobs.model import (
    NULL,
    Attempt,
    AttemptOutcome,
    Claim,
    Job,
    JobNews,
    JobStatus,
    NewJob,
    Progress,
    Source,
)
from ingot.kernel.clock import to_datetime, to_datetime_or_none

STATUSES: Final = {status.value: status for status in JobStatus}
SOURCES: Final = {source.value: source for source in Source}


class NewsRow(msgspec.Struct, array_like=True, gc=False):
    """What an event says about a job, in the order of `ingot.news`."""

    name: str
    id: str
    type: str
    status: JobStatus
    attempts: int
    failures: int
    crashes: int
    fence: int
    worker_id: str | None
    run_at: int | None
    will_retry: bool | None
    error: str | None
    cancel_requested: bool
    percent: float | None
    stage: str | None

    def news(self) -> JobNews:
        """The same for people."""
        return JobNews(
            self.id,
            self.type,
            self.status,
            self.attempts,
            self.failures,
            self.crashes,
            self.fence,
            self.worker_id,
            to_datetime_or_none(self.run_at),
            self.will_retry,
            self.error,
            self.cancel_requested,
            progress_of(self.percent, self.stage),
        )


def progress_of(percent: float | None, stage: str | None) -> Progress | None:
    """Progress from its two columns."""
    return None if percent is None else Progress(percent=percent, stage=stage or "")


def raw(text: bytes | None) -> msgspec.Raw:
    """JSON text from its column."""
    return NULL if text is None else msgspec.Raw(text)


def new_job_of(order: NewJob, row: Record) -> Job:
    """The job that an order has just become; what it does not have yet is left at its default."""
    return Job(
        id=order.id,
        tenant=order.tenant,
        type=order.type,
        status=JobStatus.QUEUED,
        priority=row["priority"],
        payload=msgspec.Raw(order.payload),
        run_at=to_datetime(row["run_at"]),
        attempts=0,
        failures=0,
        crashes=0,
        max_attempts=row["max_attempts_"],
        fence=0,
        source=order.source,
        depth=order.depth,
        created_at=to_datetime(row["now_"]),
        source_ref=order.source_ref,
        created_by=order.created_by,
        idempotency_key=order.idempotency_key,
        dedupe_key=order.dedupe_key,
        correlation_id=order.correlation_id,
        trace_id=order.trace_id,
        metadata=raw(order.metadata),
        tags=list(order.tags),
    )


def job_of(row: Record) -> Job:
    """The job for people, from a row of `job_rows`."""
    return Job(
        id=str(row["id"]),
        tenant=str(row["tenant"]),
        type=row["type"],
        status=STATUSES[row["status"]],
        priority=row["priority"],
        payload=msgspec.Raw(row["payload"]),
        run_at=to_datetime(row["run_at"]),
        attempts=row["attempts"],
        failures=row["failures"],
        crashes=row["crashes"],
        max_attempts=row["max_attempts"],
        fence=row["fence"],
        source=SOURCES[row["source"]],
        depth=row["depth"],
        created_at=to_datetime(row["created_at"]),
        source_ref=row["source_ref"],
        created_by=row["created_by"],
        idempotency_key=row["idempotency_key"],
        dedupe_key=row["dedupe_key"],
        correlation_id=row["correlation_id"],
        trace_id=row["trace_id"],
        metadata=raw(row["metadata"]),
        tags=row["tags"],
        worker_id=row["worker_id"],
        started_at=to_datetime_or_none(row["started_at"]),
        lease_expires_at=to_datetime_or_none(row["expires_at"]),
        cancel_requested=row["cancel_requested"],
        progress=progress_of(row["percent"], row["stage"]),
        result=raw(row["result"]),
        last_error=row["last_error"],
        finished_at=to_datetime_or_none(row["finished_at"]),
    )


class ClaimRow(NamedTuple):
    """A row that `ingot.claim` answers, taken apart by position: a worker gets thousands of them a second."""

    asker: int
    id: str
    tenant: str
    type: str
    limit_key: str
    priority: int
    run_at: int
    attempts: int
    failures: int
    crashes: int
    max_attempts: int
    fence: int
    worker_id: str
    started_at: int
    expires_at: int
    payload: bytes
    metadata: bytes | None
    created_at: int
    source: str
    source_ref: str | None
    created_by: str | None
    correlation_id: str | None
    trace_id: str | None
    idempotency_key: str | None
    dedupe_key: str | None
    depth: int
    tags: list[str]
    last_error: str | None
    timeout_seconds: float

    def claim(self) -> Claim:
        """The job as handed to a worker."""
        expires_at = to_datetime(self.expires_at)
        job = Job(
            id=self.id,
            tenant=self.tenant,
            type=self.type,
            status=JobStatus.RUNNING,
            priority=self.priority,
            payload=msgspec.Raw(self.payload),
            run_at=to_datetime(self.run_at),
            attempts=self.attempts,
            failures=self.failures,
            crashes=self.crashes,
            max_attempts=self.max_attempts,
            fence=self.fence,
            source=SOURCES[self.source],
            depth=self.depth,
            created_at=to_datetime(self.created_at),
            source_ref=self.source_ref,
            created_by=self.created_by,
            idempotency_key=self.idempotency_key,
            dedupe_key=self.dedupe_key,
            correlation_id=self.correlation_id,
            trace_id=self.trace_id,
            metadata=NULL if self.metadata is None else msgspec.Raw(self.metadata),
            tags=self.tags,
            worker_id=self.worker_id,
            started_at=to_datetime(self.started_at),
            lease_expires_at=expires_at,
            last_error=self.last_error,
        )
        return Claim(job=job, fence=self.fence, lease_expires_at=expires_at, timeout_seconds=self.timeout_seconds)


def attempt_of(row: Record) -> Attempt:
    """The attempt for people."""
    return Attempt(
        job_id=row["job_id"],
        number=row["number"],
        fence=row["fence"],
        worker_id=row["worker_id"],
        started_at=to_datetime(row["started_at"]),
        host=row["host"],
        pid=row["pid"],
        finished_at=to_datetime_or_none(row["finished_at"]),
        outcome=None if row["outcome"] is None else AttemptOutcome(row["outcome"]),
        status_after=None if row["status_after"] is None else JobStatus(row["status_after"]),
        exit_code=row["exit_code"],
        error=row["error"],
        progress=progress_of(row["percent"], row["stage"]),
    )
