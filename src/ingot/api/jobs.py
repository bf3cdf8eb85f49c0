"""Routes with which clients create, read and control jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from ingot.api.blob_scopes import reference_scope
from ingot.api.order_access import check_order_references, redact_existing_job, visible_duplicate
from ingot.api.upload_urls import UploadUrls
from ingot.blobs.checks import guess_content_type
from ingot.blobs.errors import UploadNotFound
from ingot.blobs.incoming import IncomingBlob, JobFileTarget
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import PreparedUpload, Uploads, UploadWithPlan
from ingot.http.request import Request, Response
from ingot.http.routes import PREFIX, Granted, Route, route_factory
from ingot.jobs.checks import file_name
from ingot.jobs.errors import DuplicateJob, JobNotFound
from ingot.jobs.files import INPUTS_MAX, input_upload_id
from ingot.jobs.job_options import JobOptions, new_job
from ingot.jobs.model import (
    Attempt,
    Batch,
    Definition,
    Enqueued,
    Explanation,
    Job,
    JobStatus,
    NewJob,
    OnDead,
    Pause,
    Summary,
)
from ingot.jobs.service import Jobs
from ingot.kernel import validation
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.kernel.slices import map_in_slices
from ingot.wire.files import CreateJobRequest, CreateJobResponse
from ingot.wire.jobs import (
    ChangeJobRequest,
    CreateJobsRequest,
    JobSpec,
    JobsQuery,
    RetryJobRequest,
    SummaryQuery,
    WaitQuery,
)

BATCH_BODY_BYTES_MAX = 64 * 1024 * 1024
OPTION_FIELDS = (
    "priority",
    "run_at",
    "max_attempts",
    "idempotency_key",
    "dedupe_key",
    "batch",
    "correlation_id",
    "trace_id",
    "tags",
    "after",
    "inputs",
    "payload_blob",
)
_option_values_of = attrgetter(*OPTION_FIELDS)
DEFAULT_OPTION_VALUES: Final = _option_values_of(JobSpec(type=""))


class CreateJobsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that were created or already existed."""

    jobs: list[Enqueued]
    """One entry per job, in the order of the request."""


class JobsApi:
    """Routes of jobs."""

    def __init__(self, jobs: Jobs, blobs: Blobs, uploads: Uploads, upload_urls: UploadUrls) -> None:
        self._jobs = jobs
        self._blobs = blobs
        self._uploads = uploads
        self._upload_urls = upload_urls

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        create, read, manage = Granted("jobs.create"), Granted("jobs.read"), Granted("jobs.manage")
        repeatable: dict[str, Any] = {"status": 201, "other_statuses": (200,), "headers": ("Idempotency-Key",)}
        route = route_factory("jobs")
        return [
            route("POST", "/jobs", self.create, create, **repeatable),
            route("POST", "/jobs/batch", self.create_many, create, status=201, body_bytes_max=BATCH_BODY_BYTES_MAX),
            route("GET", "/jobs", self.list, read),
            route("GET", "/jobs/summary", self.summary, read),
            route("GET", "/jobs/{id}", self.get, read),
            route("GET", "/jobs/{id}/wait", self.wait, read, rate="wait", waits=True),
            route("PATCH", "/jobs/{id}", self.change, manage),
            route("POST", "/jobs/{id}/cancel", self.cancel, manage),
            route("POST", "/jobs/{id}/retry", self.retry, manage),
            route("GET", "/jobs/{id}/attempts", self.attempts, read),
            route("GET", "/jobs/{id}/explain", self.explain, read),
            route("GET", "/batches/{batch}", self.batch, read),
            route("GET", "/definitions", self.definitions, read),
            route("GET", "/pauses", self.pauses, read),
            route("PUT", "/pauses/{type}", self.pause, manage),
            route("DELETE", "/pauses/{type}", self.resume, manage, status=204),
        ]

    # -- creating -------------------------------------------------------------------------------------------

    async def create(self, request: Request, body: CreateJobRequest) -> Response[CreateJobResponse]:
        """Create a job. Return 200 with an existing job if its idempotency key matches or its work can be reused.

        With uploads, the response contains the URLs for the bytes. The job is ready when all uploads are complete.
        """
        options = _job_options(request, body)
        if body.inputs or body.after or body.payload_blob is not None:
            await check_order_references(self._jobs, self._blobs, request, (body,))
        if (key := request.resolve_idempotency_key(body.idempotency_key)) is not None:
            options["idempotency_key"] = key
        try:
            if body.uploads:
                job = await self._create_with_uploads(request, body, options)
            else:
                enqueued = await self._jobs.enqueue(request.tenant, body.type, bytes(body.payload), **options)
                if enqueued.reused:
                    enqueued = await self._complete_existing_uploads(request, enqueued, body)
                job = _create_response(request, enqueued)
        except DuplicateJob as error:
            raise await visible_duplicate(self._jobs, request, error) from None
        return Response(job, 201 if job.created else 200, {"location": f"{PREFIX}/jobs/{job.id}"})

    async def _create_with_uploads(
        self, request: Request, body: CreateJobRequest, options: JobOptions
    ) -> CreateJobResponse:
        """Create a job together with the uploads that it waits for, or return the existing job with its uploads."""
        order = new_job(request.tenant, body.type, bytes(body.payload), **options)
        prepared = await self._prepare_uploads(request, order, body)
        is_unproven = any(upload.content is None and upload.command.blob_id is not None for upload in prepared)
        if is_unproven and not request.caller.may("jobs.read", f"jobs/{body.type}"):
            # An answer with a job that has the same file would reveal that the file exists.
            order = msgspec.structs.replace(order, force=True)
        try:
            uploads = tuple(upload.command for upload in prepared)
            (enqueued,) = await self._jobs.enqueue_many([msgspec.structs.replace(order, uploads=uploads)])
        except BaseException:
            await asyncio.shield(self._discard_uploads(prepared))
            raise
        if enqueued.created:
            uploads_of_job = [await self._uploads.continue_prepared(upload) for upload in prepared]
        else:
            await self._discard_uploads(prepared)
            uploads_of_job = await self._rejoin_uploads(request, enqueued, body, new_uploads=prepared)
        # Read the job again, because uploads of blobs that the tenant already has are done by now.
        job = await self._jobs.get(request.tenant, enqueued.job.id)
        # One of its uploads has failed or was canceled just now, so the job cannot be reused any more.
        if enqueued.reused and job.status is JobStatus.CANCELED:
            return await self._create_with_uploads(request, body, options)
        plans = [self._upload_urls.plan_upload(request, request.tenant, upload) for upload in uploads_of_job]
        return _create_response(request, msgspec.structs.replace(enqueued, job=job), uploads=plans)

    async def _prepare_uploads(self, request: Request, order: NewJob, body: CreateJobRequest) -> list[PreparedUpload]:
        validation.check_integer(
            len(body.inputs) + len(body.uploads), name="the number of inputs", minimum=0, maximum=INPUTS_MAX
        )
        prepared: list[PreparedUpload] = []
        try:
            for n, upload in enumerate(body.uploads):
                incoming = IncomingBlob(
                    tenant=request.tenant,
                    owner=request.caller.principal,
                    size=upload.size,
                    blob_id=upload.blob_id,
                    sha256=upload.sha256,
                    content_type=upload.content_type or guess_content_type(upload.name),
                    owner_quota=request.caller.limits.quota_bytes,
                    scope=reference_scope(request.caller),
                )
                file = JobFileTarget(job_id=order.id, kind="input", name=file_name(upload.name))
                prepared.append(
                    await self._uploads.prepare(incoming, id=input_upload_id(order.id, n), file=file, data=upload.data)
                )
        except BaseException:
            await asyncio.shield(self._discard_uploads(prepared))
            raise
        return prepared

    async def _rejoin_uploads(
        self, request: Request, enqueued: Enqueued, body: JobSpec, new_uploads: Sequence[PreparedUpload] = ()
    ) -> list[UploadWithPlan]:
        """Return the uploads of an existing job that the caller may continue, as far as they still exist.

        It may continue uploads that it began, and those of blobs that this request names too, if the caller has shown
        that it has them or may read such jobs.

        Uploads are finished if the caller can read the blob by now, or if this request contained the bytes. A reused
        job that is no longer blocked has no uploads left.
        """
        uploads: list[UploadWithPlan] = []
        if enqueued.reused and enqueued.job.status is not JobStatus.BLOCKED:
            return uploads
        job = enqueued.job
        contents = {upload.content.id: upload.content for upload in new_uploads if upload.content is not None}
        may_read = request.caller.may("jobs.read", f"jobs/{job.type}")
        named = {upload.command.blob_id for upload in new_uploads if may_read or upload.content is not None}
        named = (named | set(body.inputs.values())) - {None}
        scope = reference_scope(request.caller)
        for n in range(len(body.inputs) + len(new_uploads)):
            with suppress(UploadNotFound):
                upload = await self._uploads.get(job.tenant, id := input_upload_id(job.id, n))
                if upload.owner == request.caller.principal or upload.blob_id in named:
                    uploads.append(await self._uploads.resume_or_finish(job.tenant, id, contents, scope=scope))
        return uploads

    async def _complete_existing_uploads(self, request: Request, enqueued: Enqueued, body: JobSpec) -> Enqueued:
        """Finish uploads that a reused job waits for: this request refers to the same blobs, so they are stored."""
        if not await self._rejoin_uploads(request, enqueued, body):
            return enqueued
        job = await self._jobs.get(enqueued.job.tenant, enqueued.job.id)
        return msgspec.structs.replace(enqueued, job=job)

    async def _discard_uploads(self, prepared: Sequence[PreparedUpload]) -> None:
        for upload in prepared:
            await self._uploads.discard_prepared(upload)

    async def create_many(self, request: Request, body: CreateJobsRequest) -> CreateJobsResponse:
        """Create several jobs, either all or none."""
        if request.headers.has("idempotency-key"):
            raise InvalidInput(
                "the header Idempotency-Key does not apply to several jobs", hint="Set idempotency_key in each job."
            )
        orders = await map_in_slices(
            lambda job: new_job(request.tenant, job.type, bytes(job.payload), **_job_options(request, job)), body.jobs
        )
        await check_order_references(self._jobs, self._blobs, request, body.jobs)
        try:
            enqueued_jobs = await self._jobs.enqueue_many(orders)
        except DuplicateJob as error:
            raise await visible_duplicate(self._jobs, request, error) from None
        completed_jobs = [
            await self._complete_existing_uploads(request, enqueued, job) if enqueued.reused else enqueued
            for enqueued, job in zip(enqueued_jobs, body.jobs, strict=True)
        ]
        jobs = await map_in_slices(lambda enqueued: redact_existing_job(request, enqueued), completed_jobs)
        return CreateJobsResponse(jobs=jobs)

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, request: Request, id: str) -> Job:
        """Return a job."""
        return await get_visible_job(self._jobs, request, id)

    async def wait(self, request: Request, id: str, query: WaitQuery) -> Job:
        """Wait until a job has finished, for at most `wait_seconds`, and return it."""
        await get_visible_job(self._jobs, request, id)
        return await self._jobs.wait(request.tenant, id, seconds=query.wait_seconds)

    async def list(self, request: Request, query: JobsQuery) -> Page[Job]:
        """List jobs that fit all filters, newest first."""
        request.require("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.list(request.tenant, **msgspec.structs.asdict(query))

    async def summary(self, request: Request, query: SummaryQuery) -> Summary:
        """Count the jobs that fit all filters. The numbers are exact unless `more` is true."""
        request.require("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.summary(request.tenant, **msgspec.structs.asdict(query))

    async def attempts(self, request: Request, id: str) -> Page[Attempt]:
        """List the attempts of a job, oldest first."""
        await get_visible_job(self._jobs, request, id)
        return Page(items=[*await self._jobs.attempts(request.tenant, id)])

    async def explain(self, request: Request, id: str) -> Explanation:
        """Explain why a job is not running, or how it ended.

        Workers of the tenant are named to callers with the grant `workers.read`, shared workers and those of other
        tenants to operators, and the state of other jobs to callers that may read all jobs.
        """
        await get_visible_job(self._jobs, request, id)
        sees_workers, is_operator = request.caller.may("workers.read"), request.caller.is_operator
        return await self._jobs.explain(
            request.tenant,
            id,
            names_workers=sees_workers,
            names_jobs=request.caller.may("jobs.read"),
            all_tenants=is_operator,
        )

    async def batch(self, request: Request, batch: str) -> Batch:
        """Count the jobs of a batch."""
        request.require("jobs.read")
        return await self._jobs.batch(request.tenant, batch)

    async def definitions(self, request: Request) -> Page[Definition]:
        """List the definitions that apply in the tenant, ordered by type."""
        definitions: Sequence[Definition] = await self._jobs.definitions(tenant=request.tenant)
        return Page(items=[item for item in definitions if request.caller.may("jobs.read", f"jobs/{item.type}")])

    # -- controlling ----------------------------------------------------------------------------------------

    async def cancel(self, request: Request, id: str) -> Job:
        """Cancel a waiting job, or ask a running job to stop."""
        await get_visible_job(self._jobs, request, id, "jobs.manage")
        return await self._jobs.cancel(request.tenant, id, by=request.caller.principal)

    async def retry(self, request: Request, id: str, body: RetryJobRequest) -> Job:
        """Run a finished job again."""
        await get_visible_job(self._jobs, request, id, "jobs.manage")
        try:
            return await self._jobs.retry(request.tenant, id, **msgspec.structs.asdict(body))
        except DuplicateJob as error:
            raise await visible_duplicate(self._jobs, request, error) from None

    async def change(self, request: Request, id: str, body: ChangeJobRequest) -> Job:
        """Change the priority, start time or maximum attempts of a waiting job, or the tags of any job."""
        await get_visible_job(self._jobs, request, id, "jobs.manage")
        return await self._jobs.reschedule(request.tenant, id, **msgspec.structs.asdict(body))

    async def pauses(self, request: Request) -> Page[Pause]:
        """List paused job types."""
        pauses = await self._jobs.pauses(request.tenant)
        return Page(items=[pause for pause in pauses if request.caller.may("jobs.read", f"jobs/{pause.type}")])

    async def pause(self, request: Request, type: str) -> Pause:
        """Pause a job type: workers get no more jobs of this type. Running jobs continue."""
        request.require("jobs.manage", f"jobs/{type}")
        return await self._jobs.pause(request.tenant, type, by=request.caller.principal, act=request.act())

    async def resume(self, request: Request, type: str) -> None:
        """Resume a paused job type."""
        request.require("jobs.manage", f"jobs/{type}")
        await self._jobs.resume(request.tenant, type, act=request.act())


def _create_response(request: Request, enqueued: Enqueued, **fields: Any) -> CreateJobResponse:
    job = msgspec.structs.asdict(redact_existing_job(request, enqueued).job)
    return CreateJobResponse(**job, created=enqueued.created, reused=enqueued.reused, **fields)


def _job_options(request: Request, body: JobSpec) -> JobOptions:
    """Return the options of a new job. Raises `Forbidden` for a job type that the caller may not create."""
    request.require("jobs.create", f"jobs/{body.type}")
    options: dict[str, Any] = {}
    # Most jobs have no options, and this comparison is faster than checking each.
    if (values := _option_values_of(body)) != DEFAULT_OPTION_VALUES:
        options = {
            name: value for name, value in zip(OPTION_FIELDS, values, strict=True) if value not in (None, [], {})
        }
    if metadata := bytes(body.metadata):
        options["metadata"] = metadata
    if body.delay_seconds is not None:
        options["delay"] = body.delay_seconds
    if body.on_dead is not OnDead.CANCEL:
        options["on_dead"] = body.on_dead
    if body.force:
        options["force"] = True
    if request.trace_id is not None:
        options.setdefault("trace_id", request.trace_id)
    if body.inputs or body.payload_blob is not None:
        options["owner_quota"] = request.caller.limits.quota_bytes
    return cast("JobOptions", {**options, "created_by": request.caller.principal})


async def get_visible_job(jobs: Jobs, request: Request, job_id: str, action: str = "jobs.read") -> Job:
    """Return a job on which the caller may perform the action. Raises `JobNotFound` otherwise."""
    job = await jobs.get(request.tenant, job_id)
    if not request.caller.may(action, f"jobs/{job.type}"):
        raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
    return job
