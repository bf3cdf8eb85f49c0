"""Bad input: each is refused by name with a hint before the store is called.

Stale fences, unknown jobs and wrong tenants are tested beside what they would have done.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ingot.jobs import Backoff, Definition, Done, Failed, NewJob, PayloadTooLarge, Progress, Settle, Snooze
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import AttemptHeartbeat
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.bad_values import BAD_ORDERS, BAD_TENANTS, LONE_SURROGATE, NAIVE, TOO_FAR, deep
from tests.unit.forbidden_store import Rooms

TOO_LARGE: dict[str, dict[str, Any]] = {
    "a payload over the limit": {"payload": b'"' + b"x" * (64 * 1024 - 1) + b'"'},
    "a payload over the limit as a value": {"payload": "x" * (64 * 1024 - 1)},
    "a payload far over the limit that is not even JSON": {"payload": b"x" * 10_000_000},
    "metadata over the limit": {"metadata": "x" * (16 * 1024 - 1)},
}


def _cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table.values(), ids=list(table))


async def _enqueue(rooms: Rooms, case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    await rooms.jobs.enqueue(rooms.tenant, **options)


@_cases(BAD_ORDERS)
async def test_a_job_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await _enqueue(rooms, case)


@_cases(TOO_LARGE)
async def test_a_job_that_is_too_large_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(PayloadTooLarge):
        await _enqueue(rooms, case)


@_cases(BAD_ORDERS)
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
async def test_a_bad_order_cannot_get_into_a_batch(rooms: Rooms, case: dict[str, Any]) -> None:
    good = new_job(rooms.tenant, "noop")
    by_hand = NewJob(**{"id": new_id(), "tenant": rooms.tenant, "type": "noop", **case})
    changed = msgspec.structs.replace(good, **case)
    for bad in by_hand, changed:
        with rooms.refuse(InvalidInput):
            await rooms.jobs.enqueue_many([good, bad])


async def test_a_payload_that_is_too_large_cannot_get_into_a_batch(rooms: Rooms) -> None:
    order = NewJob(id=new_id(), tenant=rooms.tenant, type="noop", payload=b'"' + b"x" * (64 * 1024 - 1) + b'"')
    with rooms.refuse(PayloadTooLarge):
        await rooms.jobs.enqueue_many([order])


async def test_a_batch_of_too_many_is_refused(rooms: Rooms) -> None:
    order = new_job(rooms.tenant, "noop")
    with rooms.refuse(InvalidInput):
        await rooms.jobs.enqueue_many([order] * 10_001)


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
async def test_a_claim_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await rooms.jobs.claim(**{"worker_id": "worker", "types": ["noop"], **case})


SETTLES: dict[str, Callable[[Rooms], Any]] = {
    "a result that is not JSON": lambda rooms: rooms.jobs.complete(rooms.claim, b"{"),
    "a result that JSON cannot hold": lambda rooms: rooms.jobs.complete(rooms.claim, object()),
    "a result nested too deep": lambda rooms: rooms.jobs.complete(rooms.claim, deep(201)),
    "a result that is not UTF-8": lambda rooms: rooms.jobs.complete(rooms.claim, b'"\xff"'),
    "a bare result that is not JSON": lambda rooms: _settle(rooms, Done(result=b"{")),
    "an empty bare result": lambda rooms: _settle(rooms, Done(result=b"")),
    "a negative snooze": lambda rooms: rooms.jobs.snooze(rooms.claim, -1),
    "an infinite snooze": lambda rooms: rooms.jobs.snooze(rooms.claim, math.inf),
    "a snooze of a century": lambda rooms: rooms.jobs.snooze(rooms.claim, timedelta(days=36_500)),
    "a bare negative snooze": lambda rooms: _settle(rooms, Snooze(delay=-1)),
    "a bare huge snooze": lambda rooms: _settle(rooms, Snooze(delay=10**400)),
    "a huge exit code": lambda rooms: rooms.jobs.fail(rooms.claim, "no", exit_code=2**63),
    "a huge negative exit code": lambda rooms: _settle(rooms, Failed(error="no", exit_code=-(2**70))),
    "a progress below 0": lambda rooms: _beat(rooms, percent=-0.1),
    "a progress above 100": lambda rooms: _beat(rooms, percent=100.1),
    "a progress that is no number": lambda rooms: _beat(rooms, percent=math.nan),
    "a long stage": lambda rooms: _beat(rooms, stage="s" * 201),
    "a stage with NUL": lambda rooms: _beat(rooms, stage="\x00"),
    "a stage that is no text": lambda rooms: _beat(rooms, stage=LONE_SURROGATE),
    "too many settles": lambda rooms: rooms.jobs.settle_many(
        [Settle(job_id=rooms.claim.job.id, fence=rooms.claim.fence, outcome=Done())] * 10_001
    ),
    "too many heartbeats": lambda rooms: rooms.jobs.heartbeat_many(
        [AttemptHeartbeat(job_id=rooms.claim.job.id, fence=rooms.claim.fence, lease=1)] * 10_001
    ),
}


@_cases(SETTLES)
async def test_bad_input_about_an_attempt_is_refused(rooms: Rooms, case: Callable[[Rooms], Any]) -> None:
    with rooms.refuse(InvalidInput):
        await case(rooms)


@pytest.mark.parametrize("outcome", [Done(result=b'"' + b"x" * (64 * 1024 - 1) + b'"'), Done(result=b"x" * 10_000_000)])
async def test_a_result_that_is_too_large_is_refused(rooms: Rooms, outcome: Done) -> None:
    with rooms.refuse(PayloadTooLarge):
        await _settle(rooms, outcome)


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
async def test_a_retry_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await rooms.jobs.retry(rooms.tenant, rooms.claim.job.id, **case)


@_cases(CHANGES | TAG_CHANGES)
async def test_a_change_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await rooms.jobs.reschedule(rooms.tenant, rooms.claim.job.id, **case)


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
async def test_a_definition_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await rooms.jobs.define(Definition(**{"type": "noop", **case}))


@_cases(BAD_TENANTS)
async def test_a_tenant_with_bad_input_is_refused(rooms: Rooms, case: dict[str, Any]) -> None:
    with rooms.refuse(InvalidInput):
        await rooms.tenants.create(**{"slug": "acme", **case})


async def _settle(rooms: Rooms, outcome: Done | Failed | Snooze) -> None:
    await rooms.jobs.settle(rooms.claim.job.id, rooms.claim.fence, outcome)


async def _beat(rooms: Rooms, *, percent: float = 1, stage: str = "") -> None:
    await rooms.jobs.heartbeat(rooms.claim.job.id, rooms.claim.fence, progress=Progress(percent=percent, stage=stage))
