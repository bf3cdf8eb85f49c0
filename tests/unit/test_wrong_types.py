"""Values of wrong types: every call rejects them with a detail and a hint before the store is called."""

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
from tests.unit.forbidden_store import Services

Call = Callable[[Services, Any], Awaitable[Any]]


def _option(name: str) -> Call:
    return lambda services, value: services.jobs.enqueue(services.tenant, "noop", 1, **{name: value})


def _retry(name: str) -> Call:
    return lambda services, value: services.jobs.retry(services.tenant, services.claim.job.id, **{name: value})


def _reschedule(name: str) -> Call:
    return lambda services, value: services.jobs.reschedule(services.tenant, services.claim.job.id, **{name: value})


def _claim(name: str) -> Call:
    return lambda services, value: services.jobs.claim(**{"worker_id": "worker", "types": ["noop"], name: value})


def _list(name: str) -> Call:
    return lambda services, value: services.jobs.list(**{"tenant": services.tenant, name: value})


def _define(name: str) -> Call:
    return lambda services, value: services.jobs.define(Definition(**{"type": "noop", name: value}))


def _backoff(name: str) -> Call:
    return lambda services, value: services.jobs.define(Definition(type="noop", backoff=Backoff(**{name: value})))


def _progress(name: str) -> Call:
    return lambda services, value: services.jobs.heartbeat(
        services.claim.job.id, services.claim.fence, progress=Progress(**{"percent": 1, name: value})
    )


def _settle(outcome: Callable[[Any], Any]) -> Call:
    return lambda services, value: services.jobs.settle(services.claim.job.id, services.claim.fence, outcome(value))


def _create(name: str) -> Call:
    return lambda services, value: services.tenants.create(**{"slug": "acme", name: value})


def _limit(name: str) -> Call:
    return lambda services, value: services.tenants.create("acme", limits=Limits(**{name: value}))


CALLS: dict[str, tuple[Call, list[Any]]] = {
    "enqueue tenant": (lambda services, value: services.jobs.enqueue(value, "noop"), [*NOT_TEXT, None]),
    "enqueue type": (lambda services, value: services.jobs.enqueue(services.tenant, value), [*NOT_TEXT, None]),
    **{f"enqueue {name}": (_option(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    **{
        f"enqueue {name}": (_option(name), NOT_TEXT)
        for name in ("idempotency_key", "dedupe_key", "correlation_id", "trace_id", "source_ref", "created_by")
    },
    "enqueue source": (_option("source"), [*NOT_TEXT, None, "nobody"]),
    "enqueue run_at": (_option("run_at"), NOT_TIME),
    "enqueue delay": (_option("delay"), NOT_DELAY),
    "enqueue tags": (_option("tags"), [*NOT_LIST, None, [5], [None], [["a"]], [b"a"]]),
    "enqueue_many orders": (lambda services, value: services.jobs.enqueue_many(value), [*NOT_LIST, None]),
    "enqueue_many order": (
        lambda services, value: services.jobs.enqueue_many([value]),
        [None, 5, "noop", {"type": "a"}],
    ),
    "claim worker_id": (_claim("worker_id"), NOT_TEXT),
    "claim types": (_claim("types"), [*NOT_LIST, None, [5], [["a"]], [None]]),
    "claim limit": (_claim("limit"), [*NOT_WHOLE, None]),
    "claim host": (_claim("host"), NOT_TEXT),
    "claim pid": (_claim("pid"), NOT_WHOLE),
    "heartbeat job_id": (
        lambda services, value: services.jobs.heartbeat(value, services.claim.fence),
        [*NOT_TEXT, None],
    ),
    "heartbeat fence": (lambda services, value: services.jobs.heartbeat(services.claim.job.id, value), NOT_FENCE),
    "heartbeat tenant": (
        lambda services, value: services.jobs.heartbeat(services.claim.job.id, services.claim.fence, tenant=value),
        NOT_TEXT,
    ),
    "heartbeat progress": (
        lambda services, value: services.jobs.heartbeat(services.claim.job.id, services.claim.fence, progress=value),
        [5, "half", True, {"percent": 5}, (5, "half")],
    ),
    "heartbeat percent": (_progress("percent"), [*NOT_NUMBER, None]),
    "heartbeat stage": (_progress("stage"), [*NOT_TEXT, None, "s" * 201]),
    "heartbeat_many beats": (lambda services, value: services.jobs.heartbeat_many(value), [*NOT_LIST, None]),
    "settle job_id": (
        lambda services, value: services.jobs.settle(value, services.claim.fence, Done()),
        [*NOT_TEXT, None],
    ),
    "settle fence": (lambda services, value: services.jobs.settle(services.claim.job.id, value, Done()), NOT_FENCE),
    "settle tenant": (
        lambda services, value: services.jobs.settle(services.claim.job.id, services.claim.fence, Done(), tenant=value),
        NOT_TEXT,
    ),
    "settle outcome": (_settle(lambda value: value), [None, 5, "done", {"type": "done"}, Done, Lost(), JobStatus.DEAD]),
    "settle result": (_settle(lambda value: Done(result=value)), ["{}", bytearray(b"{}"), memoryview(b"{}"), {}, 5]),
    "settle error": (_settle(lambda value: Failed(error=value)), [*NOT_TEXT, None, ValueError("boom")]),
    "settle retry": (_settle(lambda value: Failed(error="no", retry=value)), NOT_FLAG),
    "settle exit_code": (_settle(lambda value: Failed(error="no", exit_code=value)), NOT_WHOLE),
    "settle snooze": (_settle(lambda value: Snooze(delay=value)), [*NOT_WHOLE, None, timedelta(seconds=1)]),
    "settle_many settles": (lambda services, value: services.jobs.settle_many(value), [*NOT_LIST, None]),
    "fail claim": (lambda services, value: services.jobs.fail(value, "no"), [None, 5, "id"]),
    "fail error": (lambda services, value: services.jobs.fail(services.claim, value), [*NOT_TEXT, None, ValueError]),
    "fail retry": (lambda services, value: services.jobs.fail(services.claim, "no", retry=value), NOT_FLAG),
    "fail exit_code": (lambda services, value: services.jobs.fail(services.claim, "no", exit_code=value), NOT_WHOLE),
    "snooze delay": (lambda services, value: services.jobs.snooze(services.claim, value), [*NOT_DELAY, None]),
    "cancel tenant": (lambda services, value: services.jobs.cancel(value, services.claim.job.id), NOT_TENANT),
    "cancel job_id": (lambda services, value: services.jobs.cancel(services.tenant, value), [*NOT_TEXT, None]),
    "retry tenant": (lambda services, value: services.jobs.retry(value, services.claim.job.id), NOT_TENANT),
    "retry job_id": (lambda services, value: services.jobs.retry(services.tenant, value), [*NOT_TEXT, None]),
    "retry reset_attempts": (_retry("reset_attempts"), NOT_FLAG),
    **{f"retry {name}": (_retry(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "retry run_at": (_retry("run_at"), NOT_TIME),
    "reschedule tenant": (lambda services, value: services.jobs.reschedule(value, services.claim.job.id), NOT_TENANT),
    "reschedule job_id": (lambda services, value: services.jobs.reschedule(services.tenant, value), [*NOT_TEXT, None]),
    **{f"reschedule {name}": (_reschedule(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "reschedule run_at": (_reschedule("run_at"), NOT_TIME),
    "reschedule tags": (_reschedule("tags"), [*NOT_LIST, [5], [None], [["a"]]]),
    "get tenant": (lambda services, value: services.jobs.get(value, services.claim.job.id), NOT_TENANT),
    "get job_id": (lambda services, value: services.jobs.get(services.tenant, value), [*NOT_TEXT, None]),
    "list tenant": (_list("tenant"), NOT_TENANT),
    "list status": (_list("status"), [*NOT_TEXT, "Queued", "", "a\ud800"]),
    "list type": (_list("type"), [*NOT_TEXT, "a\ud800"]),
    "list tag": (_list("tag"), [*NOT_TEXT, "a\ud800", "a\x00"]),
    "list source": (_list("source"), [*NOT_TEXT, "nobody", "", "a\ud800"]),
    **{f"list {name}": (_list(name), NOT_TIME) for name in ("created_after", "created_before")},
    "counts tenant": (lambda services, value: services.jobs.counts(value), NOT_TENANT),
    "list cursor": (_list("cursor"), NOT_TEXT),
    "list limit": (_list("limit"), [*NOT_WHOLE, None]),
    "attempts tenant": (lambda services, value: services.jobs.attempts(value, services.claim.job.id), NOT_TENANT),
    "attempts job_id": (lambda services, value: services.jobs.attempts(services.tenant, value), [*NOT_TEXT, None]),
    "summary tenant": (lambda services, value: services.jobs.summary(value), NOT_TENANT),
    "define definition": (lambda services, value: services.jobs.define(value), [None, 5, "noop", {"type": "noop"}]),
    "define type": (_define("type"), [*NOT_TEXT, None]),
    "define tenant": (_define("tenant"), NOT_TEXT),
    **{f"define {name}": (_define(name), [*NOT_WHOLE, None]) for name in ("priority", "max_attempts", "crash_cap")},
    "define max_running": (_define("max_running"), NOT_WHOLE),
    "define limit_key": (_define("limit_key"), NOT_TEXT),
    "define max_running_per_key": (
        lambda services, value: services.jobs.define(
            Definition(type="noop", limit_key="{a}", max_running_per_key=value)
        ),
        NOT_WHOLE,
    ),
    "pause tenant": (lambda services, value: services.jobs.pause(value, "noop"), NOT_TENANT),
    "pause type": (lambda services, value: services.jobs.pause(services.tenant, value), [*NOT_TEXT, None]),
    "pause by": (lambda services, value: services.jobs.pause(services.tenant, "noop", by=value), NOT_TEXT),
    "resume tenant": (lambda services, value: services.jobs.resume(value, "noop"), NOT_TENANT),
    "resume type": (lambda services, value: services.jobs.resume(services.tenant, value), [*NOT_TEXT, None]),
    "pauses tenant": (lambda services, value: services.jobs.pauses(value), NOT_TENANT),
    "define timeout_seconds": (_define("timeout_seconds"), [*NOT_NUMBER, None]),
    "define backoff": (_define("backoff"), [None, 5, {"factor": 2}]),
    **{
        f"define backoff.{name}": (_backoff(name), [*NOT_NUMBER, None])
        for name in ("first_seconds", "factor", "max_seconds")
    },
    "definition type": (lambda services, value: services.jobs.definition(value), [*NOT_TEXT, None]),
    "definition tenant": (lambda services, value: services.jobs.definition("noop", tenant=value), NOT_TEXT),
    "definitions tenant": (lambda services, value: services.jobs.definitions(tenant=value), NOT_TEXT),
    "tenants get": (lambda services, value: services.tenants.get(value), [*NOT_TEXT, None]),
    "tenants change": (lambda services, value: services.tenants.change(value, weight=2), [*NOT_TEXT, None]),
    **{f"tenants create {name}": (_create(name), [*NOT_TEXT, None]) for name in ("slug", "time_zone")},
    "tenants create weight": (_create("weight"), [*NOT_WHOLE, None]),
    "tenants create limits": (_create("limits"), [{}, 0, "", {"rate": 1}, [], False]),
    **{
        f"limits {name}": (_limit(name), NOT_WHOLE)
        for name in ("burst", "quota_bytes", "max_unfinished_jobs", "query_rows", "query_bytes")
    },
    **{f"limits {name}": (_limit(name), NOT_NUMBER) for name in ("rate", "query_seconds")},
    "events tenant": (lambda services, value: services.events.read(value), NOT_TENANT),
    "events after": (lambda services, value: services.events.read(services.tenant, after=value), NOT_TEXT),
    "events limit": (lambda services, value: services.events.read(services.tenant, limit=value), [*NOT_WHOLE, None]),
}


@pytest.mark.parametrize(("call", "values"), CALLS.values(), ids=list(CALLS))
async def test_a_value_of_a_wrong_type_is_rejected(services: Services, call: Call, values: list[Any]) -> None:
    for value in values:
        with services.refuse(InvalidInput):
            await call(services, value)


TAKES_A_TENANT: dict[str, Call] = {
    name.removesuffix(" tenant"): call for name, (call, _) in CALLS.items() if name.endswith(" tenant")
}


@pytest.mark.parametrize("call", TAKES_A_TENANT.values(), ids=list(TAKES_A_TENANT))
async def test_a_tenant_in_place_of_its_id_is_rejected_with_a_hint(services: Services, call: Call) -> None:
    with services.refuse(InvalidInput) as caught:
        await call(services, Tenant(id=services.tenant, slug="acme"))
    assert "Tenant" in caught.value.detail
    assert "tenant.id" in caught.value.hint


@pytest.mark.parametrize("text", ["", "job-1", "a\ud800", "\x00", "x" * 10_000])
async def test_an_invalid_job_id_is_an_unknown_job(services: Services, text: str) -> None:
    for call in (
        services.jobs.get,
        services.jobs.cancel,
        services.jobs.retry,
        services.jobs.reschedule,
        services.jobs.attempts,
    ):
        with services.refuse(JobNotFound):
            await call(services.tenant, text)
