"""Wrong types: whatever is passed to whichever call is refused by name with a hint before the store is called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from ingot.identity import Limits, Tenant
from ingot.jobs import Backoff, Definition, Done, Failed, JobNotFound, JobStatus, Progress, Snooze
from ingot.jobs.model import Lost
from ingot.kernel.errors import InvalidInput
from tests.bad_values import (
    NOT_DELAY,
    NOT_FENCE,
    NOT_FLAG,
    NOT_LIST,
    NOT_NUMBER,
    NOT_TENANT,
    NOT_TEXT,
    NOT_TIME,
    NOT_WHOLE,
)
from tests.unit.forbidden_store import Rooms

Call = Callable[[Rooms, Any], Awaitable[Any]]


def _option(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.enqueue(rooms.tenant, "noop", 1, **{name: bad})


def _retry(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.retry(rooms.tenant, rooms.claim.job.id, **{name: bad})


def _reschedule(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.reschedule(rooms.tenant, rooms.claim.job.id, **{name: bad})


def _claim(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.claim(**{"worker_id": "worker", "types": ["noop"], name: bad})


def _list(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.list(**{"tenant": rooms.tenant, name: bad})


def _define(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.define(Definition(**{"type": "noop", name: bad}))


def _backoff(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.define(Definition(type="noop", backoff=Backoff(**{name: bad})))


def _progress(name: str) -> Call:
    return lambda rooms, bad: rooms.jobs.heartbeat(
        rooms.claim.job.id, rooms.claim.fence, progress=Progress(**{"percent": 1, name: bad})
    )


def _settle(outcome: Callable[[Any], Any]) -> Call:
    return lambda rooms, bad: rooms.jobs.settle(rooms.claim.job.id, rooms.claim.fence, outcome(bad))


def _create(name: str) -> Call:
    return lambda rooms, bad: rooms.tenants.create(**{"slug": "acme", name: bad})


def _limit(name: str) -> Call:
    return lambda rooms, bad: rooms.tenants.create("acme", limits=Limits(**{name: bad}))


CALLS: dict[str, tuple[Call, list[Any]]] = {
    "enqueue tenant": (lambda rooms, bad: rooms.jobs.enqueue(bad, "noop"), [*NOT_TEXT, None]),
    "enqueue type": (lambda rooms, bad: rooms.jobs.enqueue(rooms.tenant, bad), [*NOT_TEXT, None]),
    **{f"enqueue {name}": (_option(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    **{
        f"enqueue {name}": (_option(name), NOT_TEXT)
        for name in ("idempotency_key", "dedupe_key", "correlation_id", "trace_id", "source_ref", "created_by")
    },
    "enqueue source": (_option("source"), [*NOT_TEXT, None, "nobody"]),
    "enqueue run_at": (_option("run_at"), NOT_TIME),
    "enqueue delay": (_option("delay"), NOT_DELAY),
    "enqueue tags": (_option("tags"), [*NOT_LIST, None, [5], [None], [["a"]], [b"a"]]),
    "enqueue_many orders": (lambda rooms, bad: rooms.jobs.enqueue_many(bad), [*NOT_LIST, None]),
    "enqueue_many order": (lambda rooms, bad: rooms.jobs.enqueue_many([bad]), [None, 5, "noop", {"type": "a"}]),
    "claim worker_id": (_claim("worker_id"), NOT_TEXT),
    "claim types": (_claim("types"), [*NOT_LIST, None, [5], [["a"]], [None]]),
    "claim limit": (_claim("limit"), [*NOT_WHOLE, None]),
    "claim host": (_claim("host"), NOT_TEXT),
    "claim pid": (_claim("pid"), NOT_WHOLE),
    "heartbeat job_id": (lambda rooms, bad: rooms.jobs.heartbeat(bad, rooms.claim.fence), [*NOT_TEXT, None]),
    "heartbeat fence": (lambda rooms, bad: rooms.jobs.heartbeat(rooms.claim.job.id, bad), NOT_FENCE),
    "heartbeat tenant": (
        lambda rooms, bad: rooms.jobs.heartbeat(rooms.claim.job.id, rooms.claim.fence, tenant=bad),
        NOT_TEXT,
    ),
    "heartbeat progress": (
        lambda rooms, bad: rooms.jobs.heartbeat(rooms.claim.job.id, rooms.claim.fence, progress=bad),
        [5, "half", True, {"percent": 5}, (5, "half")],
    ),
    "heartbeat percent": (_progress("percent"), [*NOT_NUMBER, None]),
    "heartbeat stage": (_progress("stage"), [*NOT_TEXT, None, "s" * 201]),
    "heartbeat_many beats": (lambda rooms, bad: rooms.jobs.heartbeat_many(bad), [*NOT_LIST, None]),
    "settle job_id": (lambda rooms, bad: rooms.jobs.settle(bad, rooms.claim.fence, Done()), [*NOT_TEXT, None]),
    "settle fence": (lambda rooms, bad: rooms.jobs.settle(rooms.claim.job.id, bad, Done()), NOT_FENCE),
    "settle tenant": (
        lambda rooms, bad: rooms.jobs.settle(rooms.claim.job.id, rooms.claim.fence, Done(), tenant=bad),
        NOT_TEXT,
    ),
    "settle outcome": (_settle(lambda bad: bad), [None, 5, "done", {"type": "done"}, Done, Lost(), JobStatus.DEAD]),
    "settle result": (_settle(lambda bad: Done(result=bad)), ["{}", bytearray(b"{}"), memoryview(b"{}"), {}, 5]),
    "settle error": (_settle(lambda bad: Failed(error=bad)), [*NOT_TEXT, None, ValueError("boom")]),
    "settle retry": (_settle(lambda bad: Failed(error="no", retry=bad)), NOT_FLAG),
    "settle exit_code": (_settle(lambda bad: Failed(error="no", exit_code=bad)), NOT_WHOLE),
    "settle snooze": (_settle(lambda bad: Snooze(delay=bad)), [*NOT_WHOLE, None, timedelta(seconds=1)]),
    "settle_many settles": (lambda rooms, bad: rooms.jobs.settle_many(bad), [*NOT_LIST, None]),
    "fail claim": (lambda rooms, bad: rooms.jobs.fail(bad, "no"), [None, 5, "id"]),
    "fail error": (lambda rooms, bad: rooms.jobs.fail(rooms.claim, bad), [*NOT_TEXT, None, ValueError]),
    "fail retry": (lambda rooms, bad: rooms.jobs.fail(rooms.claim, "no", retry=bad), NOT_FLAG),
    "fail exit_code": (lambda rooms, bad: rooms.jobs.fail(rooms.claim, "no", exit_code=bad), NOT_WHOLE),
    "snooze delay": (lambda rooms, bad: rooms.jobs.snooze(rooms.claim, bad), [*NOT_DELAY, None]),
    "cancel tenant": (lambda rooms, bad: rooms.jobs.cancel(bad, rooms.claim.job.id), NOT_TENANT),
    "cancel job_id": (lambda rooms, bad: rooms.jobs.cancel(rooms.tenant, bad), [*NOT_TEXT, None]),
    "retry tenant": (lambda rooms, bad: rooms.jobs.retry(bad, rooms.claim.job.id), NOT_TENANT),
    "retry job_id": (lambda rooms, bad: rooms.jobs.retry(rooms.tenant, bad), [*NOT_TEXT, None]),
    "retry reset_attempts": (_retry("reset_attempts"), NOT_FLAG),
    **{f"retry {name}": (_retry(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "retry run_at": (_retry("run_at"), NOT_TIME),
    "reschedule tenant": (lambda rooms, bad: rooms.jobs.reschedule(bad, rooms.claim.job.id), NOT_TENANT),
    "reschedule job_id": (lambda rooms, bad: rooms.jobs.reschedule(rooms.tenant, bad), [*NOT_TEXT, None]),
    **{f"reschedule {name}": (_reschedule(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "reschedule run_at": (_reschedule("run_at"), NOT_TIME),
    "reschedule tags": (_reschedule("tags"), [*NOT_LIST, [5], [None], [["a"]]]),
    "get tenant": (lambda rooms, bad: rooms.jobs.get(bad, rooms.claim.job.id), NOT_TENANT),
    "get job_id": (lambda rooms, bad: rooms.jobs.get(rooms.tenant, bad), [*NOT_TEXT, None]),
    "list tenant": (_list("tenant"), NOT_TENANT),
    "list status": (_list("status"), [*NOT_TEXT, "Queued", "", "a\ud800"]),
    "list type": (_list("type"), [*NOT_TEXT, "a\ud800"]),
    "list tag": (_list("tag"), [*NOT_TEXT, "a\ud800", "a\x00"]),
    "list source": (_list("source"), [*NOT_TEXT, "nobody", "", "a\ud800"]),
    **{f"list {name}": (_list(name), NOT_TIME) for name in ("created_after", "created_before")},
    "counts tenant": (lambda rooms, bad: rooms.jobs.counts(bad), NOT_TENANT),
    "list cursor": (_list("cursor"), NOT_TEXT),
    "list limit": (_list("limit"), [*NOT_WHOLE, None]),
    "attempts tenant": (lambda rooms, bad: rooms.jobs.attempts(bad, rooms.claim.job.id), NOT_TENANT),
    "attempts job_id": (lambda rooms, bad: rooms.jobs.attempts(rooms.tenant, bad), [*NOT_TEXT, None]),
    "summary tenant": (lambda rooms, bad: rooms.jobs.summary(bad), NOT_TENANT),
    "define definition": (lambda rooms, bad: rooms.jobs.define(bad), [None, 5, "noop", {"type": "noop"}]),
    "define type": (_define("type"), [*NOT_TEXT, None]),
    "define tenant": (_define("tenant"), NOT_TEXT),
    **{f"define {name}": (_define(name), [*NOT_WHOLE, None]) for name in ("priority", "max_attempts", "crash_cap")},
    "define max_running": (_define("max_running"), NOT_WHOLE),
    "define limit_key": (_define("limit_key"), NOT_TEXT),
    "define max_running_per_key": (
        lambda rooms, bad: rooms.jobs.define(Definition(type="noop", limit_key="{a}", max_running_per_key=bad)),
        NOT_WHOLE,
    ),
    "pause tenant": (lambda rooms, bad: rooms.jobs.pause(bad, "noop"), NOT_TENANT),
    "pause type": (lambda rooms, bad: rooms.jobs.pause(rooms.tenant, bad), [*NOT_TEXT, None]),
    "pause by": (lambda rooms, bad: rooms.jobs.pause(rooms.tenant, "noop", by=bad), NOT_TEXT),
    "resume tenant": (lambda rooms, bad: rooms.jobs.resume(bad, "noop"), NOT_TENANT),
    "resume type": (lambda rooms, bad: rooms.jobs.resume(rooms.tenant, bad), [*NOT_TEXT, None]),
    "pauses tenant": (lambda rooms, bad: rooms.jobs.pauses(bad), NOT_TENANT),
    "define timeout_seconds": (_define("timeout_seconds"), [*NOT_NUMBER, None]),
    "define backoff": (_define("backoff"), [None, 5, {"factor": 2}]),
    **{
        f"define backoff.{name}": (_backoff(name), [*NOT_NUMBER, None])
        for name in ("first_seconds", "factor", "max_seconds")
    },
    "definition type": (lambda rooms, bad: rooms.jobs.definition(bad), [*NOT_TEXT, None]),
    "definition tenant": (lambda rooms, bad: rooms.jobs.definition("noop", tenant=bad), NOT_TEXT),
    "definitions tenant": (lambda rooms, bad: rooms.jobs.definitions(tenant=bad), NOT_TEXT),
    "tenants get": (lambda rooms, bad: rooms.tenants.get(bad), [*NOT_TEXT, None]),
    "tenants change": (lambda rooms, bad: rooms.tenants.change(bad, weight=2), [*NOT_TEXT, None]),
    **{f"tenants create {name}": (_create(name), [*NOT_TEXT, None]) for name in ("slug", "time_zone")},
    "tenants create weight": (_create("weight"), [*NOT_WHOLE, None]),
    "tenants create limits": (_create("limits"), [{}, 0, "", {"rate": 1}, [], False]),
    **{
        f"limits {name}": (_limit(name), NOT_WHOLE)
        for name in ("burst", "quota_bytes", "max_unfinished_jobs", "query_rows", "query_bytes")
    },
    **{f"limits {name}": (_limit(name), NOT_NUMBER) for name in ("rate", "query_seconds")},
    "events tenant": (lambda rooms, bad: rooms.events.read(bad), NOT_TENANT),
    "events after": (lambda rooms, bad: rooms.events.read(rooms.tenant, after=bad), NOT_TEXT),
    "events limit": (lambda rooms, bad: rooms.events.read(rooms.tenant, limit=bad), [*NOT_WHOLE, None]),
}


@pytest.mark.parametrize(("call", "values"), CALLS.values(), ids=list(CALLS))
async def test_a_wrong_type_is_refused_by_name(rooms: Rooms, call: Call, values: list[Any]) -> None:
    for bad in values:
        with rooms.refuse(InvalidInput):
            await call(rooms, bad)


TAKES_A_TENANT: dict[str, Call] = {
    name.removesuffix(" tenant"): call for name, (call, _) in CALLS.items() if name.endswith(" tenant")
}


@pytest.mark.parametrize("call", TAKES_A_TENANT.values(), ids=list(TAKES_A_TENANT))
async def test_a_tenant_in_place_of_its_id_is_refused_with_the_way_out(rooms: Rooms, call: Call) -> None:
    with rooms.refuse(InvalidInput) as caught:
        await call(rooms, Tenant(id=rooms.tenant, slug="acme"))
    assert "Tenant" in caught.value.detail
    assert "tenant.id" in caught.value.hint


@pytest.mark.parametrize("text", ["", "job-1", "a\ud800", "\x00", "x" * 10_000])
async def test_a_text_that_is_no_id_is_an_unknown_job(rooms: Rooms, text: str) -> None:
    for call in (rooms.jobs.get, rooms.jobs.cancel, rooms.jobs.retry, rooms.jobs.reschedule, rooms.jobs.attempts):
        with rooms.refuse(JobNotFound):
            await call(rooms.tenant, text)
