"""Routes with which workers claim jobs, renew leases and settle attempts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from ingot.http.request import Request, Response
from ingot.http.routes import Granted, Route, route_factory
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Forbidden
from ingot.jobs import checks
from ingot.jobs.errors import JobNotFound, LeaseLost
from ingot.jobs.model import Claim, Done, Failed, Heartbeat, Job, Outcome, Release, Settle, Settled, Snooze
from ingot.jobs.service import Jobs
from ingot.kernel.errors import IngotError
from ingot.kernel.slices import SLICE_SECONDS, map_in_slices, next_slice
from ingot.wire.jobs import (
    AttemptFailed,
    AttemptReleased,
    AttemptSnoozed,
    AttemptSucceeded,
    ClaimRequest,
    ClaimResponse,
    CompleteRequest,
    FailRequest,
    HeartbeatRequest,
    ReleaseRequest,
    SettleRequest,
    SettleResponse,
    SettleResult,
    SnoozeRequest,
)

AnySettleEntry = AttemptSucceeded | AttemptFailed | AttemptSnoozed | AttemptReleased

SETTLE_BODY_BYTES_MAX = 64 * 1024 * 1024
TYPES_SHOWN_MAX = 20  # In the hint of an error.
_encode = msgspec.json.Encoder().encode


class ClaimsApi:
    """Routes of claims and attempts."""

    def __init__(self, jobs: Jobs, authenticator: Authenticator) -> None:
        self._jobs = jobs
        self._authenticator = authenticator

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("work", needs=Granted("workers.run"))
        return [
            route("POST", "/jobs/claim", self.claim, other_statuses=(204,), rate="wait", waits=True),
            route("POST", "/jobs/settle", self.settle, body_bytes_max=SETTLE_BODY_BYTES_MAX),
            route("POST", "/jobs/{id}/heartbeat", self.heartbeat),
            route("POST", "/jobs/{id}/complete", self.complete),
            route("POST", "/jobs/{id}/fail", self.fail),
            route("POST", "/jobs/{id}/release", self.release),
            route("POST", "/jobs/{id}/snooze", self.snooze),
        ]

    async def claim(self, request: Request, body: ClaimRequest) -> Response[ClaimResponse | None]:
        """Claim ready jobs. If there are none, wait for up to `wait_seconds`. The status is 204 without a job."""
        for type in body.types:
            require_runnable_type(request, type)
        claims = await self._jobs.claim(
            await worker_id_of(self._authenticator, request, body.worker_id),
            body.types,
            limit=body.limit,
            wait_seconds=body.wait_seconds,
            tenant=tenant_scope(request),
            host=body.host,
            pid=body.pid,
        )
        request.undo = partial(self._release_claims, claims)
        if not claims:
            return Response(None, 204)
        return Response(ClaimResponse(jobs=await map_in_slices(_encode_claim, claims)))

    async def _release_claims(self, claims: Sequence[Claim]) -> None:
        """Release claims whose response cannot be sent, because no worker knows of them."""
        settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release()) for claim in claims]
        await self._jobs.settle_many(settles)

    async def heartbeat(self, request: Request, id: str, body: HeartbeatRequest) -> Heartbeat:
        """Renew the lease of a job, report progress and append to the log."""
        await require_job_access(self._jobs, request, id)
        scope: dict[str, str | None] = {"tenant": tenant_scope(request), "worker": worker_scope(request)}
        try:
            heartbeat = await self._jobs.heartbeat(id, body.fence, progress=body.progress, **scope)
            if body.log:
                await self._jobs.append_log(id, body.fence, body.log, offset=body.log_offset, **scope)
        except LeaseLost as error:
            raise await hide_other_types(self._jobs, request, id, error) from None
        return heartbeat

    async def complete(self, request: Request, id: str, body: CompleteRequest) -> Job:
        """Report that an attempt succeeded, with its result."""
        settled = await self._settle(request, id, body.fence, _done_outcome(body))
        return await self._jobs.get(settled.tenant, settled.job_id)

    async def fail(self, request: Request, id: str, body: FailRequest) -> Settled:
        """Report that an attempt failed. The job is retried later unless `retry` is false or no attempts are left."""
        return await self._settle(request, id, body.fence, _failed_outcome(body))

    async def release(self, request: Request, id: str, body: ReleaseRequest) -> Settled:
        """Release an unfinished job to the queue. This counts neither as a failure nor as a crash."""
        return await self._settle(request, id, body.fence, Release())

    async def snooze(self, request: Request, id: str, body: SnoozeRequest) -> Settled:
        """End an attempt and run the job again later. This counts neither as a failure nor as a crash."""
        return await self._settle(request, id, body.fence, Snooze(delay=checks.delay(body.seconds)))

    async def settle(self, request: Request, body: SettleRequest) -> SettleResponse:
        """Report how several attempts ended. Each has a result of its own."""
        checked: list[Settle | IngotError] = []
        slice_end = time.perf_counter() + SLICE_SECONDS
        for entry in body.jobs:
            if time.perf_counter() >= slice_end:
                await next_slice()
                slice_end = time.perf_counter() + SLICE_SECONDS
            checked.append(await self._check_entry(request, entry))
        settles = [settle for settle in checked if isinstance(settle, Settle)]
        settled = [
            await hide_other_types(self._jobs, request, settle.job_id, outcome)
            if isinstance(outcome, LeaseLost)
            else outcome
            for settle, outcome in zip(settles, await self._jobs.settle_many(settles), strict=True)
        ]
        outcomes = iter(settled)
        results = [next(outcomes) if isinstance(one, Settle) else one for one in checked]
        return SettleResponse(jobs=await map_in_slices(_settle_result, [*zip(body.jobs, results, strict=True)]))

    async def _check_entry(self, request: Request, entry: AnySettleEntry) -> Settle | IngotError:
        try:
            await require_job_access(self._jobs, request, entry.id)
            outcome = _outcome_of(entry)
        except IngotError as error:
            return error
        return Settle(
            job_id=entry.id,
            fence=entry.fence,
            outcome=outcome,
            tenant=tenant_scope(request),
            worker=worker_scope(request),
        )

    async def _settle(self, request: Request, job_id: str, fence: int, outcome: Outcome) -> Settled:
        await require_job_access(self._jobs, request, job_id)
        try:
            return await self._jobs.settle(
                job_id, fence, outcome, tenant=tenant_scope(request), worker=worker_scope(request)
            )
        except LeaseLost as error:
            raise await hide_other_types(self._jobs, request, job_id, error) from None


async def require_job_access(jobs: Jobs, request: Request, job_id: str) -> None:
    """Check that the caller may run jobs of this type. Raises `JobNotFound`.

    Worker credentials need no check here, because the engine only accepts attempts that they claimed themselves.
    """
    if worker_scope(request) is not None or request.caller.may("workers.run"):
        return
    job = await jobs.get(request.tenant, job_id)
    try:
        require_runnable_type(request, job.type)
    except Forbidden:
        raise _job_not_found(job_id) from None


async def hide_other_types(jobs: Jobs, request: Request, job_id: str, error: LeaseLost) -> IngotError:
    """Return the error that a caller may see: jobs of types that its worker credential does not run do not exist."""
    if not request.caller.types or request.caller.tenant is None:
        return error
    job = await jobs.get(request.caller.tenant, job_id)
    return error if job.type in request.caller.types else _job_not_found(job_id)


def _job_not_found(job_id: str) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")


async def worker_id_of(authenticator: Authenticator, request: Request, requested_id: str | None) -> str:
    """Return the ID of the worker that sends a request.

    A worker credential can use its own ID, optionally with an instance name. A token can use any ID that belongs to no
    credential or database role. Raises `Forbidden` for other IDs.
    """
    if request.caller.kind != "worker":
        if requested_id is not None and await authenticator.is_worker_name_taken(requested_id):
            raise Forbidden(
                f"{requested_id[:64]} is the ID of a worker credential or role", hint="Choose another worker ID."
            )
        return requested_id or request.caller.principal
    own_id = request.headers.get("x-worker-id") or request.caller.id
    if requested_id is not None and requested_id != own_id and requested_id.partition("/")[0] != request.caller.id:
        raise Forbidden(
            f"the credential {request.caller.id} cannot be used for the worker {requested_id[:64]}",
            hint=f"Use the worker ID {request.caller.id}, or {request.caller.id}/ followed by an instance name.",
        )
    return requested_id or own_id


def tenant_scope(request: Request) -> str | None:
    """Return the tenant whose jobs the caller runs, or `None` for all tenants."""
    return request.caller.tenant if request.caller.kind == "worker" else request.tenant


def worker_scope(request: Request) -> str | None:
    """Return the worker credential whose attempts the caller may change, or `None` for all attempts."""
    return request.caller.id if request.caller.kind == "worker" else None


def require_runnable_type(request: Request, type: str) -> None:
    """Raise `Forbidden` for a job type that the caller may not run."""
    if request.caller.types and type not in request.caller.types:
        raise Forbidden(
            f"the worker credential may not run jobs of the type {type[:64]}",
            hint=f"The credential {request.caller.id} runs {', '.join(request.caller.types[:TYPES_SHOWN_MAX])}.",
        )
    request.require("workers.run", f"jobs/{type}")


def _encode_claim(claim: Claim) -> msgspec.Raw:
    """Return a claimed job as JSON with the additional field `timeout_seconds`."""
    return msgspec.Raw(b'%s,"timeout_seconds":%s}' % (_encode(claim.job)[:-1], _encode(claim.timeout_seconds)))


def _done_outcome(body: CompleteRequest | AttemptSucceeded) -> Done:
    result = bytes(body.result)
    outputs = checks.outputs(body.outputs) if body.outputs else ()
    return Done(result=checks.result(result) if result else None, outputs=outputs)


def _failed_outcome(body: FailRequest | AttemptFailed) -> Failed:
    return Failed(
        error=checks.error_text(body.error), retry=body.retry, exit_code=body.exit_code, timed_out=body.timed_out
    )


def _outcome_of(entry: AnySettleEntry) -> Outcome:
    match entry:
        case AttemptSucceeded():
            return _done_outcome(entry)
        case AttemptFailed():
            return _failed_outcome(entry)
        case AttemptSnoozed():
            return Snooze(delay=checks.delay(entry.seconds))
        case AttemptReleased():
            return Release()


def _settle_result(entry_and_outcome: tuple[AnySettleEntry, Settled | IngotError]) -> SettleResult:
    entry, outcome = entry_and_outcome
    if isinstance(outcome, IngotError):
        return SettleResult(id=entry.id, code=outcome.code, detail=outcome.detail)
    return SettleResult(
        id=entry.id,
        status=outcome.status,
        attempts=outcome.attempts,
        will_retry=outcome.will_retry,
        run_at=outcome.run_at,
    )
