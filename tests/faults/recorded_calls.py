"""The operations of the jobs room, recorded before each call and when it returns.

Everything that a call writes contains the number of the call, so that each row can be traced to its call: a job by its
correlation ID, an attempt by its worker, an outcome by its result or error, progress by its stage.
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
    # One worker runs these jobs in order, and no call cancels or changes them.
    "line": Definition(type="line", crash_cap=50, backoff=QUICK),
    # Jobs that crash their worker. They are never settled.
    "poison": Definition(type="poison", crash_cap=2, backoff=QUICK),
}
SLUGS = ("default", "other")

T = TypeVar("T")


class HeldAttempt(msgspec.Struct, frozen=True):
    """An attempt that a worker holds, or once held."""

    job_id: str
    fence: int


def attempt_of(claim: Claim) -> HeldAttempt:
    """Return the attempt of a claim."""
    return HeldAttempt(claim.job.id, claim.fence)


class RecordedJobs:
    """The jobs room of one store. A call that raises an error returns `None`."""

    def __init__(self, store: SQLiteStore, recorder: Recorder, *, lease_seconds: float) -> None:
        self.jobs = Jobs(store, lease_seconds=lease_seconds)
        self.recorder = recorder
        self.tenants: list[str] = []
        self._store = store

    async def prepare(self) -> None:
        """Create the tenants and definitions that are missing, and record the IDs of the tenants."""
        tenants = Tenants(self._store)
        for slug in SLUGS:
            try:
                tenant = await tenants.create(slug)
            except TenantExists:
                tenant = await tenants.get(slug)
            self.recorder.note("tenant", [slug, tenant.id])
            self.tenants.append(tenant.id)
        existing = {definition.type for definition in await self.jobs.definitions()}
        for type, definition in DEFINITIONS.items():
            if type not in existing:
                await self.jobs.define(definition)

    async def _call(
        self, verb: str, number: str, arguments: dict[str, Any], work: Awaitable[T], to_answer: Callable[[T], Any]
    ) -> T | None:
        self.recorder.invoke(number, verb, arguments)
        try:
            result = await work
        except OutcomeUnknown as error:
            self.recorder.info(number, error.code)
        except IngotError as error:
            self.recorder.fail(number, error.code)
        else:
            self.recorder.ok(number, to_answer(result))
            return result
        return None

    # -- enqueues ------------------------------------------------------------------------------------------

    async def enqueue(self, *options: dict[str, Any], alone: bool = False) -> list[Enqueued]:
        """Enqueue jobs together. With `alone`, enqueue one with the call for one job, which creates the ID itself."""
        number = self.recorder.number()
        options = tuple(_complete(option, f"{number}/{index}") for index, option in enumerate(options))
        orders = [new_job(**option) for option in options]
        arguments = [_order_arguments(order) | ({"id": None} if alone else {}) for order in orders]
        work = self._enqueue_one(options[0]) if alone else self.jobs.enqueue_many(orders)
        return await self._call("enqueue", number, {"orders": arguments}, work, _enqueued_answer) or []

    async def _enqueue_one(self, option: dict[str, Any]) -> list[Enqueued]:
        return [await self.jobs.enqueue(**option)]

    # -- attempts -------------------------------------------------------------------------------------------

    async def claim(self, *types: str, limit: int = 1, tenant: str | None = None, wait: float = 0) -> list[Claim]:
        """Claim jobs with the number of the call as the worker ID."""
        number = self.recorder.number()
        arguments = {"types": list(types), "limit": limit, "tenant": tenant}
        work = self.jobs.claim(number, types, limit=limit, tenant=tenant, wait_seconds=wait)
        return await self._call("claim", number, arguments, work, _claims_answer) or []

    async def beat(self, attempt: HeldAttempt, percent: float = 50.0) -> Heartbeat | None:
        """Renew a lease, and report progress with the number of the call as its stage."""
        number = self.recorder.number()
        work = self.jobs.heartbeat(attempt.job_id, attempt.fence, progress=Progress(percent=percent, stage=number))
        arguments = {"id": attempt.job_id, "fence": attempt.fence}
        return await self._call("heartbeat", number, arguments, work, lambda beat: beat.cancel_requested)

    async def settle(self, attempt: HeldAttempt, outcome: Callable[[str], Outcome]) -> Outcome:
        """Settle an attempt with an outcome that contains the number of the call, and return the outcome."""
        number = self.recorder.number()
        settled_outcome = outcome(number)
        work = self.jobs.settle(attempt.job_id, attempt.fence, settled_outcome)
        await self._call("settle", number, _settle_arguments(attempt, settled_outcome), work, _settled_answer)
        return settled_outcome

    async def settle_many(self, attempts: list[HeldAttempt], outcome: Callable[[str], Outcome]) -> None:
        """Settle attempts together. Each is a call of its own in the history."""
        settles: dict[str, Settle] = {}
        for attempt in attempts:
            number = self.recorder.number()
            settles[number] = Settle(job_id=attempt.job_id, fence=attempt.fence, outcome=outcome(number))
            self.recorder.invoke(number, "settle", _settle_arguments(attempt, settles[number].outcome))
        try:
            answers = await self.jobs.settle_many(settles.values())
        except IngotError as error:
            answers = [error] * len(settles)
        for number, answer in zip(settles, answers, strict=True):
            match answer:
                case Settled():
                    self.recorder.ok(number, _settled_answer(answer))
                case OutcomeUnknown():
                    self.recorder.info(number, answer.code)
                case _:
                    self.recorder.fail(number, answer.code)

    # -- other changes --------------------------------------------------------------------------------------

    async def cancel(self, tenant: str, job_id: str) -> Job | None:
        """Cancel a job."""
        arguments = {"tenant": tenant, "id": job_id}
        return await self._call(
            "cancel", self.recorder.number(), arguments, self.jobs.cancel(tenant, job_id), _job_answer
        )

    async def retry(self, tenant: str, job_id: str, *, reset: bool = False, run_at: int | None = None) -> Job | None:
        """Retry a job."""
        run_time = None if run_at is None else to_datetime(run_at)
        arguments = {"tenant": tenant, "id": job_id, "reset": reset}
        work = self.jobs.retry(tenant, job_id, reset_attempts=reset, run_at=run_time)
        return await self._call("retry", self.recorder.number(), arguments, work, _job_answer)

    async def change(self, tenant: str, job_id: str, *, priority: int | None, run_at: int) -> Job | None:
        """Reschedule a job, and tag it with the number of the call."""
        number = self.recorder.number()
        arguments = {"tenant": tenant, "id": job_id, "tag": number}
        work = self.jobs.reschedule(tenant, job_id, priority=priority, run_at=to_datetime(run_at), tags=[number])
        return await self._call("change", number, arguments, work, _job_answer)


def done(number: str) -> Done:
    """Return a successful outcome whose result contains the number of the call."""
    return Done(result=msgspec.json.encode({"by": number}))


def _complete(option: dict[str, Any], mark: str) -> dict[str, Any]:
    return {"payload": {"mark": mark}} | option | {"correlation_id": mark}


def _order_arguments(order: NewJob) -> dict[str, Any]:
    return {
        "id": order.id,
        "tenant": order.tenant,
        "type": order.type,
        "mark": order.correlation_id,
        "payload": order.payload.decode(),
        "idempotency_key": order.idempotency_key,
        "dedupe_key": order.dedupe_key,
    }


def _enqueued_answer(enqueued: list[Enqueued]) -> list[list[Any]]:
    return [[each.job.id, each.created] for each in enqueued]


def _claims_answer(claims: list[Claim]) -> list[list[Any]]:
    return [[claim.job.id, claim.fence, claim.job.attempts] for claim in claims]


def _settle_arguments(attempt: HeldAttempt, outcome: Outcome) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "id": attempt.job_id,
        "fence": attempt.fence,
        "text": None,
        "delay": None,
        "retry": True,
    }
    match outcome:
        case Done(result=result):
            return arguments | {"outcome": "succeeded", "text": None if result is None else result.decode()}
        case Failed(error=error, retry=retry):
            return arguments | {"outcome": "failed", "text": error, "retry": retry}
        case Snooze(delay=delay):
            return arguments | {"outcome": "snoozed", "delay": delay}
        case _:
            return arguments | {"outcome": "released"}


def _settled_answer(settled: Settled) -> dict[str, Any]:
    run_at = None if settled.run_at is None else to_micros(settled.run_at)
    return {"status": settled.status, "attempts": settled.attempts, "run_at": run_at}


def _job_answer(job: Job) -> dict[str, Any]:
    return {"status": job.status, "fence": job.fence, "cancel_requested": job.cancel_requested}
