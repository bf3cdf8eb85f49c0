"""Checks of orders: every value can be used, however an order was made."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.blobs.checks import digest
from ingot.blobs.ports import BeginUpload
from ingot.jobs.checks import (
    BATCH_CHARS_MAX,
    BATCH_JOBS_MAX,
    DELAY_MICROS_MAX,
    TIMESTAMP_MAX,
    after,
    file_name,
    inputs,
    job_type,
    max_attempts,
    metadata,
    owner_quota,
    payload,
    payload_blob,
    payload_digest,
    priority,
    short_text,
    tags,
    tenant_id,
)
from ingot.jobs.dependencies import check_cycles
from ingot.jobs.files import INPUTS_MAX
from ingot.jobs.model import NewJob, OnDead, Source
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id
from ingot.kernel.validation import check_boolean, check_instance, check_integer, check_list, check_text, format_value

KEY_FIELDS = ("idempotency_key", "dedupe_key", "correlation_id", "trace_id", "source_ref", "created_by")
DEPTH_MAX = 16
NO_FILES: Final[tuple[object, ...]] = ({}, (), None, None)


class CheckedJob(NewJob, frozen=True, kw_only=True, gc=False):
    """An order as `new_job` makes it: `checked` are the payload and digest found good, and are not read again."""

    checked: tuple[bytes, bytes | None]


def checked_new_job(value: object) -> NewJob:
    """An order whose every value can be used, however it was made."""
    known = check_instance(value, NewJob, name="job")
    check_text(known.id, name="id")
    if not is_id(known.id):
        raise InvalidInput(f"{format_value(known.id)} is no id", hint="Make orders with new_job; nothing was changed.")
    tenant_id(known.tenant)
    job_type(known.type)
    seen = isinstance(known, CheckedJob) and known.checked[0] is known.payload
    body = known.payload if seen else payload(_check_bytes(known.payload, name="payload"))
    priority(known.priority)
    if known.run_at is not None:
        check_integer(known.run_at, name="run_at", minimum=0, maximum=TIMESTAMP_MAX)
    check_integer(known.delay, name="delay", minimum=0, maximum=DELAY_MICROS_MAX)
    if known.max_attempts is not None:
        max_attempts(known.max_attempts)
    check_integer(known.depth, name="depth", minimum=0, maximum=DEPTH_MAX)
    if not isinstance(known.source, Source):
        raise InvalidInput(f"the source is a {type(known.source).__name__}; it is a Source")
    for name in KEY_FIELDS:
        if (key := getattr(known, name)) is not None:
            short_text(key, name=name)
    if not (seen and isinstance(known, CheckedJob) and known.checked[1] is known.payload_digest):
        _check_digest(known, body)
    if (known.idempotency_key is None) != (known.payload_digest is None):
        raise InvalidInput("an order has both an idempotency key and a payload digest, or neither")
    if not isinstance(known.tags, tuple):
        raise InvalidInput(f"tags is a {type(known.tags).__name__}; it is a tuple of texts")
    labels = tags(known.tags) if known.tags else ()
    if known.after and after(known.after) != known.after:
        raise InvalidInput(
            "after names jobs twice or out of order", hint="Make orders with new_job; nothing was changed."
        )
    if not isinstance(known.on_dead, OnDead):
        raise InvalidInput(f"on_dead is a {type(known.on_dead).__name__}; it is an OnDead")
    if (known.inputs, known.uploads, known.payload_blob, known.owner_quota) != NO_FILES:
        _check_files(known, body)
    check_boolean(known.force, name="force")
    if known.batch is not None:
        short_text(known.batch, name="batch", chars_max=BATCH_CHARS_MAX)
    notes = None if known.metadata is None else metadata(_check_bytes(known.metadata, name="metadata"))
    if (body, labels, notes) != (known.payload, known.tags, known.metadata):
        return msgspec.structs.replace(known, payload=body, tags=labels, metadata=notes)
    return known


def _check_bytes(value: object, *, name: str) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput(f"the {name} is a {type(value).__name__}; an order carries it as bytes of JSON text")
    return value


def _check_digest(known: NewJob, body: bytes) -> None:
    given = known.payload_digest
    if given is None:
        return
    if _check_bytes(given, name="payload digest") != payload_digest(body, payload_blob(known.payload_blob)):
        raise InvalidInput("the payload digest is not that of the payload")


def _check_files(known: NewJob, body: bytes) -> None:
    if inputs(known.inputs) != known.inputs or not isinstance(known.inputs, dict):
        raise InvalidInput(f"inputs is a {type(known.inputs).__name__}; it is a dict of texts")
    if payload_blob(known.payload_blob) is not None and body != b"null":
        raise InvalidInput("payload and payload_blob were both given", hint="Give one of them; nothing was changed.")
    owner_quota(known.owner_quota)
    _check_uploads(known)


def _check_uploads(known: NewJob) -> None:
    """Raise unless these are uploads of inputs of this very job, each with a name of its own."""
    if not isinstance(known.uploads, tuple):
        raise InvalidInput(f"uploads is a {type(known.uploads).__name__}; it is a tuple of BeginUpload")
    names = [*known.inputs]
    for value in known.uploads:
        upload = check_instance(value, BeginUpload, name="upload")
        if (upload.tenant, upload.job_id, upload.fence, upload.file) != (known.tenant, known.id, None, "input"):
            raise InvalidInput("an upload of an order is for an input of its job")
        if upload.key is not None or not is_id(upload.id) or not upload.owner:
            raise InvalidInput("an upload of an order has an id and an owner, and no key")
        if upload.blob_id is not None:
            digest(upload.blob_id, name="id of a blob")
        names.append(file_name(upload.name))
    if len(names) > INPUTS_MAX:
        raise InvalidInput(f"there are {len(names)} inputs; the most is {INPUTS_MAX}")
    if len(set(names)) < len(names) or len({one.id for one in known.uploads}) < len(known.uploads):
        raise InvalidInput("two inputs have the same name", hint="Give each a name of its own; nothing was changed.")


def checked_new_jobs(values: object) -> tuple[NewJob, ...]:
    """Orders that can be accepted together."""
    given = check_list(values, name="orders")
    if len(given) > BATCH_JOBS_MAX:
        raise InvalidInput(f"there are {len(given)} jobs; the most at once is {BATCH_JOBS_MAX}")
    checked = tuple([checked_new_job(value) for value in given])
    if len(same := {order.id: order for order in checked}) < len(checked):
        for known in checked:
            if same[known.id] != known:
                raise InvalidInput(f"two orders that differ have the id {known.id}", hint="Make orders with new_job.")
    if any(order.after for order in checked):
        check_cycles(checked)
    return checked
