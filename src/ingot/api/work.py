"""Routes of those who do the work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from ingot.http.call import Answer, Call
from ingot.http.table import Granted, Route, routes_of
from ingot.identity.access import Access
from ingot.identity.credentials import Forbidden
from ingot.jobs import checks
from ingot.jobs.errors import JobNotFound
from ingot.jobs.model import Claim, Done, Failed, Heartbeat, Job, Outcome, Release, Settle, Settled, Snooze
from ingot.jobs.service import Jobs
from ingot.kernel.errors import IngotError
from ingot.wire.jobs import (
    Beat,
    Broke,
    Claimed,
    ClaimRequest,
    Completion,
    Failure,
    Fenced,
    Released,
    SettleAnswer,
    SettleAnswers,
    SettleRequest,
    Snoozed,
    Snoozing,
    Succeeded,
)

Ending = Succeeded | Broke | Snoozed | Released

SETTLE_BODY_BYTES_MAX = 64 * 1024 * 1024
TYPES_SHOWN_MAX = 20
_encode = msgspec.json.Encoder().encode


class WorkApi:
    """Claiming, renewing and settling over HTTP."""

    def __init__(self, jobs: Jobs, access: Access) -> None:
        self._jobs = jobs
        self._access = access

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

    async def claim(self, call: Call, body: ClaimRequest) -> Answer[Claimed | None]:
        """Lease due jobs; with none due, wait for some."""
        for type in body.types:
            expect_type(call, type)
        claims = await self._jobs.claim(
            await worker_id_of(self._access, call, body.worker_id),
            body.types,
            limit=body.limit,
            wait_seconds=body.wait_seconds,
            tenant=tenant_of(call),
            host=body.host,
            pid=body.pid,
        )
        call.undo = partial(self._give_back, claims)
        return Answer(Claimed(jobs=[_with_timeout(claim) for claim in claims])) if claims else Answer(None, 204)

    async def _give_back(self, claims: Sequence[Claim]) -> None:
        """The answer cannot be sent: nobody knows of these claims."""
        settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release()) for claim in claims]
        await self._jobs.settle_many(settles)

    async def heartbeat(self, call: Call, id: str, body: Beat) -> Heartbeat:
        """Renew the lease of a job, and tell how far it is."""
        await expect_own(self._jobs, call, id)
        whose: dict[str, str | None] = {"tenant": tenant_of(call), "worker": worker_of(call)}
        renewed = await self._jobs.heartbeat(id, body.fence, progress=body.progress, **whose)
        if body.log:
            await self._jobs.append_log(id, body.fence, body.log, offset=body.log_offset, **whose)
        return renewed

    async def complete(self, call: Call, id: str, body: Completion) -> Job:
        """The work is done."""
        settled = await self._settle(call, id, body.fence, _done(body))
        return await self._jobs.get(settled.tenant, settled.job_id)

    async def fail(self, call: Call, id: str, body: Failure) -> Settled:
        """The work failed; it is tried again later, unless told otherwise or its attempts are used up."""
        return await self._settle(call, id, body.fence, _failed(body))

    async def release(self, call: Call, id: str, body: Fenced) -> Settled:
        """Give a job back unfinished; counts against nothing."""
        return await self._settle(call, id, body.fence, Release())

    async def snooze(self, call: Call, id: str, body: Snoozing) -> Settled:
        """Not now: try again later; counts against nothing."""
        return await self._settle(call, id, body.fence, Snooze(delay=checks.delay(body.seconds)))

    async def settle(self, call: Call, body: SettleRequest) -> SettleAnswers:
        """Tell how each of several attempts ended; each has its own answer."""
        checked = [await self._checked(call, entry) for entry in body.jobs]
        answers = iter(await self._jobs.settle_many([one for one in checked if isinstance(one, Settle)]))
        return SettleAnswers(
            jobs=[
                _told(entry.id, next(answers) if isinstance(one, Settle) else one)
                for entry, one in zip(body.jobs, checked, strict=True)
            ]
        )

    async def _checked(self, call: Call, entry: Ending) -> Settle | IngotError:
        try:
            await expect_own(self._jobs, call, entry.id)
            outcome = _outcome(entry)
        except IngotError as error:
            return error
        return Settle(
            job_id=entry.id, fence=entry.fence, outcome=outcome, tenant=tenant_of(call), worker=worker_of(call)
        )

    async def _settle(self, call: Call, job_id: str, fence: int, outcome: Outcome) -> Settled:
        await expect_own(self._jobs, call, job_id)
        return await self._jobs.settle(job_id, fence, outcome, tenant=tenant_of(call), worker=worker_of(call))


async def expect_own(jobs: Jobs, call: Call, job_id: str) -> None:
    """A token for some types has nothing to do with jobs of others. A worker only ends what it claimed itself."""
    if worker_of(call) is not None or call.caller.may("workers.run"):
        return
    job = await jobs.get(call.tenant, job_id)
    try:
        expect_type(call, job.type)
    except Forbidden:
        raise JobNotFound(f"there is no job {job_id[:64]!r} for this worker") from None


async def worker_id_of(access: Access, call: Call, named: str | None) -> str:
    """The id of the worker that calls: one of the credential's, or for a token any that is nobody's.

    Raises `Forbidden`.
    """
    if call.caller.kind != "worker":
        if named is not None and await access.is_taken(named):
            raise Forbidden(f"{named[:64]} is the id of a worker credential or role", hint="Choose another worker id.")
        return named or call.caller.name
    own = call.headers.get("x-worker-id") or call.caller.id
    if named is not None and named != own and named.partition("/")[0] != call.caller.id:
        raise Forbidden(
            f"the credential is that of {call.caller.id}, not of {named[:64]}",
            hint=f"Its workers are called {call.caller.id}, or {call.caller.id}/ and a name of their own.",
        )
    return named or own


def tenant_of(call: Call) -> str | None:
    """Whose jobs the caller works on; `None` is everybody's."""
    return call.caller.tenant if call.caller.kind == "worker" else call.tenant


def worker_of(call: Call) -> str | None:
    """Whose attempts the caller may speak of: those of its own credential; `None` is everybody's."""
    return call.caller.id if call.caller.kind == "worker" else None


def expect_type(call: Call, type: str) -> None:
    """Raises `Forbidden` for a type that the caller does not run."""
    if call.caller.types and type not in call.caller.types:
        raise Forbidden(
            f"the worker does not run jobs of the type {type[:64]}",
            hint=f"The credential {call.caller.id} runs {', '.join(call.caller.types[:TYPES_SHOWN_MAX])}.",
        )
    call.expect("workers.run", f"jobs/{type}")


def _with_timeout(claim: Claim) -> msgspec.Raw:
    """A job as JSON, and behind it how long it may take."""
    return msgspec.Raw(b'%s,"timeout_seconds":%s}' % (_encode(claim.job)[:-1], _encode(claim.timeout_seconds)))


def _done(said: Completion | Succeeded) -> Done:
    text = bytes(said.result)
    outputs = checks.outputs(said.outputs) if said.outputs else ()
    return Done(result=checks.result(text) if text else None, outputs=outputs)


def _failed(said: Failure | Broke) -> Failed:
    return Failed(error=checks.error_text(said.error), retry=said.retry, exit_code=said.exit_code)


def _outcome(entry: Ending) -> Outcome:
    match entry:
        case Succeeded():
            return _done(entry)
        case Broke():
            return _failed(entry)
        case Snoozed():
            return Snooze(delay=checks.delay(entry.seconds))
        case Released():
            return Release()


def _told(job_id: str, answer: Settled | IngotError) -> SettleAnswer:
    if isinstance(answer, IngotError):
        return SettleAnswer(id=job_id, code=answer.code, detail=answer.detail)
    return SettleAnswer(
        id=job_id,
        status=answer.status,
        attempts=answer.attempts,
        will_retry=answer.will_retry,
        run_at=answer.run_at,
    )
