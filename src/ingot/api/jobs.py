"""Routes of those who want work done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from ingot.api.upload_urls import UploadUrls
from ingot.blobs.checks import guess_content_type
from ingot.blobs.errors import UploadNotFound
from ingot.blobs.incoming import IncomingBlob, JobFileTarget
from ingot.blobs.uploads import PreparedUpload, Uploads, UploadWithPlan
from ingot.http.request import Request, Response
from ingot.http.routes import PREFIX, Granted, Route, routes_of
from ingot.jobs.checks import file_name
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import INPUTS_MAX, input_upload_id
from ingot.jobs.job_options import JobOptions, new_job
from ingot.jobs.model import (
    NULL,
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
DEFAULT_OPTION_VALUES: Final = _option_values_of(JobSpec(type=""))  # As of most jobs.


class CreateJobsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a batch, in the order in which they were sent."""

    jobs: list[Enqueued]
    """One entry per job, in the order of the request."""


class JobsApi:
    """Jobs over HTTP."""

    def __init__(self, jobs: Jobs, uploads: Uploads, plans: UploadUrls) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._upload_urls = plans

    def routes(self) -> list[Route]:
        """The routes of this room."""
        create, read, manage = Granted("jobs.create"), Granted("jobs.read"), Granted("jobs.manage")
        keyed: dict[str, Any] = {"status": 201, "other_statuses": (200,), "headers": ("Idempotency-Key",)}
        route = routes_of("jobs")
        return [
            route("POST", "/jobs", self.create, create, **keyed),
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

    # -- making ---------------------------------------------------------------------------------------------

    async def create(self, call: Request, body: CreateJobRequest) -> Response[CreateJobResponse]:
        """Enqueue a job. With uploads, the answer says where these are sent; it is ready when all are complete.

        A type whose results are used again answers with the job that does the same, and 200.
        """
        options = _job_options(call, body)
        if (key := call.resolve_idempotency_key(body.idempotency_key)) is not None:
            options["idempotency_key"] = key
        if body.uploads:
            job = await self._create_with_uploads(call, body, options)
        else:
            made = await self._jobs.enqueue(call.tenant, body.type, bytes(body.payload), **options)
            job = _create_response(
                call, await self._complete_existing_uploads(made, len(body.inputs)) if made.reused else made
            )
        return Response(job, 201 if job.created else 200, {"location": f"{PREFIX}/jobs/{job.id}"})

    async def _create_with_uploads(
        self, call: Request, body: CreateJobRequest, options: JobOptions
    ) -> CreateJobResponse:
        """Make a job together with the uploads that it waits for. One that was there before has its own."""
        order = new_job(call.tenant, body.type, bytes(body.payload), **options)
        coming = await self._prepare_uploads(call, order, body)
        try:
            uploads = tuple(one.command for one in coming)
            (made,) = await self._jobs.enqueue_many([msgspec.structs.replace(order, uploads=uploads)])
        except BaseException:
            await asyncio.shield(self._discard_uploads(coming))
            raise
        if made.created:
            begun = [await self._uploads.continue_prepared(one) for one in coming]
        else:
            await self._discard_uploads(coming)
            begun = await self._rejoin_uploads(made, len(body.inputs) + len(coming), new_uploads=coming)
        job = await self._jobs.get(call.tenant, made.job.id)  # What the tenant has already is here by now.
        if made.reused and job.status is JobStatus.CANCELED:  # An upload of it has failed, or was given up just now.
            return await self._create_with_uploads(call, body, options)
        plans = [self._upload_urls.plan_upload(call, call.tenant, one) for one in begun]
        return _create_response(call, msgspec.structs.replace(made, job=job), uploads=plans)

    async def _prepare_uploads(self, call: Request, order: NewJob, body: CreateJobRequest) -> list[PreparedUpload]:
        validation.check_integer(
            len(body.inputs) + len(body.uploads), name="the number of inputs", minimum=0, maximum=INPUTS_MAX
        )
        coming: list[PreparedUpload] = []
        try:
            for n, one in enumerate(body.uploads):
                arrival = IncomingBlob(
                    tenant=call.tenant,
                    owner=call.caller.principal,
                    size=one.size,
                    blob_id=one.blob_id,
                    sha256=one.sha256,
                    content_type=one.content_type or guess_content_type(one.name),
                    owner_quota=call.caller.limits.quota_bytes,
                )
                file = JobFileTarget(job_id=order.id, kind="input", name=file_name(one.name))
                coming.append(
                    await self._uploads.prepare(arrival, id=input_upload_id(order.id, n), file=file, data=one.data)
                )
        except BaseException:
            await asyncio.shield(self._discard_uploads(coming))
            raise
        return coming

    async def _rejoin_uploads(
        self, made: Enqueued, inputs: int, new_uploads: Sequence[PreparedUpload] = ()
    ) -> list[UploadWithPlan]:
        """The uploads of a job that was there before, of so many inputs, as far as they are still known.

        What the tenant has by now, or came with this order, is done. One that is reused and waits for nothing any more
        has none.
        """
        begun: list[UploadWithPlan] = []
        if made.reused and made.job.status is not JobStatus.BLOCKED:
            return begun
        here = {one.content.id: one.content for one in new_uploads if one.content is not None}
        for n in range(inputs):
            with suppress(UploadNotFound):
                begun.append(
                    await self._uploads.resume_or_finish(made.job.tenant, input_upload_id(made.job.id, n), here)
                )
        return begun

    async def _complete_existing_uploads(self, made: Enqueued, inputs: int) -> Enqueued:
        """The answer to an order whose inputs are here: a job that is reused waits for none of them any more."""
        if not await self._rejoin_uploads(made, inputs):
            return made
        return msgspec.structs.replace(made, job=await self._jobs.get(made.job.tenant, made.job.id))

    async def _discard_uploads(self, coming: Sequence[PreparedUpload]) -> None:
        for one in coming:
            await self._uploads.discard_prepared(one)

    async def create_many(self, call: Request, body: CreateJobsRequest) -> CreateJobsResponse:
        """Enqueue many jobs, all or none."""
        if call.headers.has("idempotency-key"):
            raise InvalidInput("a batch has a key for each of its jobs", hint="Put idempotency_key into each job.")
        orders = [new_job(call.tenant, one.type, bytes(one.payload), **_job_options(call, one)) for one in body.jobs]
        made = await self._jobs.enqueue_many(orders)
        fed = [
            await self._complete_existing_uploads(one, len(order.inputs)) if one.reused else one
            for one, order in zip(made, orders, strict=True)
        ]
        return CreateJobsResponse(jobs=[_redact_reused_job(call, one) for one in fed])

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, call: Request, id: str) -> Job:
        """The job as it stands."""
        return await get_visible_job(self._jobs, call, id)

    async def wait(self, call: Request, id: str, query: WaitQuery) -> Job:
        """The job once it is finished, or as it stands when the time is over."""
        await get_visible_job(self._jobs, call, id)
        return await self._jobs.wait(call.tenant, id, seconds=query.wait_seconds)

    async def list(self, call: Request, query: JobsQuery) -> Page[Job]:
        """A page of the jobs that fit every filter, newest first."""
        call.require("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.list(call.tenant, **msgspec.structs.asdict(query))

    async def summary(self, call: Request, query: SummaryQuery) -> Summary:
        """The jobs that fit every filter in numbers, exact unless it says that there are more."""
        call.require("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.summary(call.tenant, **msgspec.structs.asdict(query))

    async def attempts(self, call: Request, id: str) -> Page[Attempt]:
        """The attempts of a job, oldest first."""
        await get_visible_job(self._jobs, call, id)
        return Page(items=[*await self._jobs.attempts(call.tenant, id)])

    async def explain(self, call: Request, id: str) -> Explanation:
        """Why a job is not running, in words and as data."""
        await get_visible_job(self._jobs, call, id)
        return await self._jobs.explain(call.tenant, id)

    async def batch(self, call: Request, batch: str) -> Batch:
        """The jobs enqueued under one name, in numbers."""
        call.require("jobs.read")
        return await self._jobs.batch(call.tenant, batch)

    async def definitions(self, call: Request) -> Page[Definition]:
        """The definitions that the tenant can see, by type."""
        found: Sequence[Definition] = await self._jobs.definitions(tenant=call.tenant)
        return Page(items=[one for one in found if call.caller.may("jobs.read", f"jobs/{one.type}")])

    # -- steering -------------------------------------------------------------------------------------------

    async def cancel(self, call: Request, id: str) -> Job:
        """Stop a waiting job at once, ask a running one to stop."""
        await get_visible_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.cancel(call.tenant, id)

    async def retry(self, call: Request, id: str, body: RetryJobRequest) -> Job:
        """Run a finished job again."""
        await get_visible_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.retry(call.tenant, id, **msgspec.structs.asdict(body))

    async def change(self, call: Request, id: str, body: ChangeJobRequest) -> Job:
        """Change a waiting job, or the tags of any."""
        await get_visible_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.reschedule(call.tenant, id, **msgspec.structs.asdict(body))

    async def pauses(self, call: Request) -> Page[Pause]:
        """The types that are paused."""
        found = await self._jobs.pauses(call.tenant)
        return Page(items=[pause for pause in found if call.caller.may("jobs.read", f"jobs/{pause.type}")])

    async def pause(self, call: Request, type: str) -> Pause:
        """Hand out no more jobs of a type."""
        call.require("jobs.manage", f"jobs/{type}")
        return await self._jobs.pause(call.tenant, type, by=call.caller.principal, act=call.act())

    async def resume(self, call: Request, type: str) -> None:
        """Hand out jobs of a type again."""
        call.require("jobs.manage", f"jobs/{type}")
        await self._jobs.resume(call.tenant, type, act=call.act())


def _create_response(call: Request, made: Enqueued, **more: Any) -> CreateJobResponse:
    shown = _redact_reused_job(call, made)
    return CreateJobResponse(**msgspec.structs.asdict(shown.job), created=made.created, reused=made.reused, **more)


def _redact_reused_job(call: Request, made: Enqueued) -> Enqueued:
    """What the caller may see of a job that was there: who may only make jobs learns where it stands, and no more."""
    job = made.job
    if not made.reused or call.caller.may("jobs.read", f"jobs/{job.type}"):
        return made
    hidden = msgspec.structs.replace(
        job,
        **dict.fromkeys(("result", "metadata"), NULL),
        **dict.fromkeys(("source_ref", "created_by", "idempotency_key", "dedupe_key", "correlation_id", "trace_id")),
        **dict.fromkeys(("batch", "worker_id", "progress", "last_error")),
        tags=(),
        after=(),
    )
    return msgspec.structs.replace(made, job=hidden)


def _job_options(call: Request, body: JobSpec) -> JobOptions:
    """What the order says besides type and payload. Raises `Forbidden` for a type the caller may not make."""
    call.require("jobs.create", f"jobs/{body.type}")
    options: dict[str, Any] = {}
    if (said := _option_values_of(body)) != DEFAULT_OPTION_VALUES:
        options = {name: value for name, value in zip(OPTION_FIELDS, said, strict=True) if value not in (None, [], {})}
    if metadata := bytes(body.metadata):
        options["metadata"] = metadata
    if body.delay_seconds is not None:
        options["delay"] = body.delay_seconds
    if body.on_dead is not OnDead.CANCEL:
        options["on_dead"] = body.on_dead
    if body.force:
        options["force"] = True
    if call.trace_id is not None:
        options.setdefault("trace_id", call.trace_id)
    if body.inputs or body.payload_blob is not None:
        options["owner_quota"] = call.caller.limits.quota_bytes
    return cast("JobOptions", {**options, "created_by": call.caller.principal})


async def get_visible_job(jobs: Jobs, call: Request, job_id: str, action: str = "jobs.read") -> Job:
    """A job that the caller may do this with; one of another type is not there for them."""
    job = await jobs.get(call.tenant, job_id)
    if not call.caller.may(action, f"jobs/{job.type}"):
        raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
    return job
