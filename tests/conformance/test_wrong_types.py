"""Wrong types: whatever is passed at whichever call, it is refused by name with a hint, and nothing is written."""

from __future__ import annotations

import math
import sys
import zoneinfo
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

import pytest

from ingot.identity import Limits
from ingot.jobs import (
    Backoff,
    Claim,
    Definition,
    Done,
    Failed,
    JobNotFound,
    JobStatus,
    Progress,
    Release,
    Settle,
    Snooze,
)
from ingot.jobs.model import Lost
from ingot.jobs.ports import Beat
from ingot.kernel.errors import InvalidInput
from tests.conformance.snapshots import picture, refuses
from tests.factories import Bench

Call = Callable[[Bench, Claim, Any], Awaitable[Any]]


class _NoOffset(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


NOT_TEXT = [5, True, b"text", ["text"], {"a": 1}, object()]
NOT_WHOLE = ["3", 1.5, 3.0, True, False, Decimal(3), [3], math.nan, 10**5000]
NOT_NUMBER = ["3", True, Decimal(3), [3], math.nan, math.inf, -math.inf, 10**5000]
NOT_TIME = ["2030-01-01T00:00:00Z", 5, True, date(2030, 1, 1), datetime(2030, 1, 1, tzinfo=_NoOffset())]
NOT_DELAY = ["1", True, Decimal(1), [1], datetime(2030, 1, 1, tzinfo=UTC), math.nan, 10**5000]
NOT_LIST = [5, True, object(), "text", b"text"]
NOT_TENANT = [*NOT_TEXT, None, "a\ud800", "a\x00"]
NOT_FENCE = ["1", 1.0, True, None]
NOT_FLAG = ["yes", 1, 0, None]


def _option(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.enqueue(bench.tenant, "noop", 1, **{name: bad})


def _retry(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.retry(bench.tenant, claim.job.id, **{name: bad})


def _reschedule(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.reschedule(bench.tenant, claim.job.id, **{name: bad})


def _claim(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.claim(**{"worker_id": "worker", "types": ["noop"], name: bad})


def _list(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.list(**{"tenant": bench.tenant, name: bad})


def _define(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.define(Definition(**{"type": "noop", name: bad}))


def _backoff(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.define(Definition(type="noop", backoff=Backoff(**{name: bad})))


def _progress(name: str) -> Call:
    return lambda bench, claim, bad: bench.jobs.heartbeat(
        claim.job.id, claim.fence, progress=Progress(**{"percent": 1, name: bad})
    )


def _settle(outcome: Callable[[Any], Any]) -> Call:
    return lambda bench, claim, bad: bench.jobs.settle(claim.job.id, claim.fence, outcome(bad))


def _create(name: str) -> Call:
    return lambda bench, claim, bad: bench.tenants.create(**{"slug": "acme", name: bad})


def _change(name: str) -> Call:
    return lambda bench, claim, bad: bench.tenants.change("default", **{name: bad})


def _limit(name: str) -> Call:
    return lambda bench, claim, bad: bench.tenants.create("acme", limits=Limits(**{name: bad}))


CALLS: dict[str, tuple[Call, list[Any]]] = {
    "enqueue tenant": (lambda bench, claim, bad: bench.jobs.enqueue(bad, "noop"), [*NOT_TEXT, None]),
    "enqueue type": (lambda bench, claim, bad: bench.jobs.enqueue(bench.tenant, bad), [*NOT_TEXT, None]),
    **{f"enqueue {name}": (_option(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    **{
        f"enqueue {name}": (_option(name), NOT_TEXT)
        for name in ("idempotency_key", "dedupe_key", "correlation_id", "trace_id", "source_ref", "created_by")
    },
    "enqueue source": (_option("source"), [*NOT_TEXT, None, "nobody"]),
    "enqueue run_at": (_option("run_at"), NOT_TIME),
    "enqueue delay": (_option("delay"), NOT_DELAY),
    "enqueue tags": (_option("tags"), [*NOT_LIST, None, [5], [None], [["a"]], [b"a"]]),
    "enqueue_many orders": (lambda bench, claim, bad: bench.jobs.enqueue_many(bad), [*NOT_LIST, None]),
    "enqueue_many order": (lambda bench, claim, bad: bench.jobs.enqueue_many([bad]), [None, 5, "noop", {"type": "a"}]),
    "claim worker_id": (_claim("worker_id"), NOT_TEXT),
    "claim types": (_claim("types"), [*NOT_LIST, None, [5], [["a"]], [None]]),
    "claim limit": (_claim("limit"), [*NOT_WHOLE, None]),
    "claim host": (_claim("host"), NOT_TEXT),
    "claim pid": (_claim("pid"), NOT_WHOLE),
    "heartbeat job_id": (lambda bench, claim, bad: bench.jobs.heartbeat(bad, claim.fence), [*NOT_TEXT, None]),
    "heartbeat fence": (lambda bench, claim, bad: bench.jobs.heartbeat(claim.job.id, bad), NOT_FENCE),
    "heartbeat tenant": (
        lambda bench, claim, bad: bench.jobs.heartbeat(claim.job.id, claim.fence, tenant=bad),
        NOT_TEXT,
    ),
    "heartbeat progress": (
        lambda bench, claim, bad: bench.jobs.heartbeat(claim.job.id, claim.fence, progress=bad),
        [5, "half", True, {"percent": 5}, (5, "half")],
    ),
    "heartbeat percent": (_progress("percent"), [*NOT_NUMBER, None]),
    "heartbeat stage": (_progress("stage"), [*NOT_TEXT, None, "s" * 201]),
    "heartbeat_many beats": (lambda bench, claim, bad: bench.jobs.heartbeat_many(bad), [*NOT_LIST, None]),
    "settle job_id": (lambda bench, claim, bad: bench.jobs.settle(bad, claim.fence, Done()), [*NOT_TEXT, None]),
    "settle fence": (lambda bench, claim, bad: bench.jobs.settle(claim.job.id, bad, Done()), NOT_FENCE),
    "settle tenant": (
        lambda bench, claim, bad: bench.jobs.settle(claim.job.id, claim.fence, Done(), tenant=bad),
        NOT_TEXT,
    ),
    "settle outcome": (_settle(lambda bad: bad), [None, 5, "done", {"type": "done"}, Done, Lost(), JobStatus.DEAD]),
    "settle result": (_settle(lambda bad: Done(result=bad)), ["{}", bytearray(b"{}"), memoryview(b"{}"), {}, 5]),
    "settle error": (_settle(lambda bad: Failed(error=bad)), [*NOT_TEXT, None, ValueError("boom")]),
    "settle retry": (_settle(lambda bad: Failed(error="no", retry=bad)), NOT_FLAG),
    "settle exit_code": (_settle(lambda bad: Failed(error="no", exit_code=bad)), NOT_WHOLE),
    "settle snooze": (_settle(lambda bad: Snooze(delay=bad)), [*NOT_WHOLE, None, timedelta(seconds=1)]),
    "settle_many settles": (lambda bench, claim, bad: bench.jobs.settle_many(bad), [*NOT_LIST, None]),
    "fail claim": (lambda bench, claim, bad: bench.jobs.fail(bad, "no"), [None, 5, "id"]),
    "fail error": (lambda bench, claim, bad: bench.jobs.fail(claim, bad), [*NOT_TEXT, None, ValueError]),
    "fail retry": (lambda bench, claim, bad: bench.jobs.fail(claim, "no", retry=bad), NOT_FLAG),
    "fail exit_code": (lambda bench, claim, bad: bench.jobs.fail(claim, "no", exit_code=bad), NOT_WHOLE),
    "snooze delay": (lambda bench, claim, bad: bench.jobs.snooze(claim, bad), [*NOT_DELAY, None]),
    "cancel tenant": (lambda bench, claim, bad: bench.jobs.cancel(bad, claim.job.id), NOT_TENANT),
    "cancel job_id": (lambda bench, claim, bad: bench.jobs.cancel(bench.tenant, bad), [*NOT_TEXT, None]),
    "retry tenant": (lambda bench, claim, bad: bench.jobs.retry(bad, claim.job.id), NOT_TENANT),
    "retry job_id": (lambda bench, claim, bad: bench.jobs.retry(bench.tenant, bad), [*NOT_TEXT, None]),
    "retry reset_attempts": (_retry("reset_attempts"), NOT_FLAG),
    **{f"retry {name}": (_retry(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "retry run_at": (_retry("run_at"), NOT_TIME),
    "reschedule tenant": (lambda bench, claim, bad: bench.jobs.reschedule(bad, claim.job.id), NOT_TENANT),
    "reschedule job_id": (lambda bench, claim, bad: bench.jobs.reschedule(bench.tenant, bad), [*NOT_TEXT, None]),
    **{f"reschedule {name}": (_reschedule(name), NOT_WHOLE) for name in ("priority", "max_attempts")},
    "reschedule run_at": (_reschedule("run_at"), NOT_TIME),
    "reschedule tags": (_reschedule("tags"), [*NOT_LIST, [5], [None], [["a"]]]),
    "get tenant": (lambda bench, claim, bad: bench.jobs.get(bad, claim.job.id), NOT_TENANT),
    "get job_id": (lambda bench, claim, bad: bench.jobs.get(bench.tenant, bad), [*NOT_TEXT, None]),
    "list tenant": (_list("tenant"), NOT_TENANT),
    "list status": (_list("status"), [*NOT_TEXT, "Queued", "", "a\ud800"]),
    "list type": (_list("type"), [*NOT_TEXT, "a\ud800"]),
    "list tag": (_list("tag"), [*NOT_TEXT, "a\ud800", "a\x00"]),
    "list source": (_list("source"), [*NOT_TEXT, "nobody", "", "a\ud800"]),
    **{f"list {name}": (_list(name), NOT_TIME) for name in ("created_after", "created_before")},
    "counts tenant": (lambda bench, claim, bad: bench.jobs.counts(bad), NOT_TENANT),
    "list cursor": (_list("cursor"), NOT_TEXT),
    "list limit": (_list("limit"), [*NOT_WHOLE, None]),
    "attempts tenant": (lambda bench, claim, bad: bench.jobs.attempts(bad, claim.job.id), NOT_TENANT),
    "attempts job_id": (lambda bench, claim, bad: bench.jobs.attempts(bench.tenant, bad), [*NOT_TEXT, None]),
    "summary tenant": (lambda bench, claim, bad: bench.jobs.summary(bad), NOT_TENANT),
    "define definition": (lambda bench, claim, bad: bench.jobs.define(bad), [None, 5, "noop", {"type": "noop"}]),
    "define type": (_define("type"), [*NOT_TEXT, None]),
    "define tenant": (_define("tenant"), NOT_TEXT),
    **{f"define {name}": (_define(name), [*NOT_WHOLE, None]) for name in ("priority", "max_attempts", "crash_cap")},
    "define max_running": (_define("max_running"), NOT_WHOLE),
    "define limit_key": (_define("limit_key"), NOT_TEXT),
    "define max_running_per_key": (
        lambda bench, claim, bad: bench.jobs.define(Definition(type="noop", limit_key="{a}", max_running_per_key=bad)),
        NOT_WHOLE,
    ),
    "pause tenant": (lambda bench, claim, bad: bench.jobs.pause(bad, "noop"), NOT_TENANT),
    "pause type": (lambda bench, claim, bad: bench.jobs.pause(bench.tenant, bad), [*NOT_TEXT, None]),
    "pause by": (lambda bench, claim, bad: bench.jobs.pause(bench.tenant, "noop", by=bad), NOT_TEXT),
    "resume tenant": (lambda bench, claim, bad: bench.jobs.resume(bad, "noop"), NOT_TENANT),
    "resume type": (lambda bench, claim, bad: bench.jobs.resume(bench.tenant, bad), [*NOT_TEXT, None]),
    "pauses tenant": (lambda bench, claim, bad: bench.jobs.pauses(bad), NOT_TENANT),
    "define timeout_seconds": (_define("timeout_seconds"), [*NOT_NUMBER, None]),
    "define backoff": (_define("backoff"), [None, 5, {"factor": 2}]),
    **{
        f"define backoff.{name}": (_backoff(name), [*NOT_NUMBER, None])
        for name in ("first_seconds", "factor", "max_seconds")
    },
    "definition type": (lambda bench, claim, bad: bench.jobs.definition(bad), [*NOT_TEXT, None]),
    "definition tenant": (lambda bench, claim, bad: bench.jobs.definition("noop", tenant=bad), NOT_TEXT),
    "definitions tenant": (lambda bench, claim, bad: bench.jobs.definitions(tenant=bad), NOT_TEXT),
    "tenants get": (lambda bench, claim, bad: bench.tenants.get(bad), [*NOT_TEXT, None]),
    "tenants change": (lambda bench, claim, bad: bench.tenants.change(bad, weight=2), [*NOT_TEXT, None]),
    **{f"tenants create {name}": (_create(name), [*NOT_TEXT, None]) for name in ("slug", "time_zone")},
    **{f"tenants change {name}": (_change(name), NOT_TEXT) for name in ("slug", "time_zone")},
    "tenants create weight": (_create("weight"), [*NOT_WHOLE, None]),
    "tenants change weight": (_change("weight"), NOT_WHOLE),
    "tenants create limits": (_create("limits"), [{}, 0, "", {"rate": 1}, [], False]),
    "tenants change limits": (_change("limits"), [{}, 0, "", {"rate": 1}, [], False]),
    **{
        f"limits {name}": (_limit(name), NOT_WHOLE)
        for name in ("burst", "quota_bytes", "max_unfinished_jobs", "query_rows", "query_bytes")
    },
    **{f"limits {name}": (_limit(name), NOT_NUMBER) for name in ("rate", "query_seconds")},
    "events tenant": (lambda bench, claim, bad: bench.events.read(bad), NOT_TENANT),
    "events after": (lambda bench, claim, bad: bench.events.read(bench.tenant, after=bad), NOT_TEXT),
    "events limit": (lambda bench, claim, bad: bench.events.read(bench.tenant, limit=bad), [*NOT_WHOLE, None]),
}


@pytest.mark.parametrize(("call", "values"), CALLS.values(), ids=list(CALLS))
async def test_a_wrong_type_is_refused_by_name(bench: Bench, call: Call, values: list[Any]) -> None:
    claim = await bench.make_claim()
    await bench.make_job()
    before = await picture(bench)
    for bad in values:
        with pytest.raises(InvalidInput) as caught:
            await call(bench, claim, bad)
        assert (type(caught.value), caught.value.code) == (InvalidInput, "invalid_input")
        assert caught.value.detail.strip()
        assert caught.value.hint.strip()
    assert before == await picture(bench)


TAKES_A_TENANT: dict[str, Call] = {
    name.removesuffix(" tenant"): call for name, (call, _) in CALLS.items() if name.endswith(" tenant")
}


@pytest.mark.parametrize("call", TAKES_A_TENANT.values(), ids=list(TAKES_A_TENANT))
async def test_a_tenant_in_place_of_its_id_is_refused_with_the_way_out(bench: Bench, call: Call) -> None:
    claim = await bench.make_claim()
    tenant = await bench.tenants.get(bench.tenant)
    async with refuses(bench, InvalidInput) as caught:
        await call(bench, claim, tenant)
    assert "Tenant" in caught.value.detail
    assert "tenant.id" in caught.value.hint


@pytest.mark.parametrize("text", ["", "job-1", "a\ud800", "\x00", "x" * 10_000])
async def test_a_text_that_is_no_id_is_an_unknown_job(bench: Bench, text: str) -> None:
    for call in (bench.jobs.get, bench.jobs.cancel, bench.jobs.retry, bench.jobs.reschedule, bench.jobs.attempts):
        async with refuses(bench, JobNotFound):
            await call(bench.tenant, text)


def _bad_beats(claim: Claim) -> Iterator[Any]:
    good: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "lease": 1}
    yield from (None, 5, "beat", good)
    fields: dict[str, list[Any]] = {
        "job_id": [5, None],
        "fence": NOT_FENCE,
        "lease": [*NOT_WHOLE, None, 0, -1, 7 * 86_400 * 10**6 + 1],
        "tenant": NOT_TEXT,
        "percent": [*NOT_NUMBER, -1, 101],
        "stage": [*NOT_TEXT, "s" * 201, "\x00"],
    }
    for name, values in fields.items():
        yield from (Beat(**{**good, name: bad}) for bad in values)


async def test_bad_heartbeats_among_good_ones_have_their_own_answers(bench: Bench) -> None:
    claim = await bench.make_claim()
    good = bench.jobs.beat(claim.job.id, claim.fence, progress=Progress(percent=50, stage="half"))
    bad = list(_bad_beats(claim))
    answers = await bench.jobs.heartbeat_many([*bad, good])
    assert {type(answer) for answer in answers[:-1]} == {InvalidInput}
    assert len(answers) == len(bad) + 1
    assert (await bench.reload(claim)).progress == Progress(percent=50, stage="half")


async def test_bad_settles_among_good_ones_have_their_own_answers(bench: Bench) -> None:
    claim = await bench.make_claim()
    bad: list[Any] = [None, 5, Done(), Settle(job_id=claim.job.id, fence=claim.fence, outcome=Lost())]  # type: ignore[arg-type]
    good = Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release())
    answers = await bench.jobs.settle_many([*bad, good])
    assert {type(answer) for answer in answers[:-1]} == {InvalidInput}
    assert (await bench.reload(claim)).status is JobStatus.QUEUED


async def test_a_failure_can_be_told_by_its_exception(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, ValueError("boom"))
    assert (await bench.reload(claim)).last_error == "ValueError: boom"


async def test_a_status_can_be_named_by_its_text(bench: Bench) -> None:
    job = await bench.make_job()
    text: Any = "queued"
    assert [found.id for found in (await bench.jobs.list(bench.tenant, status=text)).items] == [job.id]


@pytest.mark.parametrize("payload", [bytearray(b'{"a": 1}'), memoryview(b'{"a": 1}')])
async def test_any_kind_of_bytes_is_json_text(bench: Bench, payload: object) -> None:
    assert (await bench.make_job("noop", payload)).read() == {"a": 1}


async def test_utc_needs_no_time_zone_database(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        assert (await bench.tenants.create("acme")).time_zone == "UTC"
        async with refuses(bench, InvalidInput):
            await bench.tenants.create("other", time_zone="Europe/Berlin")
    finally:
        zoneinfo.reset_tzpath()
