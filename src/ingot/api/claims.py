"""Routes of those who do the work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from ingot.http.request import Request, Response
from ingot.http.routes import Granted, Route, routes_of
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Forbidden
from ingot.jobs import checks
from ingot.jobs.errors import JobNotFound
from ingot.jobs.model import Claim, Done, Failed, Heartbeat, Job, Outcome, Release, Settle, Settled, Snooze
from ingot.jobs.service import Jobs
from ingot.kernel.errors import IngotError
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
TYPES_SHOWN_MAX = 20
_encode = msgspec.json.Encoder().encode


class ClaimsApi:
    """Claiming, renewing and settling over HTTP."""

    def __init__(self, jobs: Jobs, access: Authenticator) -> None:
        self._jobs = jobs
        self._authenticator = access

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("work", needs=Granted("workers.run"))
        return [
            route("POST", "/jobs/claim", self.claim, other_statuses=(204,), rate="wait", waits=True),
            route("POST", "/jobs/settle", self.settle, body_bytes_max=SETTLE_BODY_BYTES_MAX),
            route("POST", "/jobs/{id}/heartbeat", self.heartbeat),
            route("POST", "/jobs/{id}/complete", self.complete),
            route("POST", "/jobs/{id}/fail", self.fail),
            route("POST", "/jobs/{id}/release", self.release),
            route("POST", "/jobs/{id}/snooze", self.snooze),
        ]

    async def claim(self, call: Request, body: ClaimRequest) -> Response[ClaimResponse | None]:
        """Lease due jobs; with none due, wait for some."""
        for type in body.types:
            require_runnable_type(call, type)
        claims = await self._jobs.claim(
            await worker_id_of(self._authenticator, call, body.worker_id),
            body.types,
            limit=body.limit,
            wait_seconds=body.wait_seconds,
            tenant=tenant_scope(call),
            host=body.host,
            pid=body.pid,
        )
        call.undo = partial(self._release_claims, claims)
        return (
            Response(ClaimResponse(jobs=[_encode_claim(claim) for claim in claims])) if claims else Response(None, 204)
        )

    async def _release_claims(self, claims: Sequence[Claim]) -> None:
        """The answer cannot be sent: nobody knows of these claims."""
        settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release()) for claim in claims]
        await self._jobs.settle_many(settles)

    async def heartbeat(self, call: Request, id: str, body: HeartbeatRequest) -> Heartbeat:
        """Renew the lease of a job, and tell how far it is."""
        await require_job_access(self._jobs, call, id)
        whose: dict[str, str | None] = {"tenant": tenant_scope(call), "worker": worker_scope(call)}
        renewed = await self._jobs.heartbeat(id, body.fence, progress=body.progress, **whose)
        if body.log:
            await self._jobs.append_log(id, body.fence, body.log, offset=body.log_offset, **whose)
        return renewed

    async def complete(self, call: Request, id: str, body: CompleteRequest) -> Job:
        """The work is done."""
        settled = await self._settle(call, id, body.fence, _done_outcome(body))
        return await self._jobs.get(settled.tenant, settled.job_id)

    async def fail(self, call: Request, id: str, body: FailRequest) -> Settled:
        """The work failed; it is tried again later, unless told otherwise or its attempts are used up."""
        return await self._settle(call, id, body.fence, _failed_outcome(body))

    async def release(self, call: Request, id: str, body: ReleaseRequest) -> Settled:
        """Give a job back unfinished; counts against nothing."""
        return await self._settle(call, id, body.fence, Release())

    async def snooze(self, call: Request, id: str, body: SnoozeRequest) -> Settled:
        """Not now: try again later; counts against nothing."""
        return await self._settle(call, id, body.fence, Snooze(delay=checks.delay(body.seconds)))

    async def settle(self, call: Request, body: SettleRequest) -> SettleResponse:
        """Tell how each of several attempts ended; each has its own answer."""
        checked = [await self._check_entry(call, entry) for entry in body.jobs]
        answers = iter(await self._jobs.settle_many([one for one in checked if isinstance(one, Settle)]))
        return SettleResponse(
            jobs=[
                _settle_result(entry.id, next(answers) if isinstance(one, Settle) else one)
                for entry, one in zip(body.jobs, checked, strict=True)
            ]
        )

    async def _check_entry(self, call: Request, entry: AnySettleEntry) -> Settle | IngotError:
        try:
            await require_job_access(self._jobs, call, entry.id)
            outcome = _outcome_of(entry)
        except IngotError as error:
            return error
        return Settle(
            job_id=entry.id, fence=entry.fence, outcome=outcome, tenant=tenant_scope(call), worker=worker_scope(call)
        )

    async def _settle(self, call: Request, job_id: str, fence: int, outcome: Outcome) -> Settled:
        await require_job_access(self._jobs, call, job_id)
        return await self._jobs.settle(job_id, fence, outcome, tenant=tenant_scope(call), worker=worker_scope(call))


async def require_job_access(jobs: Jobs, call: Request, job_id: str) -> None:
    """A token for some types has nothing to do with jobs of others. A worker only ends what it claimed itself."""
    if worker_scope(call) is not None or call.caller.may("workers.run"):
        return
    job = await jobs.get(call.tenant, job_id)
    try:
        require_runnable_type(call, job.type)
    except Forbidden:
        raise JobNotFound(f"there is no job {job_id[:64]!r} for this worker") from None


async def worker_id_of(access: Authenticator, call: Request, named: str | None) -> str:
    """The id of the worker that calls: one of the credential's, or for a token any that is nobody's.

    Raises `Forbidden`.
    """
    if call.caller.kind != "worker":
        if named is not None and await access.is_worker_name_taken(named):
            raise Forbidden(f"{named[:64]} is the id of a worker credential or role", hint="Choose another worker id.")
        return named or call.caller.principal
    own = call.headers.get("x-worker-id") or call.caller.id
    if named is not None and named != own and named.partition("/")[0] != call.caller.id:
        raise Forbidden(
            f"the credential is that of {call.caller.id}, not of {named[:64]}",
            hint=f"Its workers are called {call.caller.id}, or {call.caller.id}/ and a name of their own.",
        )
    return named or own


def tenant_scope(call: Request) -> str | None:
    """Whose jobs the caller works on; `None` is everybody's."""
    return call.caller.tenant if call.caller.kind == "worker" else call.tenant


def worker_scope(call: Request) -> str | None:
    """Whose attempts the caller may speak of: those of its own credential; `None` is everybody's."""
    return call.caller.id if call.caller.kind == "worker" else None


def require_runnable_type(call: Request, type: str) -> None:
    """Raises `Forbidden` for a type that the caller does not run."""
    if call.caller.types and type not in call.caller.types:
        raise Forbidden(
            f"the worker does not run jobs of the type {type[:64]}",
            hint=f"The credential {call.caller.id} runs {', '.join(call.caller.types[:TYPES_SHOWN_MAX])}.",
        )
    call.require("workers.run", f"jobs/{type}")


def _encode_claim(claim: Claim) -> msgspec.Raw:
    """A job as JSON, and behind it how long it may take."""
    return msgspec.Raw(b'%s,"timeout_seconds":%s}' % (_encode(claim.job)[:-1], _encode(claim.timeout_seconds)))


def _done_outcome(said: CompleteRequest | AttemptSucceeded) -> Done:
    text = bytes(said.result)
    outputs = checks.outputs(said.outputs) if said.outputs else ()
    return Done(result=checks.result(text) if text else None, outputs=outputs)


def _failed_outcome(said: FailRequest | AttemptFailed) -> Failed:
    return Failed(error=checks.error_text(said.error), retry=said.retry, exit_code=said.exit_code)


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


def _settle_result(job_id: str, answer: Settled | IngotError) -> SettleResult:
    if isinstance(answer, IngotError):
        return SettleResult(id=job_id, code=answer.code, detail=answer.detail)
    return SettleResult(
        id=job_id,
        status=answer.status,
        attempts=answer.attempts,
        will_retry=answer.will_retry,
        run_at=answer.run_at,
    )
