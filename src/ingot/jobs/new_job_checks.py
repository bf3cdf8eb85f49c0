"""Validation of new jobs before they are enqueued, whether or not they were created with `new_job`."""

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
from ingot.kernel.slices import map_in_slices
from ingot.kernel.validation import check_boolean, check_instance, check_integer, check_list, check_text, format_value

KEY_FIELDS = ("idempotency_key", "dedupe_key", "correlation_id", "trace_id", "source_ref", "created_by")
DEPTH_MAX = 16
NO_FILES: Final[tuple[object, ...]] = ({}, (), None, None)
NEW_JOB_HINT: Final = "Create jobs with new_job. Nothing was changed."


class CheckedJob(NewJob, frozen=True, kw_only=True, gc=False):
    """A job created by `new_job`. `checked` holds its validated payload and digest, which are not parsed again."""

    checked: tuple[bytes, bytes | None]


def checked_new_job(value: object) -> NewJob:
    """Return a new job whose fields are all valid. Raises `InvalidInput`."""
    job = check_instance(value, NewJob, name="job")
    check_text(job.id, name="id")
    if not is_id(job.id):
        raise InvalidInput(f"{format_value(job.id)} is not a valid job ID", hint=NEW_JOB_HINT)
    tenant_id(job.tenant)
    job_type(job.type)
    is_checked = isinstance(job, CheckedJob) and job.checked[0] is job.payload
    payload_text = job.payload if is_checked else payload(_check_bytes(job.payload, name="payload"))
    priority(job.priority)
    if job.run_at is not None:
        check_integer(job.run_at, name="run_at", minimum=0, maximum=TIMESTAMP_MAX)
    check_integer(job.delay, name="delay", minimum=0, maximum=DELAY_MICROS_MAX)
    if job.max_attempts is not None:
        max_attempts(job.max_attempts)
    check_integer(job.depth, name="depth", minimum=0, maximum=DEPTH_MAX)
    if not isinstance(job.source, Source):
        raise InvalidInput(f"source must be a Source, got {type(job.source).__name__}", hint=NEW_JOB_HINT)
    for name in KEY_FIELDS:
        if (key := getattr(job, name)) is not None:
            short_text(key, name=name)
    if not (is_checked and isinstance(job, CheckedJob) and job.checked[1] is job.payload_digest):
        _check_digest(job, payload_text)
    if (job.idempotency_key is None) != (job.payload_digest is None):
        raise InvalidInput("idempotency_key and payload_digest must be set together", hint=NEW_JOB_HINT)
    if not isinstance(job.tags, tuple):
        raise InvalidInput(f"tags must be a tuple of strings, got {type(job.tags).__name__}", hint=NEW_JOB_HINT)
    checked_tags = tags(job.tags) if job.tags else ()
    if job.after and after(job.after) != job.after:
        raise InvalidInput("the job IDs in after must be sorted and unique", hint=NEW_JOB_HINT)
    if not isinstance(job.on_dead, OnDead):
        raise InvalidInput(f"on_dead must be an OnDead, got {type(job.on_dead).__name__}", hint=NEW_JOB_HINT)
    if (job.inputs, job.uploads, job.payload_blob, job.owner_quota) != NO_FILES:
        _check_files(job, payload_text)
    check_boolean(job.force, name="force")
    if job.batch is not None:
        short_text(job.batch, name="batch", chars_max=BATCH_CHARS_MAX)
    metadata_text = None if job.metadata is None else metadata(_check_bytes(job.metadata, name="metadata"))
    if (payload_text, checked_tags, metadata_text) != (job.payload, job.tags, job.metadata):
        return msgspec.structs.replace(job, payload=payload_text, tags=checked_tags, metadata=metadata_text)
    return job


def _check_bytes(value: object, *, name: str) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput(f"the {name} of a new job must be bytes, got {type(value).__name__}", hint=NEW_JOB_HINT)
    return value


def _check_digest(job: NewJob, payload_text: bytes) -> None:
    given_digest = job.payload_digest
    if given_digest is None:
        return
    if _check_bytes(given_digest, name="payload digest") != payload_digest(
        payload_text, payload_blob(job.payload_blob)
    ):
        raise InvalidInput("payload_digest does not match the payload", hint=NEW_JOB_HINT)


def _check_files(job: NewJob, payload_text: bytes) -> None:
    if inputs(job.inputs) != job.inputs or not isinstance(job.inputs, dict):
        raise InvalidInput(f"inputs must be a dict of strings, got {type(job.inputs).__name__}", hint=NEW_JOB_HINT)
    if payload_blob(job.payload_blob) is not None and payload_text != b"null":
        raise InvalidInput("payload and payload_blob are both set", hint="Set only one of them. Nothing was changed.")
    owner_quota(job.owner_quota)
    _check_uploads(job)


def _check_uploads(job: NewJob) -> None:
    """Raise `InvalidInput` unless all uploads are for inputs of this job and all inputs have different names."""
    if not isinstance(job.uploads, tuple):
        raise InvalidInput(f"uploads must be a tuple of BeginUpload, got {type(job.uploads).__name__}")
    names = [*job.inputs]
    for value in job.uploads:
        upload = check_instance(value, BeginUpload, name="upload")
        if (upload.tenant, upload.job_id, upload.fence, upload.file) != (job.tenant, job.id, None, "input"):
            raise InvalidInput("an upload of a new job must be for an input of that job")
        if upload.key is not None or not is_id(upload.id) or not upload.owner:
            raise InvalidInput("an upload of a new job must have an ID and an owner, and no key")
        if upload.blob_id is not None:
            digest(upload.blob_id, name="blob ID")
        names.append(file_name(upload.name))
    if len(names) > INPUTS_MAX:
        raise InvalidInput(f"a job must have at most {INPUTS_MAX} inputs, got {len(names)} inputs")
    if len(set(names)) < len(names) or len({upload.id for upload in job.uploads}) < len(job.uploads):
        raise InvalidInput("two inputs have the same name", hint="Use a different name for each. Nothing was changed.")


async def checked_new_jobs(values: object) -> tuple[NewJob, ...]:
    """Return new jobs that can be enqueued together. Raises `InvalidInput` or `DependencyCycle`."""
    new_jobs = check_list(values, name="orders")
    if len(new_jobs) > BATCH_JOBS_MAX:
        raise InvalidInput(f"at most {BATCH_JOBS_MAX} jobs can be enqueued in one call, got {len(new_jobs)} jobs")
    checked = tuple(await map_in_slices(checked_new_job, new_jobs))
    if len(jobs_by_id := {job.id: job for job in checked}) < len(checked):
        for job in checked:
            if jobs_by_id[job.id] != job:
                raise InvalidInput(f"two different jobs have the ID {job.id}", hint=NEW_JOB_HINT)
    if any(job.after for job in checked):
        check_cycles(checked)
    return checked
