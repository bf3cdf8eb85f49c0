"""The rules of asking why jobs do not run, and what the model says to it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from ingot.jobs import Definition, JobNotFound, JobStatus, OnDead
from ingot.jobs.explanation import CLAIM_INTERVAL_SECONDS_MAX
from ingot.kernel.clock import MICROS, to_datetime, to_datetime_or_none
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.checked_store import World
from tests.conformance.machines.job_model import Draft, Record
from tests.conformance.machines.model import Model, bounds
from tests.conformance.machines.rules import FINISHED, Machine

SCOPES = ("tenant", "type", "key")
HOLDERS_MAX = 10
WAITING = (JobStatus.BLOCKED, JobStatus.QUEUED)

Told = tuple[str, dict[str, Any]]  # The code of a reason, and its data.


def reasons(model: Model, job: Record, now: int) -> list[Told]:
    """Why a job is where it is."""
    if job.status in FINISHED:
        data: dict[str, Any] = {"finished_at": to_datetime_or_none(job.finished_at)}
        if job.status is JobStatus.CANCELED and (failed := _failed_parents(model, job)):
            data["after"] = failed
        return [("finished", data)]
    if job.is_running:
        times = {
            "started_at": to_datetime_or_none(job.started_at),
            "lease_expires_at": to_datetime(job.lease_expires_at),
        }
        return [("running", {"worker_id": job.worker_id, **times})]
    if job.status is JobStatus.BLOCKED:
        return [("waits_for", {"after": sorted(job.open)})]
    found: list[Told] = []
    if job.run_at > now:
        code = "retrying" if job.failures + job.crashes else "scheduled"
        found.append((code, {"run_at": to_datetime(job.run_at)}))
    if pause := model.pauses.get((job.tenant, job.type)):
        found.append(("paused", {"type": job.type, "since": pause.since}))
    found += _full_limits(model, job)
    asked_at = max(
        (at for (type, whose), at in model.asked.items() if type == job.type and whose in (job.tenant, None)),
        default=None,
    )
    if asked_at is None or now - asked_at > CLAIM_INTERVAL_SECONDS_MAX * MICROS:
        found.append(("no_worker", {"type": job.type, "asked_at": to_datetime_or_none(asked_at)}))
    if job.run_at <= now:
        found.append(("in_line", {"ahead": _ahead(model, job)}))
    return found


def _failed_parents(model: Model, job: Record) -> list[str]:
    """The parents because of which a job is canceled."""
    if job.on_dead is OnDead.RUN:
        return []
    failed = (JobStatus.DEAD, JobStatus.CANCELED)
    return [parent for parent in job.after if parent in model.jobs and model.jobs[parent].status in failed]


def _full_limits(model: Model, job: Record) -> list[Told]:
    found: list[Told] = []
    for scope, (bound, most) in zip(SCOPES, model.most(job).items(), strict=True):
        holders = [other.id for other in model.jobs.values() if other.is_running and bound in bounds(other)]
        if most is not None and len(holders) >= most:
            found.append((f"{scope}_limit", {"most": most, "running": len(holders), "holders": holders}))
    return found


def _ahead(model: Model, job: Record) -> int:
    """How many ready jobs of its type and key go before it."""
    place = (job.priority, job.run_at, job.id)
    ready = [other for other in model.jobs.values() if other.status is JobStatus.QUEUED and not other.apart]
    return sum(bounds(other) == bounds(job) and (other.priority, other.run_at, other.id) < place for other in ready)


async def explain(world: World, job: Record) -> None:
    """The reasons and their data are those of the model, in its order."""
    now = world.model.time(world.clock.micros())
    answer = await world.bench.jobs.explain(job.tenant, job.id)
    assert (answer.job_id, answer.status) == (job.id, job.status)
    wanted = reasons(world.model, job, now)
    assert [reason.code for reason in answer.reasons] == [code for code, _ in wanted]
    for reason, (_, data) in zip(answer.reasons, wanted, strict=True):
        holders = data.pop("holders", None)
        assert {name: value for name, value in reason.data.items() if name != "holders"} == data
        if holders is not None:
            _check_holders(reason.data["holders"], holders)


def _check_holders(told: list[str], holders: list[str]) -> None:
    """Some of those that run are named, all of them when they are few."""
    assert set(told) <= set(holders)
    assert len(told) == len(set(told)) == min(len(holders), HOLDERS_MAX)


async def explain_to_a_stranger(world: World, job: Record, tenant: str) -> None:
    """A job of others is not there."""
    try:
        await world.bench.jobs.explain(tenant, job.id)
    except JobNotFound:
        return
    raise AssertionError(f"{tenant} was told of {job.id}")


class Explaining(Machine):
    """Jobs that wait for this and that, and after each step the question why."""

    definitions = (
        Definition(type="noop", limit_key="{a}", max_running=3, max_running_per_key=1),
        Definition(type="fragile", max_running=2),
    )

    @invariant()
    def some_of_those_that_wait_say_why(self) -> None:
        waiting = [job for job in self.world.model.jobs.values() if job.status in WAITING]
        for job in waiting[-1:] + waiting[:-1][:1]:
            self.world.run(explain(self.world, job))

    @precondition(Machine.has_jobs)
    @precondition(Machine.has_room)
    @rule(
        places=st.lists(draw.places, min_size=1, max_size=3),
        seconds=draw.seconds_from_now,
        on_dead=st.sampled_from(list(OnDead)),
    )
    def enqueue_after(self, places: list[int], seconds: float | None, on_dead: OnDead) -> None:
        parents = [self.job(place) for place in places]
        tenant = parents[0].tenant
        after = tuple(parent.id for parent in parents if parent.tenant == tenant)
        draft = Draft(tenant=tenant, type="noop", after=after, on_dead=on_dead, run_at=self.moment(seconds))
        self.world.run(self.world.enqueue(draft))

    @rule(types=draw.type_lists, whose=st.integers(0, 1))
    def claim_for_a_tenant(self, types: list[str], whose: int) -> None:
        self.world.run(self.world.claim("w3", types, limit=1, tenant=self.owner(whose)))

    @precondition(Machine.has_jobs)
    @rule(place=draw.places)
    def explain_all(self, place: int) -> None:
        for job in self.world.model.jobs.values():
            if job.status not in FINISHED:
                self.world.run(explain(self.world, job))
        job = self.job(place, *FINISHED)
        self.world.run(explain(self.world, job))
        stranger = self.owner(place)
        if stranger != job.tenant:
            self.world.run(explain_to_a_stranger(self.world, job, stranger))
