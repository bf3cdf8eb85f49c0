"""Orders: what a caller says, checked and made into what a command carries."""

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
    """What a job can be given besides its type and its payload. `run_at` and `delay` exclude each other."""

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
    "idempotency_key": partial(checks.short_text, name="idempotency key"),
    "dedupe_key": partial(checks.short_text, name="dedupe key"),
    "tags": checks.tags,
    "metadata": lambda value: None if value is None else checks.metadata(value),
    "correlation_id": partial(checks.short_text, name="correlation id"),
    "trace_id": partial(checks.short_text, name="trace id"),
    "source": checks.source,
    "source_ref": partial(checks.short_text, name="source ref"),
    "created_by": lambda value: checks.short_text(value, name="created by"),
    "after": checks.after,
    "on_dead": checks.on_dead,
    "batch": partial(checks.short_text, name="batch", chars_max=checks.BATCH_CHARS_MAX),
    "inputs": checks.inputs,
    "payload_blob": checks.payload_blob,
    "owner_quota": checks.owner_quota,
    "force": partial(check_boolean, name="force"),
}


def new_job(tenant: str, type: str, payload: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """A checked order for a job, with its id made here, so that a repeated call finds its own row.

    Raises `InvalidInput` or `PayloadTooLarge`, and `TypeError` for an option there is not.
    """
    text = checks.payload(payload)
    tenant = tenant if tenant.__class__ is str else checks.tenant_id(tenant)
    type = checks.job_type_from_text(type) if type.__class__ is str else checks.job_type(type)
    if not options:
        return CheckedJob(id=new_id(), tenant=tenant, type=type, payload=text, checked=(text, None))
    if not options.keys() <= OPTION_CHECKS.keys():
        raise TypeError(f"a job has no option {', '.join(sorted(options.keys() - OPTION_CHECKS.keys()))}")
    if options.get("run_at") is not None and options.get("delay") is not None:
        raise InvalidInput("run_at and delay were both given", hint="Give one of them; nothing was changed.")
    checked: dict[str, Any] = {name: OPTION_CHECKS[name](value) for name, value in options.items()}
    blob = checked.get("payload_blob")
    if blob is not None and text != b"null":
        raise InvalidInput("payload and payload_blob were both given", hint="Give one of them; nothing was changed.")
    digest = None if checked.get("idempotency_key") is None else checks.payload_digest(text, blob)
    return CheckedJob(
        id=new_id(), tenant=tenant, type=type, payload=text, payload_digest=digest, checked=(text, digest), **checked
    )


def done_outcome(result: object = None, outputs: Iterable[str] = ()) -> Done:
    """The outcome of finished work, its result as JSON text, and the names of files that it must have uploaded."""
    return Done(result=None if result is None else checks.result(result), outputs=checks.outputs(outputs))
