"""A store and its model side by side: every call goes to both, and their answers must be equal."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ingot.blobs.ports import PutBlob
from ingot.engines.postgres import PostgresStore
from ingot.engines.sqlite.store_folder import AHEAD_MICROS_MAX
from ingot.identity import Limits, Tenants
from ingot.jobs import (
    Claim,
    Definition,
    Enqueued,
    Heartbeat,
    Outcome,
    Pause,
    Progress,
    Settle,
    Settled,
    Snooze,
)
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import MICROS, to_datetime, to_datetime_or_none, to_micros
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests import event_loop
from tests.conformance.blob_fixture import content_of
from tests.conformance.machines.inspection import Inspection
from tests.conformance.machines.job_model import Draft, Record
from tests.conformance.machines.model import How, Model
from tests.conformance.machines.strategies import INPUTS
from tests.factories import LEASE_SECONDS, Bench, open_store
from tests.postgres import ChanceClock

T = TypeVar("T")


class World:
    """One store in a folder of its own, beside the model of it."""

    def __init__(self, engine: str, tenants: Sequence[str]) -> None:
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-machine-")
        self.clock = ChanceClock()
        self.model = Model(lease=round(LEASE_SECONDS * MICROS))
        self.claims: list[tuple[str, int]] = []
        self._reopened = 0
        self.run(self._open(tenants))
        self.inspection = Inspection(self.model)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a call."""
        return event_loop.run(call)

    def close(self) -> None:
        """Let everything go."""
        try:
            self.run(self.bench.store.close())
        finally:
            self._folder.cleanup()

    async def _open(self, slugs: Sequence[str]) -> None:
        store = await open_store(self._engine, Path(self._folder.name) / "data", self.clock)
        self.model.opened(self.clock.micros())
        self.command()
        self.bench = Bench(store, self.clock, await Tenants(store).ensure_default())
        self.tenants = [(await self.bench.tenants.create(slug)).id for slug in slugs]
        self.model.tenants |= {self.bench.tenant, *self.tenants}
        for tenant in self.model.tenants:
            for data in INPUTS:
                put = PutBlob(id=new_id(), tenant=tenant, owner="token:x", key=data.decode(), content=content_of(data))
                await store.run(put)

    async def reopen(self, *, set_back_seconds: float) -> None:
        """Close the store and open it again, perhaps with a clock that was set back meanwhile."""
        self._reopened += 1
        await self.define(Definition(type="unused", version=self._reopened))  # A change: the store stores its time.
        await self.bench.store.close()
        if self._engine == "sqlite":  # PostgreSQL has the clock of its server, which a restart of ours does not move.
            ahead = self.model.time(self.clock.micros()) - self.clock.micros() + set_back_seconds * MICROS
            if ahead <= AHEAD_MICROS_MAX:  # Else the time of the store goes back, see `tests/faults/test_clock.py`.
                self.clock.advance(seconds=-set_back_seconds)
        store = await open_store(self._engine, Path(self._folder.name) / "data", self.clock)
        self.model.opened(self.clock.micros())
        self.bench = Bench(store, self.clock, await Tenants(store).get("default"))

    # -- time -----------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        """Let at least a second go by, so that the store may sweep again."""
        self.clock.advance(seconds=max(seconds, 1))

    def seconds_to_next_due(self) -> float:
        """How long until the next waiting job is due."""
        now = self.model.time(self.clock.micros())
        return min((job.run_at - now for job in self.model.jobs.values() if job.apart), default=0) / MICROS

    def seconds_to_next_expiry(self) -> float:
        """How long until the next lease runs out."""
        now = self.model.time(self.clock.micros())
        running = [job for job in self.model.jobs.values() if job.is_running]
        return min((job.lease_expires_at - now for job in running), default=0) / MICROS

    def command(self) -> None:
        """A command is about to be sent."""
        self.model.command(self.clock.micros())

    async def tend(self) -> None:
        """Promote and sweep."""
        self.command()
        lost = self.model.expired()
        tended = await self.bench.jobs.maintain()
        assert (tended.promoted, tended.swept) == (self.model.promote(), len(lost))
        await self._lose(lost)

    async def _lose(self, lost: Sequence[Record]) -> None:
        for job in lost:
            seen = await self.bench.jobs.get(job.tenant, job.id)
            self.model.lose(job, to_micros(seen.run_at))
        await self._follow()

    async def _follow(self) -> None:
        """What follows when jobs have ended; PostgreSQL does it beside the calls."""
        if isinstance(self.bench.store, PostgresStore):
            await self.bench.store.dependents.wait_until_idle()
        self.model.follow()

    # -- asking for work ------------------------------------------------------------------------------------

    async def enqueue(self, draft: Draft) -> None:
        """Ask for one job."""
        self.command()
        answer = await _answer(self.bench.jobs.enqueue(draft.tenant, draft.type, draft.payload, **_options(draft)))
        made = replace(draft, id=answer.job.id) if isinstance(answer, Enqueued) and answer.created else draft
        _compare(lambda: self._made([made])[0], answer)
        await self._follow()

    async def enqueue_many(self, drafts: Sequence[Draft]) -> None:
        """Ask for many jobs at once."""
        self.command()
        orders = [new_job(draft.tenant, draft.type, draft.payload, **_options(draft)) for draft in drafts]
        answer = await _answer(self.bench.jobs.enqueue_many(orders))
        made = [replace(draft, id=order.id) for draft, order in zip(drafts, orders, strict=True)]
        _compare(lambda: self._made(made), answer)
        await self._follow()

    def _made(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        return [
            Enqueued(job=job.job(), created=how is How.MADE, reused=how is How.REUSED)
            for job, how in self.model.enqueue(drafts)
        ]

    async def define(self, definition: Definition) -> None:
        """Say what jobs of a type get."""
        self.command()
        assert await self.bench.jobs.define(definition) == definition
        self.model.definitions[definition.tenant, definition.type] = definition

    async def limit(self, tenant: str, limits: Limits) -> None:
        """Say what a tenant may use."""
        self.command()
        assert (await self.bench.tenants.change(tenant, limits=limits)).limits == limits
        self.model.limits[tenant] = limits

    async def pause(self, tenant: str, type: str) -> None:
        """Hand out no more of a type."""
        self.command()
        pause = Pause(type=type, since=to_datetime(self.model.now))
        wanted = self.model.pauses.setdefault((tenant, type), pause)
        assert await self.bench.jobs.pause(tenant, type) == wanted

    async def resume(self, tenant: str, type: str) -> None:
        """Hand it out again."""
        self.command()
        await self.bench.jobs.resume(tenant, type)
        self.model.pauses.pop((tenant, type), None)

    # -- doing work -----------------------------------------------------------------------------------------

    async def claim(self, worker: str, types: Sequence[str], *, limit: int, tenant: str | None = None) -> None:
        """Take work. Inside a tenant its order is exact; whose turn it is among tenants is the store's choice."""
        self.command()
        lost = self.model.expired()
        claims = await self.bench.jobs.claim(worker, types, limit=limit, tenant=tenant)
        self.model.asked |= {(type, tenant): self.model.now for type in types}
        self.model.promote()
        await self._lose(lost)
        ready = self.model.ready(types, tenant)
        assert len(claims) == min(limit, len(ready))
        for owner in {job.tenant for job in ready}:
            got = [claim.job.id for claim in claims if claim.job.tenant == owner]
            assert got == [job.id for job in ready if job.tenant == owner][: len(got)]
        for claim in claims:
            self._start(claim, worker)
            self._check_limits(self.model.jobs[claim.job.id])

    def _check_limits(self, started: Record) -> None:
        assert (started.tenant, started.type) not in self.model.pauses
        running = self.model.running()
        for bound, most in self.model.most(started).items():
            assert most is None or running[bound] <= most

    def _start(self, claim: Claim, worker: str) -> None:
        job = self.model.jobs[claim.job.id]
        self.model.start(job, fence=claim.fence, worker=worker)
        self.claims.append((job.id, claim.fence))
        definition = self.model.definition(job.tenant, job.type)
        assert claim == Claim(
            job=job.job(),
            fence=job.fence,
            lease_expires_at=to_datetime(job.lease_expires_at),
            timeout_seconds=definition.timeout_seconds,
        )

    async def heartbeat(
        self, job_id: str, fence: int, progress: Progress | None = None, tenant: str | None = None
    ) -> None:
        """Say that the worker lives."""
        self.command()
        answer = await _answer(self.bench.jobs.heartbeat(job_id, fence, progress=progress, tenant=tenant))

        def expected() -> Heartbeat:
            job = self.model.renew(job_id, fence, progress, tenant)
            expires_at = to_datetime(job.lease_expires_at)
            return Heartbeat(job_id=job_id, lease_expires_at=expires_at, cancel_requested=job.cancel_requested)

        _compare(expected, answer)

    async def settle(self, job_id: str, fence: int, outcome: Outcome, tenant: str | None = None) -> None:
        """Say how an attempt ended."""
        if self.model.forgot(job_id, fence, outcome):
            return
        self.command()
        answer = await _answer(self.bench.jobs.settle(job_id, fence, outcome, tenant=tenant))
        settle = Settle(job_id=job_id, fence=fence, outcome=outcome, tenant=tenant)
        _compare(partial(self._settled, settle, _seen(answer)), answer)
        await self._follow()

    async def settle_many(self, settles: Sequence[Settle]) -> None:
        """Say how many attempts ended; each has its own answer."""
        settles = [one for one in settles if not self.model.forgot(one.job_id, one.fence, one.outcome)]
        snoozes = {(one.job_id, one.fence): one for one in settles if isinstance(one.outcome, Snooze)}
        settles = [  # The second of two snoozes of one attempt may be taken for the first.
            one for one in settles if not isinstance(one.outcome, Snooze) or snoozes[one.job_id, one.fence] is one
        ]
        self.command()
        answers = await self.bench.jobs.settle_many(settles)
        for settle, answer in zip(settles, answers, strict=True):
            _compare(partial(self._settled, settle, _seen(answer)), answer)
        await self._follow()

    def _settled(self, settle: Settle, seen: int | None) -> Settled:
        return self.model.settle(settle.job_id, settle.fence, settle.outcome, settle.tenant, seen)

    # -- steering work --------------------------------------------------------------------------------------

    async def cancel(self, tenant: str, job_id: str) -> None:
        """Stop a job."""
        self.command()
        answer = await _answer(self.bench.jobs.cancel(tenant, job_id))
        _compare(lambda: self.model.cancel(tenant, job_id).job(), answer)
        await self._follow()

    async def retry(
        self, tenant: str, job_id: str, *, reset: bool, priority: int | None, attempts: int | None, run_at: int | None
    ) -> None:
        """Run a finished job again."""
        self.command()
        moment = to_datetime_or_none(run_at)
        answer = await _answer(
            self.bench.jobs.retry(
                tenant, job_id, reset_attempts=reset, priority=priority, max_attempts=attempts, run_at=moment
            )
        )
        options = {"priority": priority, "attempts": attempts, "run_at": run_at}
        _compare(lambda: self.model.retry(tenant, job_id, reset=reset, **options).job(), answer)

    async def reschedule(
        self,
        tenant: str,
        job_id: str,
        *,
        priority: int | None,
        attempts: int | None,
        run_at: int | None,
        tags: Sequence[str] | None,
    ) -> None:
        """Change a waiting job."""
        self.command()
        moment = to_datetime_or_none(run_at)
        answer = await _answer(
            self.bench.jobs.reschedule(
                tenant, job_id, priority=priority, max_attempts=attempts, run_at=moment, tags=tags
            )
        )
        options = {"priority": priority, "attempts": attempts, "run_at": run_at}
        _compare(lambda: self.model.change(tenant, job_id, tags=tags, **options).job(), answer)

    # -- looking --------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Whatever can be read must be as the model has it."""
        await self.inspection.inspect(self.bench)


def _options(draft: Draft) -> dict[str, Any]:
    return {
        "priority": draft.priority,
        "run_at": to_datetime_or_none(draft.run_at),
        "max_attempts": draft.max_attempts,
        "idempotency_key": draft.idempotency_key,
        "dedupe_key": draft.dedupe_key,
        "tags": draft.tags,
        "after": draft.after,
        "on_dead": draft.on_dead,
        "batch": draft.batch,
        "inputs": dict(draft.inputs),
        "force": draft.force,
        "source": draft.source,
    }


def _seen(answer: object) -> int | None:
    if isinstance(answer, Settled) and answer.run_at is not None:
        return to_micros(answer.run_at)
    return None


async def _answer(call: Awaitable[T]) -> T | IngotError:
    try:
        return await call
    except IngotError as error:
        return error


def _compare(expected: Callable[[], object], answer: object) -> None:
    """The model's answer, or the error it raises, must be the store's."""
    wanted = _value_or_error(expected)
    if isinstance(wanted, IngotError):
        assert type(answer) is type(wanted), f"{answer!r} where the model says {wanted!r}"
        assert getattr(answer, "holder_id", None) == getattr(wanted, "holder_id", None)
    else:
        assert answer == wanted


def _value_or_error(call: Callable[[], object]) -> object:
    try:
        return call()
    except IngotError as error:
        return error
