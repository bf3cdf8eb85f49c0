"""Conversion of rows of jobs and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ingot.engines.jobs import progress_of
from ingot.engines.postgres.connection import Record
from ingot.jobs.lanes import Lane
from ingot.jobs.model import (
    NULL,
    Batch,
    Claim,
    Job,
    JobEventData,
    JobStatus,
    OnDead,
    Source,
)
from ingot.jobs.ports import ClaimJobs
from ingot.jobs.worker_model import WorkerEventData
from ingot.kernel.clock import to_datetime, to_datetime_or_none

NO_TEXTS: Final = (None,) * 8  # The column `texts` is NULL for jobs without any of these eight values.
BATCH_COMPLETED: Final = "batch.completed"
WORKER_EVENTS: Final = ("worker.online", "worker.offline")
STATUSES: Final = {status.value: status for status in JobStatus}
SOURCES: Final = {source.value: source for source in Source}


class EventEntryRow(msgspec.Struct, array_like=True, gc=False):
    """An entry of the column `entries` of events, about one job or several, in the order of `ingot.job_event_entry`.

    Trailing fields may be missing. An event that a user published has only a name, and the JSON of its data as `ids`.
    """

    name: str
    ids: str | list[str]
    type: str = ""
    status: JobStatus = JobStatus.QUEUED
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    worker_id: str | None = None
    run_at: int | None = None
    will_retry: bool | None = None
    error: str | None = None
    cancel_requested: bool = False
    percent: float | None = None
    stage: str | None = None

    def event_data(self) -> Sequence[JobEventData | Batch | WorkerEventData | msgspec.Raw]:
        """Return the data of the events, one for each job.

        An event of a batch has its counts in the fields of a job. An event of a worker has its data as JSON in `type`.
        """
        if self.name in WORKER_EVENTS:
            return [msgspec.json.decode(self.type, type=WorkerEventData)]
        if self.name == BATCH_COMPLETED:
            counts = {"succeeded": self.failures, "dead": self.crashes, "canceled": self.fence}
            return [Batch(batch=str(self.ids), total=self.attempts, unfinished=0, **counts)]
        if not self.type:
            return [msgspec.Raw(str(self.ids).encode())]
        return [
            JobEventData(
                id,
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
            for id in ([self.ids] if isinstance(self.ids, str) else self.ids)
        ]


def raw_json(text: bytes | None) -> msgspec.Raw:
    """Return the JSON of a column, `null` for NULL."""
    return NULL if text is None else msgspec.Raw(text)


def inputs_of(text: str | None) -> dict[str, str]:
    """Return the blob IDs of inputs by name, without those that are not uploaded yet."""
    if text is None:
        return {}
    return {name: blob for name, blob in msgspec.json.decode(text).items() if blob is not None}


def job_of(row: Record) -> Job:
    """Return the job of a row of `job_rows`."""
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
        after=tuple(row["after"]),
        on_dead=OnDead.RUN if row["runs_anyway"] else OnDead.CANCEL,
        batch=row["batch"],
        inputs=inputs_of(row["inputs"]),
        payload_blob=row["payload_blob"],
        metadata=raw_json(row["metadata"]),
        tags=tuple(row["tags"]),
        worker_id=row["worker_id"],
        started_at=to_datetime_or_none(row["started_at"]),
        lease_expires_at=to_datetime_or_none(row["expires_at"]),
        cancel_requested=row["cancel_requested"],
        progress=progress_of(row["percent"], row["stage"]),
        result=raw_json(row["result"]),
        last_error=row["last_error"],
        finished_at=to_datetime_or_none(row["finished_at"]),
    )


def claim_of(row: Record, lane: Lane, command: ClaimJobs) -> Claim:
    """Return the claim of a row of `ingot.claim`.

    Columns are read by position, because workers claim thousands of jobs per second.
    """
    (
        _,
        _,
        id,
        priority,
        run_at,
        attempts,
        failures,
        crashes,
        max_attempts,
        fence,
        started_at,
        payload,
        metadata,
        created_at,
        source,
        depth,
        timeout_seconds,
        texts,
        tags,
        last_error,
        after,
        runs_anyway,
        inputs,
    ) = row
    source_ref, created_by, correlation_id, trace_id, idempotency_key, dedupe_key, batch, payload_blob = (
        texts or NO_TEXTS
    )
    lease_expires_at = to_datetime(started_at + command.lease)
    job = Job(
        id=id,
        tenant=lane.tenant,
        type=lane.type,
        status=JobStatus.RUNNING,
        priority=priority,
        payload=msgspec.Raw(payload),
        run_at=to_datetime(run_at),
        attempts=attempts,
        failures=failures,
        crashes=crashes,
        max_attempts=max_attempts,
        fence=fence,
        source=SOURCES[source],
        depth=depth,
        created_at=to_datetime(created_at),
        source_ref=source_ref,
        created_by=created_by,
        idempotency_key=idempotency_key,
        dedupe_key=dedupe_key,
        correlation_id=correlation_id,
        trace_id=trace_id,
        after=tuple(after) if after else (),
        on_dead=OnDead.RUN if runs_anyway else OnDead.CANCEL,
        batch=batch,
        inputs=inputs_of(inputs),
        payload_blob=payload_blob,
        metadata=raw_json(metadata),
        tags=tuple(tags) if tags else (),
        worker_id=command.worker_id,
        started_at=to_datetime(started_at),
        lease_expires_at=lease_expires_at,
        last_error=last_error,
    )
    return Claim(job=job, fence=fence, lease_expires_at=lease_expires_at, timeout_seconds=timeout_seconds)
