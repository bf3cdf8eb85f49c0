"""Routes of those who want work done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from ingot.api.plans import Plans
from ingot.blobs.arrivals import Arrival, FileToCome
from ingot.blobs.checks import guess_type
from ingot.blobs.errors import UploadNotFound
from ingot.blobs.uploads import Begun, Prepared, Uploads
from ingot.http.call import Answer, Call
from ingot.http.table import PREFIX, Granted, Route, routes_of
from ingot.jobs.checks import file_name
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import INPUTS_MAX, upload_id
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
from ingot.jobs.orders import JobOptions, new_job
from ingot.jobs.service import Jobs
from ingot.kernel import values
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.files import JobAnswer, NewJobOrder
from ingot.wire.jobs import JobChange, JobOrder, JobOrders, JobRetry, JobsQuery, SummaryQuery, WaitQuery

BATCH_BODY_BYTES_MAX = 64 * 1024 * 1024
OPTIONS = (
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
_values_of = attrgetter(*OPTIONS)
NO_OPTIONS: Final = _values_of(JobOrder(type=""))  # As of most jobs.


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a batch, in the order in which they were sent."""

    jobs: list[Enqueued]


class JobsApi:
    """Jobs over HTTP."""

    def __init__(self, jobs: Jobs, uploads: Uploads, plans: Plans) -> None:
        self._jobs = jobs
        self._uploads = uploads
        self._plans = plans

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

    async def create(self, call: Call, body: NewJobOrder) -> Answer[JobAnswer]:
        """Enqueue a job. With uploads, the answer says where these are sent; it is ready when all are complete.

        A type whose results are used again answers with the job that does the same, and 200.
        """
        options = _options(call, body)
        if (key := call.key_of(body.idempotency_key)) is not None:
            options["idempotency_key"] = key
        if body.uploads:
            job = await self._with_uploads(call, body, options)
        else:
            made = await self._jobs.enqueue(call.tenant, body.type, bytes(body.payload), **options)
            job = _answer(call, await self._fed(made, len(body.inputs)) if made.reused else made)
        return Answer(job, 201 if job.created else 200, {"location": f"{PREFIX}/jobs/{job.id}"})

    async def _with_uploads(self, call: Call, body: NewJobOrder, options: JobOptions) -> JobAnswer:
        """Make a job together with the uploads that it waits for. One that was there before has its own."""
        order = new_job(call.tenant, body.type, bytes(body.payload), **options)
        coming = await self._prepared(call, order, body)
        try:
            uploads = tuple(one.command for one in coming)
            (made,) = await self._jobs.enqueue_many([msgspec.structs.replace(order, uploads=uploads)])
        except BaseException:
            await asyncio.shield(self._forget(coming))
            raise
        if made.created:
            begun = [await self._uploads.begun(one) for one in coming]
        else:
            await self._forget(coming)
            begun = await self._begun_before(made, len(body.inputs) + len(coming), came=coming)
        job = await self._jobs.get(call.tenant, made.job.id)  # What the tenant has already is here by now.
        if made.reused and job.status is JobStatus.CANCELED:  # An upload of it has failed, or was given up just now.
            return await self._with_uploads(call, body, options)
        plans = [self._plans.of(call, call.tenant, one) for one in begun]
        return _answer(call, msgspec.structs.replace(made, job=job), uploads=plans)

    async def _prepared(self, call: Call, order: NewJob, body: NewJobOrder) -> list[Prepared]:
        values.whole_number(len(body.inputs) + len(body.uploads), what="the number of inputs", least=0, most=INPUTS_MAX)
        coming: list[Prepared] = []
        try:
            for n, one in enumerate(body.uploads):
                arrival = Arrival(
                    tenant=call.tenant,
                    owner=call.caller.name,
                    size=one.size,
                    blob_id=one.blob_id,
                    sha256=one.sha256,
                    content_type=one.content_type or guess_type(one.name),
                    owner_quota=call.caller.limits.quota_bytes,
                )
                file = FileToCome(job_id=order.id, kind="input", name=file_name(one.name))
                coming.append(await self._uploads.prepare(arrival, id=upload_id(order.id, n), file=file, data=one.data))
        except BaseException:
            await asyncio.shield(self._forget(coming))
            raise
        return coming

    async def _begun_before(self, made: Enqueued, inputs: int, came: Sequence[Prepared] = ()) -> list[Begun]:
        """The uploads of a job that was there before, of so many inputs, as far as they are still known.

        What the tenant has by now, or came with this order, is done. One that is reused and waits for nothing any more
        has none.
        """
        begun: list[Begun] = []
        if made.reused and made.job.status is not JobStatus.BLOCKED:
            return begun
        here = {one.known.id: one.known for one in came if one.known is not None}
        for n in range(inputs):
            with suppress(UploadNotFound):
                begun.append(await self._uploads.rejoin(made.job.tenant, upload_id(made.job.id, n), here))
        return begun

    async def _fed(self, made: Enqueued, inputs: int) -> Enqueued:
        """The answer to an order whose inputs are here: a job that is reused waits for none of them any more."""
        if not await self._begun_before(made, inputs):
            return made
        return msgspec.structs.replace(made, job=await self._jobs.get(made.job.tenant, made.job.id))

    async def _forget(self, coming: Sequence[Prepared]) -> None:
        for one in coming:
            await self._uploads.forget(one)

    async def create_many(self, call: Call, body: JobOrders) -> Made:
        """Enqueue many jobs, all or none."""
        if call.headers.has("idempotency-key"):
            raise InvalidInput("a batch has a key for each of its jobs", hint="Put idempotency_key into each job.")
        orders = [new_job(call.tenant, one.type, bytes(one.payload), **_options(call, one)) for one in body.jobs]
        made = await self._jobs.enqueue_many(orders)
        fed = [
            await self._fed(one, len(order.inputs)) if one.reused else one
            for one, order in zip(made, orders, strict=True)
        ]
        return Made(jobs=[_shown(call, one) for one in fed])

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, call: Call, id: str) -> Job:
        """The job as it stands."""
        return await seen_job(self._jobs, call, id)

    async def wait(self, call: Call, id: str, query: WaitQuery) -> Job:
        """The job once it is finished, or as it stands when the time is over."""
        await seen_job(self._jobs, call, id)
        return await self._jobs.wait(call.tenant, id, seconds=query.wait_seconds)

    async def list(self, call: Call, query: JobsQuery) -> Page[Job]:
        """A page of the jobs that fit every filter, newest first."""
        call.expect("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.list(call.tenant, **msgspec.structs.asdict(query))

    async def summary(self, call: Call, query: SummaryQuery) -> Summary:
        """The jobs that fit every filter in numbers, exact unless it says that there are more."""
        call.expect("jobs.read", "*" if query.type is None else f"jobs/{query.type}")
        return await self._jobs.summary(call.tenant, **msgspec.structs.asdict(query))

    async def attempts(self, call: Call, id: str) -> Page[Attempt]:
        """The attempts of a job, oldest first."""
        await seen_job(self._jobs, call, id)
        return Page(items=[*await self._jobs.attempts(call.tenant, id)])

    async def explain(self, call: Call, id: str) -> Explanation:
        """Why a job is not running, in words and as data."""
        await seen_job(self._jobs, call, id)
        return await self._jobs.explain(call.tenant, id)

    async def batch(self, call: Call, batch: str) -> Batch:
        """The jobs enqueued under one name, in numbers."""
        call.expect("jobs.read")
        return await self._jobs.batch(call.tenant, batch)

    async def definitions(self, call: Call) -> Page[Definition]:
        """The definitions that the tenant can see, by type."""
        found: Sequence[Definition] = await self._jobs.definitions(tenant=call.tenant)
        return Page(items=[one for one in found if call.caller.may("jobs.read", f"jobs/{one.type}")])

    # -- steering -------------------------------------------------------------------------------------------

    async def cancel(self, call: Call, id: str) -> Job:
        """Stop a waiting job at once, ask a running one to stop."""
        await seen_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.cancel(call.tenant, id)

    async def retry(self, call: Call, id: str, body: JobRetry) -> Job:
        """Run a finished job again."""
        await seen_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.retry(call.tenant, id, **msgspec.structs.asdict(body))

    async def change(self, call: Call, id: str, body: JobChange) -> Job:
        """Change a waiting job, or the tags of any."""
        await seen_job(self._jobs, call, id, "jobs.manage")
        return await self._jobs.reschedule(call.tenant, id, **msgspec.structs.asdict(body))

    async def pauses(self, call: Call) -> Page[Pause]:
        """The types that are paused."""
        found = await self._jobs.pauses(call.tenant)
        return Page(items=[pause for pause in found if call.caller.may("jobs.read", f"jobs/{pause.type}")])

    async def pause(self, call: Call, type: str) -> Pause:
        """Hand out no more jobs of a type."""
        call.expect("jobs.manage", f"jobs/{type}")
        return await self._jobs.pause(call.tenant, type, by=call.caller.name, act=call.act())

    async def resume(self, call: Call, type: str) -> None:
        """Hand out jobs of a type again."""
        call.expect("jobs.manage", f"jobs/{type}")
        await self._jobs.resume(call.tenant, type, act=call.act())


def _answer(call: Call, made: Enqueued, **more: Any) -> JobAnswer:
    shown = _shown(call, made)
    return JobAnswer(**msgspec.structs.asdict(shown.job), created=made.created, reused=made.reused, **more)


def _shown(call: Call, made: Enqueued) -> Enqueued:
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


def _options(call: Call, body: JobOrder) -> JobOptions:
    """What the order says besides type and payload. Raises `Forbidden` for a type the caller may not make."""
    call.expect("jobs.create", f"jobs/{body.type}")
    options: dict[str, Any] = {}
    if (said := _values_of(body)) != NO_OPTIONS:
        options = {name: value for name, value in zip(OPTIONS, said, strict=True) if value not in (None, [], {})}
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
    return cast("JobOptions", {**options, "created_by": call.caller.name})


async def seen_job(jobs: Jobs, call: Call, job_id: str, action: str = "jobs.read") -> Job:
    """A job that the caller may do this with; one of another type is not there for them."""
    job = await jobs.get(call.tenant, job_id)
    if not call.caller.may(action, f"jobs/{job.type}"):
        raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
    return job
