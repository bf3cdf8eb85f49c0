"""Every verb of the jobs room, recorded before it is called and when it is answered.

Everything a call writes carries the number of the call, so that each row can be traced to the one call that made it:
a job by its correlation id, an attempt by its worker, an outcome by its result or error, progress by its stage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from ingot.engines.sqlite import SQLiteStore
from ingot.identity import Tenants
from ingot.identity.model import TenantExists
from ingot.jobs import (
    Backoff,
    Claim,
    Definition,
    Done,
    Enqueued,
    Failed,
    Heartbeat,
    Job,
    Jobs,
    NewJob,
    Outcome,
    Progress,
    Settle,
    Settled,
    Snooze,
)
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import to_datetime, to_micros
from ingot.kernel.errors import IngotError, OutcomeUnknown
from tests.faults.history import Recorder

QUICK = Backoff(first_seconds=0.02, factor=2.0, max_seconds=0.3)
DEFINITIONS = {
    "plain": Definition(type="plain", max_attempts=4, backoff=QUICK),
    "flaky": Definition(type="flaky", max_attempts=2, crash_cap=1, priority=2, backoff=QUICK),
    # Served in order by one worker, and never steered from outside.
    "line": Definition(type="line", crash_cap=50, backoff=QUICK),
    # Kills whoever claims it: nobody ever settles one.
    "poison": Definition(type="poison", crash_cap=2, backoff=QUICK),
}
SLUGS = ("default", "other")

T = TypeVar("T")


class Held(msgspec.Struct, frozen=True):
    """An attempt somebody holds, or once held."""

    job_id: str
    fence: int


def held_by(claim: Claim) -> Held:
    """The attempt that a claim gave out."""
    return Held(claim.job.id, claim.fence)


class RecordedJobs:
    """The jobs room of one store. A call that is answered with an error answers `None` here."""

    def __init__(self, store: SQLiteStore, recorder: Recorder, *, lease_seconds: float) -> None:
        self.jobs = Jobs(store, lease_seconds=lease_seconds)
        self.recorder = recorder
        self.tenants: list[str] = []
        self._store = store

    async def prepare(self) -> None:
        """Make the tenants and the definitions, when they are missing, and tell their ids."""
        tenants = Tenants(self._store)
        for slug in SLUGS:
            try:
                tenant = await tenants.create(slug)
            except TenantExists:
                tenant = await tenants.get(slug)
            self.recorder.note("tenant", [slug, tenant.id])
            self.tenants.append(tenant.id)
        known = {definition.type for definition in await self.jobs.definitions()}
        for type, definition in DEFINITIONS.items():
            if type not in known:
                await self.jobs.define(definition)

    async def _call(
        self, verb: str, number: str, asked: dict[str, Any], work: Awaitable[T], say: Callable[[T], Any]
    ) -> T | None:
        self.recorder.invoke(number, verb, asked)
        try:
            result = await work
        except OutcomeUnknown as error:
            self.recorder.info(number, error.code)
        except IngotError as error:
            self.recorder.fail(number, error.code)
        else:
            self.recorder.ok(number, say(result))
            return result
        return None

    # -- asking for work ------------------------------------------------------------------------------------

    async def enqueue(self, *wishes: dict[str, Any], alone: bool = False) -> list[Enqueued]:
        """Enqueue jobs together, or one with the call for one, which makes the id itself."""
        number = self.recorder.number()
        wishes = tuple(_complete(wish, f"{number}/{place}") for place, wish in enumerate(wishes))
        orders = [new_job(**wish) for wish in wishes]
        asked = [_order_asked(order) | ({"id": None} if alone else {}) for order in orders]
        work = self._enqueue_one(wishes[0]) if alone else self.jobs.enqueue_many(orders)
        return await self._call("enqueue", number, {"orders": asked}, work, _enqueued_said) or []

    async def _enqueue_one(self, wish: dict[str, Any]) -> list[Enqueued]:
        return [await self.jobs.enqueue(**wish)]

    # -- doing work -----------------------------------------------------------------------------------------

    async def claim(self, *types: str, limit: int = 1, tenant: str | None = None, wait: float = 0) -> list[Claim]:
        """Claim jobs as a worker that is named after the call."""
        number = self.recorder.number()
        asked = {"types": list(types), "limit": limit, "tenant": tenant}
        work = self.jobs.claim(number, types, limit=limit, tenant=tenant, wait_seconds=wait)
        return await self._call("claim", number, asked, work, _claims_said) or []

    async def beat(self, held: Held, percent: float = 50.0) -> Heartbeat | None:
        """Renew a lease, with progress whose stage is the number of the call."""
        number = self.recorder.number()
        work = self.jobs.heartbeat(held.job_id, held.fence, progress=Progress(percent=percent, stage=number))
        asked = {"id": held.job_id, "fence": held.fence}
        return await self._call("heartbeat", number, asked, work, lambda beat: beat.cancel_requested)

    async def settle(self, held: Held, outcome: Callable[[str], Outcome]) -> Outcome:
        """Settle an attempt with an outcome made for the number of the call; answers what was said."""
        number = self.recorder.number()
        said = outcome(number)
        work = self.jobs.settle(held.job_id, held.fence, said)
        await self._call("settle", number, _settle_asked(held, said), work, _settled_said)
        return said

    async def settle_many(self, attempts: list[Held], outcome: Callable[[str], Outcome]) -> None:
        """Settle attempts together; each is a call of its own in the history."""
        settles: dict[str, Settle] = {}
        for held in attempts:
            number = self.recorder.number()
            settles[number] = Settle(job_id=held.job_id, fence=held.fence, outcome=outcome(number))
            self.recorder.invoke(number, "settle", _settle_asked(held, settles[number].outcome))
        try:
            answers = await self.jobs.settle_many(settles.values())
        except IngotError as error:
            answers = [error] * len(settles)
        for number, answer in zip(settles, answers, strict=True):
            match answer:
                case Settled():
                    self.recorder.ok(number, _settled_said(answer))
                case OutcomeUnknown():
                    self.recorder.info(number, answer.code)
                case _:
                    self.recorder.fail(number, answer.code)

    # -- steering work --------------------------------------------------------------------------------------

    async def cancel(self, tenant: str, job_id: str) -> Job | None:
        """Cancel a job."""
        asked = {"tenant": tenant, "id": job_id}
        return await self._call("cancel", self.recorder.number(), asked, self.jobs.cancel(tenant, job_id), _job_said)

    async def retry(self, tenant: str, job_id: str, *, reset: bool = False, run_at: int | None = None) -> Job | None:
        """Retry a job."""
        when = None if run_at is None else to_datetime(run_at)
        asked = {"tenant": tenant, "id": job_id, "reset": reset}
        work = self.jobs.retry(tenant, job_id, reset_attempts=reset, run_at=when)
        return await self._call("retry", self.recorder.number(), asked, work, _job_said)

    async def change(self, tenant: str, job_id: str, *, priority: int | None, run_at: int) -> Job | None:
        """Reschedule a job, and tag it with the number of the call."""
        number = self.recorder.number()
        asked = {"tenant": tenant, "id": job_id, "tag": number}
        work = self.jobs.reschedule(tenant, job_id, priority=priority, run_at=to_datetime(run_at), tags=[number])
        return await self._call("change", number, asked, work, _job_said)


def done(number: str) -> Done:
    """An outcome that names the call it came with."""
    return Done(result=msgspec.json.encode({"by": number}))


def _complete(wish: dict[str, Any], mark: str) -> dict[str, Any]:
    return {"payload": {"mark": mark}} | wish | {"correlation_id": mark}


def _order_asked(order: NewJob) -> dict[str, Any]:
    return {
        "id": order.id,
        "tenant": order.tenant,
        "type": order.type,
        "mark": order.correlation_id,
        "payload": order.payload.decode(),
        "idempotency_key": order.idempotency_key,
        "dedupe_key": order.dedupe_key,
    }


def _enqueued_said(enqueued: list[Enqueued]) -> list[list[Any]]:
    return [[each.job.id, each.created] for each in enqueued]


def _claims_said(claims: list[Claim]) -> list[list[Any]]:
    return [[claim.job.id, claim.fence, claim.job.attempts] for claim in claims]


def _settle_asked(held: Held, outcome: Outcome) -> dict[str, Any]:
    asked: dict[str, Any] = {"id": held.job_id, "fence": held.fence, "text": None, "delay": None, "retry": True}
    match outcome:
        case Done(result=result):
            return asked | {"said": "succeeded", "text": None if result is None else result.decode()}
        case Failed(error=error, retry=retry):
            return asked | {"said": "failed", "text": error, "retry": retry}
        case Snooze(delay=delay):
            return asked | {"said": "snoozed", "delay": delay}
        case _:
            return asked | {"said": "released"}


def _settled_said(settled: Settled) -> dict[str, Any]:
    run_at = None if settled.run_at is None else to_micros(settled.run_at)
    return {"status": settled.status, "attempts": settled.attempts, "run_at": run_at}


def _job_said(job: Job) -> dict[str, Any]:
    return {"status": job.status, "fence": job.fence, "cancel_requested": job.cancel_requested}
