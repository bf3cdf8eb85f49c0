"""Rules for callers that create jobs: the objects that they may refer to, and the fields of existing jobs they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ingot.api.blob_scopes import reference_scope
from ingot.blobs.checks import is_digest
from ingot.blobs.service import Blobs
from ingot.http.request import Request
from ingot.jobs.errors import DuplicateJob, JobNotFound, ParentNotFound
from ingot.jobs.model import Definition, Enqueued, Job
from ingot.jobs.service import Jobs
from ingot.kernel.errors import InvalidInput
from ingot.wire.jobs import JobSpec

CHECKED_PARENTS_MAX: Final = 1_000


async def check_order_references(jobs: Jobs, blobs: Blobs, request: Request, orders: Iterable[JobSpec]) -> None:
    """Check that the caller may refer to the blobs and the parents of new jobs.

    It may refer to blobs that it can read or has stored itself, and to jobs that it can read or has created. All others
    are treated like missing ones. Raises `BlobNotFound` or `ParentNotFound`.
    """
    caller, tenant = request.caller, request.tenant
    if caller.may("jobs.read") and caller.may("blobs.read"):
        return
    blob_ids, parent_ids = set[str](), set[str]()
    for order in orders:
        blob_ids.update(order.inputs.values(), () if order.payload_blob is None else (order.payload_blob,))
        parent_ids.update(order.after)
    if len(parent_ids) > CHECKED_PARENTS_MAX:  # Each of them is read.
        raise InvalidInput(
            f"a caller that may not read all jobs can name at most {CHECKED_PARENTS_MAX} other jobs in a request, "
            f"got {len(parent_ids)}",
            hint="Send fewer jobs per request.",
        )
    scope = reference_scope(caller)
    for blob_id in filter(is_digest, blob_ids):  # Invalid IDs are reported as such later.
        await blobs.references(tenant, blob_id, scope)
    await _check_parents(jobs, request, sorted(parent_ids))


async def _check_parents(jobs: Jobs, request: Request, parent_ids: Sequence[str]) -> None:
    """Raise `ParentNotFound` if the caller may not refer to one of these jobs.

    Missing ones are reported later, unless an existing job answers the request. The error names the first job that is
    missing or may not be referred to, so that it does not reveal which of both is the case.
    """
    refused: list[str] = []
    is_any_hidden = False
    for parent_id in parent_ids:
        try:
            is_hidden = not _may_refer_to(request, await jobs.get(request.tenant, parent_id))
        except JobNotFound:
            refused.append(parent_id)
            continue
        if is_hidden:
            refused.append(parent_id)
            is_any_hidden = True
    if is_any_hidden:
        raise ParentNotFound(f"there is no job {refused[0]} in this tenant")


async def visible_duplicate(jobs: Jobs, request: Request, error: DuplicateJob) -> DuplicateJob:
    """Return the error without the ID of the job that holds the key, unless the caller can read or has created it."""
    with suppress(JobNotFound):
        if _may_refer_to(request, await jobs.get(request.tenant, error.holder_id)):
            return error
    return DuplicateJob("an unfinished job holds this dedupe key", holder_id=error.holder_id)


def redact_existing_job(request: Request, enqueued: Enqueued) -> Enqueued:
    """Hide an existing job, except its ID and status, from a caller that may create such jobs but not read them."""
    job = enqueued.job
    if enqueued.created or _may_read(request, job):
        return enqueued
    defaults = Definition(type=job.type)
    redacted = Job(
        id=job.id,
        tenant=job.tenant,
        type=job.type,
        status=job.status,
        priority=defaults.priority,
        payload=job.payload,  # That of the request, or an equal one.
        run_at=job.created_at,
        attempts=0,
        failures=0,
        crashes=0,
        max_attempts=defaults.max_attempts,
        fence=0,
        source=job.source,
        depth=0,
        created_at=job.created_at,
    )
    return msgspec.structs.replace(enqueued, job=redacted)


def _may_read(request: Request, job: Job) -> bool:
    return request.caller.may("jobs.read", f"jobs/{job.type}")


def _may_refer_to(request: Request, job: Job) -> bool:
    return job.created_by == request.caller.principal or _may_read(request, job)
