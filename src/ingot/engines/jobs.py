"""Functions that both engines use for jobs, and for orders: the descriptions of jobs that are not accepted yet."""

from __future__ import annotations

from typing import Literal

import msgspec

from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import NULL, Job, JobStatus, NewJob, OnDead, Progress
from ingot.kernel.clock import to_datetime

LimitScope = tuple[Literal["tenant", "type", "key"], int, str | None, str | None]


class AcceptedValues(msgspec.Struct, frozen=True):
    """The values of a new job that the engine determined when it accepted the order. Times are in microseconds."""

    priority: int
    run_at: int
    max_attempts: int
    created_at: int
    limit_key: str


def has_files(order: NewJob) -> bool:
    """Whether the order refers to blobs or needs uploads."""
    return bool(order.inputs or order.uploads or order.payload_blob)


def inputs_text(order: NewJob) -> str | None:
    """Return the inputs of an order by name, as JSON text. Inputs that will be uploaded have `null` as their blob."""
    if not order.inputs and not order.uploads:
        return None
    pending_inputs = {upload.name: None for upload in order.uploads}
    return msgspec.json.encode(order.inputs | pending_inputs).decode()


def new_job_of(order: NewJob, accepted: AcceptedValues) -> Job:
    """Return the job that was just created from an order."""
    return Job(
        id=order.id,
        tenant=order.tenant,
        type=order.type,
        status=JobStatus.BLOCKED if order.after or order.uploads else JobStatus.QUEUED,
        priority=accepted.priority,
        payload=msgspec.Raw(order.payload),
        run_at=to_datetime(accepted.run_at),
        attempts=0,
        failures=0,
        crashes=0,
        max_attempts=accepted.max_attempts,
        fence=0,
        source=order.source,
        depth=order.depth,
        created_at=to_datetime(accepted.created_at),
        source_ref=order.source_ref,
        created_by=order.created_by,
        idempotency_key=order.idempotency_key,
        dedupe_key=order.dedupe_key,
        correlation_id=order.correlation_id,
        trace_id=order.trace_id,
        after=order.after,
        on_dead=order.on_dead if order.after else OnDead.CANCEL,
        batch=order.batch,
        inputs=order.inputs,
        payload_blob=order.payload_blob,
        metadata=NULL if order.metadata is None else msgspec.Raw(order.metadata),
        tags=order.tags,
    )


def progress_of(percent: float | None, stage: str | None) -> Progress | None:
    """Return the progress of an attempt from its two columns."""
    return None if percent is None else Progress(percent=percent, stage=stage or "")


def scopes_of(limits: ConcurrencyLimits, type: str, limit_key: str) -> list[LimitScope]:
    """Return the limits that are set, from the widest to the narrowest.

    Each has its scope, the maximum number of running jobs, and the type and the limit key of the jobs that it counts.
    """
    scopes: list[LimitScope] = []
    if limits.tenant is not None:
        scopes.append(("tenant", limits.tenant, None, None))
    if limits.type is not None:
        scopes.append(("type", limits.type, type, None))
    if limits.key is not None and limit_key:
        scopes.append(("key", limits.key, type, limit_key))
    return scopes
