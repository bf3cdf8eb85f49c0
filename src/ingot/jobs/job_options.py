"""Creating new jobs and outcomes from the arguments of a caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from ingot.jobs import checks
from ingot.jobs.model import Done, NewJob, OnDead, Source
from ingot.jobs.new_job_checks import CheckedJob
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.validation import check_boolean


class JobOptions(TypedDict, total=False):
    """The options of a job besides its type and payload. At most one of `run_at` and `delay` can be set."""

    priority: int | None
    run_at: datetime | None
    delay: timedelta | float | None
    max_attempts: int | None
    idempotency_key: str | None
    dedupe_key: str | None
    tags: Iterable[str]
    metadata: object
    correlation_id: str | None
    trace_id: str | None
    source: Source
    source_ref: str | None
    created_by: str | None
    after: Iterable[str]
    on_dead: OnDead
    batch: str | None
    inputs: Mapping[str, str]
    payload_blob: str | None
    owner_quota: int | None
    force: bool


OPTION_CHECKS: Final[dict[str, Callable[[Any], object]]] = {
    "priority": checks.priority,
    "run_at": checks.timestamp,
    "delay": lambda value: 0 if value is None else checks.delay(value),
    "max_attempts": checks.max_attempts,
    "idempotency_key": partial(checks.short_text, name="idempotency_key"),
    "dedupe_key": partial(checks.short_text, name="dedupe_key"),
    "tags": checks.tags,
    "metadata": lambda value: None if value is None else checks.metadata(value),
    "correlation_id": partial(checks.short_text, name="correlation_id"),
    "trace_id": partial(checks.short_text, name="trace_id"),
    "source": checks.source,
    "source_ref": partial(checks.short_text, name="source_ref"),
    "created_by": lambda value: checks.short_text(value, name="created_by"),
    "after": checks.after,
    "on_dead": checks.on_dead,
    "batch": partial(checks.short_text, name="batch", chars_max=checks.BATCH_CHARS_MAX),
    "inputs": checks.inputs,
    "payload_blob": checks.payload_blob,
    "owner_quota": checks.owner_quota,
    "force": partial(check_boolean, name="force"),
}


def new_job(tenant: str, type: str, payload: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """Return a validated new job.

    The job ID is created here, so that a command that is repeated after an unknown outcome finds its own job. Raises
    `InvalidInput` or `PayloadTooLarge`, and `TypeError` for an unknown option.
    """
    payload_text = checks.payload(payload)
    tenant = tenant if tenant.__class__ is str else checks.tenant_id(tenant)
    type = checks.job_type_from_text(type) if type.__class__ is str else checks.job_type(type)
    if not options:
        return CheckedJob(id=new_id(), tenant=tenant, type=type, payload=payload_text, checked=(payload_text, None))
    if not options.keys() <= OPTION_CHECKS.keys():
        raise TypeError(f"unknown job option: {', '.join(sorted(options.keys() - OPTION_CHECKS.keys()))}")
    if options.get("run_at") is not None and options.get("delay") is not None:
        raise InvalidInput("run_at and delay are both set", hint="Set only one of them. Nothing was changed.")
    checked_options: dict[str, Any] = {name: OPTION_CHECKS[name](value) for name, value in options.items()}
    blob_id = checked_options.get("payload_blob")
    if blob_id is not None and payload_text != b"null":
        raise InvalidInput("payload and payload_blob are both set", hint="Set only one of them. Nothing was changed.")
    digest = None if checked_options.get("idempotency_key") is None else checks.payload_digest(payload_text, blob_id)
    return CheckedJob(
        id=new_id(),
        tenant=tenant,
        type=type,
        payload=payload_text,
        payload_digest=digest,
        checked=(payload_text, digest),
        **checked_options,
    )


def done_outcome(result: object = None, outputs: Iterable[str] = ()) -> Done:
    """Return the outcome of a successful attempt. `outputs` names files that the attempt must have uploaded."""
    return Done(result=None if result is None else checks.result(result), outputs=checks.outputs(outputs))
