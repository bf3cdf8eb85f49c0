"""Orders and jobs, as both engines handle them."""

from __future__ import annotations

from typing import Literal

import msgspec

from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import NULL, Job, JobStatus, NewJob, OnDead, Progress
from ingot.kernel.clock import to_datetime

Scope = tuple[Literal["tenant", "type", "key"], int, str | None, str | None]


class Made(msgspec.Struct, frozen=True):
    """What an engine decided about an order that it accepted."""

    priority: int
    run_at: int
    max_attempts: int
    created_at: int
    limit_key: str


def has_files(order: NewJob) -> bool:
    """Whether an order names blobs, or brings uploads."""
    return bool(order.inputs or order.uploads or order.payload_blob)


def inputs_text(order: NewJob) -> str | None:
    """The inputs of an order by name, as JSON text; those that are still to come have no blob yet."""
    if not order.inputs and not order.uploads:
        return None
    coming = {upload.name: None for upload in order.uploads}
    return msgspec.json.encode(order.inputs | coming).decode()


def new_job_of(order: NewJob, made: Made) -> Job:
    """The job that an order has just become; what it does not have yet is left at its default."""
    return Job(
        id=order.id,
        tenant=order.tenant,
        type=order.type,
        status=JobStatus.BLOCKED if order.after or order.uploads else JobStatus.QUEUED,
        priority=made.priority,
        payload=msgspec.Raw(order.payload),
        run_at=to_datetime(made.run_at),
        attempts=0,
        failures=0,
        crashes=0,
        max_attempts=made.max_attempts,
        fence=0,
        source=order.source,
        depth=order.depth,
        created_at=to_datetime(made.created_at),
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
    """Progress from its two columns."""
    return None if percent is None else Progress(percent=percent, stage=stage or "")


def scopes_of(bounds: ConcurrencyLimits, type: str, limit_key: str) -> list[Scope]:
    """The limits there are, from the widest to the narrowest: how many may run, and of which type and limit key."""
    scopes: list[Scope] = []
    if bounds.tenant is not None:
        scopes.append(("tenant", bounds.tenant, None, None))
    if bounds.type is not None:
        scopes.append(("type", bounds.type, type, None))
    if bounds.key is not None and limit_key:
        scopes.append(("key", bounds.key, type, limit_key))
    return scopes
