"""Bad input: each is refused by name with a hint, and nothing is written.

Stale fences, unknown jobs and wrong tenants are tested beside what they would have done.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from ingot.identity import Limits
from ingot.jobs import (
    Backoff,
    Claim,
    Definition,
    Done,
    Failed,
    NewJob,
    PayloadTooLarge,
    Progress,
    Settle,
    Snooze,
    checks,
)
from ingot.jobs.orders import new_job
from ingot.jobs.ports import Beat
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import picture, refuses
from tests.factories import Bench

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - what is refused
TOO_FAR = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(timedelta(hours=-12)))
LONE_SURROGATE = "a\ud800b"


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


ORDERS: dict[str, dict[str, Any]] = {
    "a negative delay": {"delay": -0.001},
    "a negative timedelta": {"delay": timedelta(seconds=-1)},
    "an infinite delay": {"delay": math.inf},
    "a delay that is no number": {"delay": math.nan},
    "a delay of a century": {"delay": timedelta(days=36_500)},
    "a delay beyond all floats": {"delay": 10**400},
    "priority 0": {"priority": 0},
    "priority 6": {"priority": 6},
    "a negative priority": {"priority": -1},
    "a huge priority": {"priority": 10**30},
    "no attempts": {"max_attempts": 0},
    "negative attempts": {"max_attempts": -5},
    "too many attempts": {"max_attempts": 10_001},
    "hugely many attempts": {"max_attempts": 2**63},
    "a time without an offset": {"run_at": NAIVE},
    "a time beyond the calendar": {"run_at": TOO_FAR},
    "a time and a delay": {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
    "an empty idempotency key": {"idempotency_key": ""},
    "a long idempotency key": {"idempotency_key": "k" * 513},
    "an idempotency key with NUL": {"idempotency_key": "a\x00b"},
    "an idempotency key that is no text": {"idempotency_key": LONE_SURROGATE},
    "an empty dedupe key": {"dedupe_key": ""},
    "a long dedupe key": {"dedupe_key": "k" * 513},
    "a dedupe key with NUL": {"dedupe_key": "\x00"},
    "a dedupe key that is no text": {"dedupe_key": LONE_SURROGATE},
    "too many tags": {"tags": [f"t{n}" for n in range(33)]},
    "an empty tag": {"tags": [""]},
    "a long tag": {"tags": ["t" * 129]},
    "a tag with NUL": {"tags": ["a\x00"]},
    "a tag that is no text": {"tags": [LONE_SURROGATE]},
    "tags in one text": {"tags": "abc"},
    "an empty correlation id": {"correlation_id": ""},
    "a long trace id": {"trace_id": "t" * 513},
    "a source ref with NUL": {"source_ref": "\x00"},
    "a creator that is no text": {"created_by": LONE_SURROGATE},
    "metadata that is not JSON": {"metadata": b"{"},
    "metadata nested too deep": {"metadata": _deep(201)},
    "an empty type": {"type": ""},
    "a long type": {"type": "t" * 129},
    "a type with a space": {"type": "a b"},
    "a type with NUL": {"type": "a\x00"},
    "a type with a line end": {"type": "noop\n"},
    "a type that begins with a dot": {"type": ".a"},
    "a type in another script": {"type": "тип"},
    "a type that is no text": {"type": LONE_SURROGATE},
    "no JSON": {"payload": b""},
    "half of a JSON text": {"payload": b'{"a": 1'},
    "two JSON texts": {"payload": b"1 2"},
    "JSON with a comment": {"payload": b"1 // one"},
    "NaN in JSON": {"payload": b"NaN"},
    "a raw NUL in JSON": {"payload": b'"\x00"'},
    "a raw line end in a JSON text": {"payload": b'"a\nb"'},
    "bytes that are not UTF-8": {"payload": b'"\xff\xfe"'},
    "a key that is not UTF-8": {"payload": b'{"\xff": 1}'},
    "an escaped lone surrogate": {"payload": b'"\\ud800"'},
    "a lone surrogate": {"payload": LONE_SURROGATE},
    "a byte order mark": {"payload": b"\xef\xbb\xbf1"},
    "a number beyond all floats": {"payload": b"1e400"},
    "a whole number of 5000 digits": {"payload": b"1" * 5000},
    "JSON nested too deep": {"payload": b"[" * 201 + b"]" * 201},
    "JSON nested 30000 levels deep": {"payload": b"[" * 30_000 + b"]" * 30_000},
    "objects nested too deep": {"payload": b'{"a":' * 201 + b"1" + b"}" * 201},
    "a value nested too deep": {"payload": _deep(201)},
    "a value that JSON cannot hold": {"payload": {1, 2, object()}},
    "raw text that is not JSON": {"payload": msgspec.Raw(b"junk")},
    "raw text inside a value that is not JSON": {"payload": {"a": msgspec.Raw(b"}, {")}},
}
TOO_LARGE: dict[str, dict[str, Any]] = {
    "a payload over the limit": {"payload": b'"' + b"x" * (64 * 1024 - 1) + b'"'},
    "a payload over the limit as a value": {"payload": "x" * (64 * 1024 - 1)},
    "a payload far over the limit that is not even JSON": {"payload": b"x" * 10_000_000},
    "metadata over the limit": {"metadata": "x" * (16 * 1024 - 1)},
}


def _cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table.values(), ids=list(table))


async def _enqueue(bench: Bench, case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    await bench.jobs.enqueue(bench.tenant, **options)


@_cases(ORDERS)
async def test_a_job_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    async with refuses(bench, InvalidInput):
        await _enqueue(bench, case)


@_cases(TOO_LARGE)
async def test_a_job_that_is_too_large_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    async with refuses(bench, PayloadTooLarge):
        await _enqueue(bench, case)


@_cases(ORDERS)
def test_a_bad_order_cannot_be_made(case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    with pytest.raises(InvalidInput):
        new_job("tenant", **options)


HAND_MADE: dict[str, dict[str, Any]] = {
    "an id that is none": {"id": "job-1"},
    "a whole number for an id": {"id": 1},
    "a whole number for a tenant": {"tenant": 1},
    "a bad type": {"type": "a b"},
    "a list for a type": {"type": ["noop"]},
    "a payload that is not JSON": {"payload": b"{"},
    "a payload that is text": {"payload": "{}"},
    "a payload that is a bytearray": {"payload": bytearray(b"{}")},
    "a payload nested too deep": {"payload": b"[" * 201 + b"]" * 201},
    "priority 9": {"priority": 9},
    "true for a priority": {"priority": True},
    "a fraction for a priority": {"priority": 1.5},
    "a datetime for a time": {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
    "a time before all times": {"run_at": -1},
    "a time beyond the calendar": {"run_at": 2**63},
    "a fraction for a delay": {"delay": 0.5},
    "a negative delay": {"delay": -1},
    "a delay of a century": {"delay": 36_500 * 86_400 * 10**6},
    "no delay at all": {"delay": None},
    "no attempts": {"max_attempts": 0},
    "a text for attempts": {"max_attempts": "3"},
    "a key without a digest": {"idempotency_key": "k"},
    "a digest without a key": {"payload_digest": b"d" * 32},
    "a digest of another payload": {"idempotency_key": "k", "payload_digest": b"d" * 32},
    "a digest that is text": {"idempotency_key": "k", "payload_digest": "d" * 32},
    "an empty dedupe key": {"dedupe_key": ""},
    "a number for a dedupe key": {"dedupe_key": 5},
    "a list of tags": {"tags": ["a"]},
    "a number among tags": {"tags": ("a", 1)},
    "an empty tag": {"tags": ("",)},
    "too many tags": {"tags": tuple(f"t{n}" for n in range(33))},
    "metadata that is not JSON": {"metadata": b"{"},
    "metadata that is a value": {"metadata": {"a": 1}},
    "a number for a correlation id": {"correlation_id": 5},
    "a trace id with NUL": {"trace_id": "\x00"},
    "a source that is text": {"source": "manual"},
    "a number for a source ref": {"source_ref": 5},
    "a creator that is no text": {"created_by": LONE_SURROGATE},
    "a negative depth": {"depth": -1},
    "a large depth": {"depth": 17},
    "true for a depth": {"depth": True},
}


@_cases(HAND_MADE)
async def test_a_bad_order_cannot_get_into_a_batch(bench: Bench, case: dict[str, Any]) -> None:
    good = new_job(bench.tenant, "noop")
    by_hand = NewJob(**{"id": new_id(), "tenant": bench.tenant, "type": "noop", **case})
    changed = msgspec.structs.replace(good, **case)
    for bad in by_hand, changed:
        async with refuses(bench, InvalidInput):
            await bench.jobs.enqueue_many([good, bad])


async def test_a_payload_that_is_too_large_cannot_get_into_a_batch(bench: Bench) -> None:
    order = NewJob(id=new_id(), tenant=bench.tenant, type="noop", payload=b'"' + b"x" * (64 * 1024 - 1) + b'"')
    async with refuses(bench, PayloadTooLarge):
        await bench.jobs.enqueue_many([order])


async def test_a_good_order_made_by_hand_is_taken(bench: Bench) -> None:
    order = NewJob(
        id=new_id(),
        tenant=bench.tenant,
        type="noop",
        payload=b' {"a": 1} ',
        idempotency_key="k",
        payload_digest=checks.digest(b'{"a":1}'),
        tags=("b", "a", "b"),
        depth=16,
    )
    (enqueued,) = await bench.jobs.enqueue_many([order])
    assert (enqueued.job.id, enqueued.job.read(), enqueued.job.tags) == (order.id, {"a": 1}, ("a", "b"))
    assert enqueued.job == await bench.reload(enqueued.job)
    again = await bench.jobs.enqueue(bench.tenant, "noop", {"a": 1}, idempotency_key="k")
    assert (again.created, again.job.id) == (False, order.id)


async def test_a_batch_of_too_many_is_refused(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop")
    async with refuses(bench, InvalidInput):
        await bench.jobs.enqueue_many([order] * 10_001)


CLAIMS: dict[str, dict[str, Any]] = {
    "no types": {"types": []},
    "types in one text": {"types": "noop"},
    "too many types": {"types": [f"t{n}" for n in range(257)]},
    "a bad type": {"types": ["noop", "a b"]},
    "limit 0": {"limit": 0},
    "a negative limit": {"limit": -1},
    "a large limit": {"limit": 1001},
    "a huge limit": {"limit": 10**30},
    "a negative wait": {"wait_seconds": -1},
    "a long wait": {"wait_seconds": 61},
    "an infinite wait": {"wait_seconds": math.inf},
    "a wait that is no number": {"wait_seconds": math.nan},
    "an empty worker id": {"worker_id": ""},
    "a long worker id": {"worker_id": "w" * 257},
    "a worker id with NUL": {"worker_id": "\x00"},
    "a worker id that is no text": {"worker_id": LONE_SURROGATE},
    "an empty host": {"host": ""},
    "a host that is no text": {"host": LONE_SURROGATE},
    "a negative pid": {"pid": -1},
    "a huge pid": {"pid": 2**63},
}


@_cases(CLAIMS)
async def test_a_claim_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    await bench.make_job()
    async with refuses(bench, InvalidInput):
        await bench.jobs.claim(**{"worker_id": "worker", "types": ["noop"], **case})


SETTLES: dict[str, Callable[[Bench, Claim], Any]] = {
    "a result that is not JSON": lambda bench, claim: bench.jobs.complete(claim, b"{"),
    "a result that JSON cannot hold": lambda bench, claim: bench.jobs.complete(claim, object()),
    "a result nested too deep": lambda bench, claim: bench.jobs.complete(claim, _deep(201)),
    "a result that is not UTF-8": lambda bench, claim: bench.jobs.complete(claim, b'"\xff"'),
    "a bare result that is not JSON": lambda bench, claim: _settle(bench, claim, Done(result=b"{")),
    "an empty bare result": lambda bench, claim: _settle(bench, claim, Done(result=b"")),
    "a negative snooze": lambda bench, claim: bench.jobs.snooze(claim, -1),
    "an infinite snooze": lambda bench, claim: bench.jobs.snooze(claim, math.inf),
    "a snooze of a century": lambda bench, claim: bench.jobs.snooze(claim, timedelta(days=36_500)),
    "a bare negative snooze": lambda bench, claim: _settle(bench, claim, Snooze(delay=-1)),
    "a bare huge snooze": lambda bench, claim: _settle(bench, claim, Snooze(delay=10**400)),
    "a huge exit code": lambda bench, claim: bench.jobs.fail(claim, "no", exit_code=2**63),
    "a huge negative exit code": lambda bench, claim: _settle(bench, claim, Failed(error="no", exit_code=-(2**70))),
    "a progress below 0": lambda bench, claim: _beat(bench, claim, percent=-0.1),
    "a progress above 100": lambda bench, claim: _beat(bench, claim, percent=100.1),
    "a progress that is no number": lambda bench, claim: _beat(bench, claim, percent=math.nan),
    "a long stage": lambda bench, claim: _beat(bench, claim, stage="s" * 201),
    "a stage with NUL": lambda bench, claim: _beat(bench, claim, stage="\x00"),
    "a stage that is no text": lambda bench, claim: _beat(bench, claim, stage=LONE_SURROGATE),
    "too many settles": lambda bench, claim: bench.jobs.settle_many(
        [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())] * 10_001
    ),
    "too many heartbeats": lambda bench, claim: bench.jobs.heartbeat_many(
        [Beat(job_id=claim.job.id, fence=claim.fence, lease=1)] * 10_001
    ),
}


@_cases(SETTLES)
async def test_bad_input_about_an_attempt_is_refused(bench: Bench, case: Callable[[Bench, Claim], Any]) -> None:
    claim = await bench.make_claim()
    async with refuses(bench, InvalidInput):
        await case(bench, claim)


@pytest.mark.parametrize("outcome", [Done(result=b'"' + b"x" * (64 * 1024 - 1) + b'"'), Done(result=b"x" * 10_000_000)])
async def test_a_result_that_is_too_large_is_refused(bench: Bench, outcome: Done) -> None:
    claim = await bench.make_claim()
    async with refuses(bench, PayloadTooLarge):
        await _settle(bench, claim, outcome)


CHANGES: dict[str, dict[str, Any]] = {
    "priority 0": {"priority": 0},
    "priority 6": {"priority": 6},
    "no attempts": {"max_attempts": 0},
    "too many attempts": {"max_attempts": 10_001},
    "a time without an offset": {"run_at": NAIVE},
    "a time beyond the calendar": {"run_at": TOO_FAR},
}
TAG_CHANGES: dict[str, dict[str, Any]] = {
    "too many tags": {"tags": [f"t{n}" for n in range(33)]},
    "an empty tag": {"tags": [""]},
    "tags in one text": {"tags": "abc"},
}


@_cases(CHANGES)
async def test_a_retry_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    job = await bench.jobs.cancel(bench.tenant, (await bench.make_job()).id)
    async with refuses(bench, InvalidInput):
        await bench.jobs.retry(bench.tenant, job.id, **case)


@_cases(CHANGES | TAG_CHANGES)
async def test_a_change_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    job = await bench.make_job(tags=["a"])
    async with refuses(bench, InvalidInput):
        await bench.jobs.reschedule(bench.tenant, job.id, **case)


DEFINITIONS: dict[str, dict[str, Any]] = {
    "a bad type": {"type": "a b"},
    "priority 0": {"priority": 0},
    "priority 6": {"priority": 6},
    "no attempts": {"max_attempts": 0},
    "too many attempts": {"max_attempts": 10_001},
    "no crashes": {"crash_cap": 0},
    "too many crashes": {"crash_cap": 10_001},
    "no time": {"timeout_seconds": 0},
    "a negative timeout": {"timeout_seconds": -1},
    "an infinite timeout": {"timeout_seconds": math.inf},
    "a timeout that is no number": {"timeout_seconds": math.nan},
    "a negative first wait": {"backoff": Backoff(first_seconds=-1)},
    "a first wait that is no number": {"backoff": Backoff(first_seconds=math.nan)},
    "a negative cap": {"backoff": Backoff(max_seconds=-1)},
    "an infinite cap": {"backoff": Backoff(max_seconds=math.inf)},
    "a shrinking backoff": {"backoff": Backoff(factor=0.5)},
    "an infinite factor": {"backoff": Backoff(factor=math.inf)},
    "none may run": {"max_running": 0},
    "too many may run": {"max_running": 1_000_001},
    "none of a key may run": {"limit_key": "{a}", "max_running_per_key": 0},
    "too many of a key may run": {"limit_key": "{a}", "max_running_per_key": 1_000_001},
    "a limit per key without a key": {"max_running_per_key": 1},
    "an empty limit key": {"limit_key": ""},
    "a limit key without braces": {"limit_key": "account"},
    "a limit key with an open brace": {"limit_key": "{a}{b"},
    "a limit key with a stray brace": {"limit_key": "{a}}"},
    "a limit key that names nothing": {"limit_key": "{}"},
    "a limit key with an empty part": {"limit_key": "{a..b}"},
    "a limit key with spaces inside": {"limit_key": "{a b}"},
    "a long limit key": {"limit_key": "{a}" * 200},
    "a limit key with a zero character": {"limit_key": "{a}\x00"},
}


@_cases(DEFINITIONS)
async def test_a_definition_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.define(Definition(**{"type": "noop", **case}))


TENANTS: dict[str, dict[str, Any]] = {
    "an empty slug": {"slug": ""},
    "a long slug": {"slug": "a" * 64},
    "a slug in capitals": {"slug": "Acme"},
    "a slug that begins with a hyphen": {"slug": "-a"},
    "a slug that ends with a hyphen": {"slug": "a-"},
    "a slug with a line end": {"slug": "a\n"},
    "a slug with NUL": {"slug": "a\x00"},
    "a slug that is no text": {"slug": LONE_SURROGATE},
    "weight 0": {"weight": 0},
    "a large weight": {"weight": 1001},
    "no time zone": {"time_zone": ""},
    "a time zone that is not there": {"time_zone": "Mars/Olympus"},
    "a time zone that is a path": {"time_zone": "../../etc/passwd"},
    "a time zone that is a folder": {"time_zone": "Europe"},
    "a time zone with NUL": {"time_zone": "UTC\x00"},
    "a time zone that is no text": {"time_zone": LONE_SURROGATE},
    "a negative limit": {"limits": Limits(quota_bytes=-1)},
    "a huge limit": {"limits": Limits(quota_bytes=2**64)},
    "a limit that is no number": {"limits": Limits(rate=math.nan)},
    "an infinite limit": {"limits": Limits(query_seconds=math.inf)},
}


@_cases(TENANTS)
async def test_a_tenant_with_bad_input_is_refused(bench: Bench, case: dict[str, Any]) -> None:
    async with refuses(bench, InvalidInput):
        await bench.tenants.create(**{"slug": "acme", **case})
    async with refuses(bench, InvalidInput):
        await bench.tenants.change("default", **case)


async def test_bad_calls_among_good_ones_spoil_none_of_them(bench: Bench) -> None:
    good = [bench.make_job("good", n) for n in range(10)]
    bad = [_enqueue(bench, case) for case in ORDERS.values()]
    mixed = [call for pair in zip(good, bad, strict=False) for call in pair] + bad[len(good) :]
    answers = await asyncio.gather(*mixed, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {type(error) for error in refused} == {InvalidInput}
    assert len(refused) == len(ORDERS)
    assert all(isinstance(error, IngotError) and error.hint for error in refused)
    assert len((await picture(bench))[0]["jobs"]) == 10


async def _settle(bench: Bench, claim: Claim, outcome: Done | Failed | Snooze) -> None:
    await bench.jobs.settle(claim.job.id, claim.fence, outcome)


async def _beat(bench: Bench, claim: Claim, *, percent: float = 1, stage: str = "") -> None:
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=percent, stage=stage))
