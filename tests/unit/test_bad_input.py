"""Invalid input: it is rejected with a detail and a hint before the store is called.

Stale fences, unknown jobs and wrong tenants are tested together with valid ones.
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
from tests.unit.forbidden_store import Services

TOO_LARGE: dict[str, dict[str, Any]] = {
    "a payload over the limit": {"payload": b'"' + b"x" * (64 * 1024 - 1) + b'"'},
    "a payload over the limit as a value": {"payload": "x" * (64 * 1024 - 1)},
    "a payload far over the limit that is not even JSON": {"payload": b"x" * 10_000_000},
    "metadata over the limit": {"metadata": "x" * (16 * 1024 - 1)},
}


def _cases(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table.values(), ids=list(table))


async def _enqueue(services: Services, case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    await services.jobs.enqueue(services.tenant, **options)


@_cases(BAD_ORDERS)
async def test_enqueue_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await _enqueue(services, case)


@_cases(TOO_LARGE)
async def test_enqueue_rejects_oversized_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(PayloadTooLarge):
        await _enqueue(services, case)


@_cases(BAD_ORDERS)
def test_new_job_rejects_invalid_input(case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    with pytest.raises(InvalidInput):
        new_job("tenant", **options)


INVALID_ORDERS: dict[str, dict[str, Any]] = {
    "an invalid id": {"id": "job-1"},
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
    "a time before 1970": {"run_at": -1},
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
    "a creator that is not valid text": {"created_by": LONE_SURROGATE},
    "a negative depth": {"depth": -1},
    "a large depth": {"depth": 17},
    "true for a depth": {"depth": True},
}


@_cases(INVALID_ORDERS)
async def test_enqueue_many_rejects_an_invalid_order(services: Services, case: dict[str, Any]) -> None:
    valid = new_job(services.tenant, "noop")
    constructed = NewJob(**{"id": new_id(), "tenant": services.tenant, "type": "noop", **case})
    changed = msgspec.structs.replace(valid, **case)
    for invalid in constructed, changed:
        with services.refuse(InvalidInput):
            await services.jobs.enqueue_many([valid, invalid])


async def test_enqueue_many_rejects_an_oversized_payload(services: Services) -> None:
    order = NewJob(id=new_id(), tenant=services.tenant, type="noop", payload=b'"' + b"x" * (64 * 1024 - 1) + b'"')
    with services.refuse(PayloadTooLarge):
        await services.jobs.enqueue_many([order])


async def test_enqueue_many_rejects_too_many_orders(services: Services) -> None:
    order = new_job(services.tenant, "noop")
    with services.refuse(InvalidInput):
        await services.jobs.enqueue_many([order] * 10_001)


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
    "a wait that is not a number": {"wait_seconds": math.nan},
    "an empty worker id": {"worker_id": ""},
    "a long worker id": {"worker_id": "w" * 257},
    "a worker id with NUL": {"worker_id": "\x00"},
    "a worker id that is not valid text": {"worker_id": LONE_SURROGATE},
    "an empty host": {"host": ""},
    "a host that is not valid text": {"host": LONE_SURROGATE},
    "a negative pid": {"pid": -1},
    "a huge pid": {"pid": 2**63},
}


@_cases(CLAIMS)
async def test_claim_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await services.jobs.claim(**{"worker_id": "worker", "types": ["noop"], **case})


SETTLES: dict[str, Callable[[Services], Any]] = {
    "a result that is not JSON": lambda services: services.jobs.complete(services.claim, b"{"),
    "a result that JSON cannot hold": lambda services: services.jobs.complete(services.claim, object()),
    "a result nested too deep": lambda services: services.jobs.complete(services.claim, deep(201)),
    "a result that is not UTF-8": lambda services: services.jobs.complete(services.claim, b'"\xff"'),
    "a bare result that is not JSON": lambda services: _settle(services, Done(result=b"{")),
    "an empty bare result": lambda services: _settle(services, Done(result=b"")),
    "a negative snooze": lambda services: services.jobs.snooze(services.claim, -1),
    "an infinite snooze": lambda services: services.jobs.snooze(services.claim, math.inf),
    "a snooze of a century": lambda services: services.jobs.snooze(services.claim, timedelta(days=36_500)),
    "a bare negative snooze": lambda services: _settle(services, Snooze(delay=-1)),
    "a bare huge snooze": lambda services: _settle(services, Snooze(delay=10**400)),
    "a huge exit code": lambda services: services.jobs.fail(services.claim, "no", exit_code=2**63),
    "a huge negative exit code": lambda services: _settle(services, Failed(error="no", exit_code=-(2**70))),
    "a progress below 0": lambda services: _heartbeat(services, percent=-0.1),
    "a progress above 100": lambda services: _heartbeat(services, percent=100.1),
    "a progress that is not a number": lambda services: _heartbeat(services, percent=math.nan),
    "a long stage": lambda services: _heartbeat(services, stage="s" * 201),
    "a stage with NUL": lambda services: _heartbeat(services, stage="\x00"),
    "a stage that is not valid text": lambda services: _heartbeat(services, stage=LONE_SURROGATE),
    "too many settles": lambda services: services.jobs.settle_many(
        [Settle(job_id=services.claim.job.id, fence=services.claim.fence, outcome=Done())] * 10_001
    ),
    "too many heartbeats": lambda services: services.jobs.heartbeat_many(
        [AttemptHeartbeat(job_id=services.claim.job.id, fence=services.claim.fence, lease=1)] * 10_001
    ),
}


@_cases(SETTLES)
async def test_settling_and_heartbeats_reject_invalid_input(
    services: Services, case: Callable[[Services], Any]
) -> None:
    with services.refuse(InvalidInput):
        await case(services)


@pytest.mark.parametrize("outcome", [Done(result=b'"' + b"x" * (64 * 1024 - 1) + b'"'), Done(result=b"x" * 10_000_000)])
async def test_settle_rejects_an_oversized_result(services: Services, outcome: Done) -> None:
    with services.refuse(PayloadTooLarge):
        await _settle(services, outcome)


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
async def test_retry_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await services.jobs.retry(services.tenant, services.claim.job.id, **case)


@_cases(CHANGES | TAG_CHANGES)
async def test_reschedule_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await services.jobs.reschedule(services.tenant, services.claim.job.id, **case)


DEFINITIONS: dict[str, dict[str, Any]] = {
    "a bad type": {"type": "a b"},
    "priority 0": {"priority": 0},
    "priority 6": {"priority": 6},
    "no attempts": {"max_attempts": 0},
    "too many attempts": {"max_attempts": 10_001},
    "no crashes": {"crash_cap": 0},
    "too many crashes": {"crash_cap": 10_001},
    "a timeout of 0": {"timeout_seconds": 0},
    "a negative timeout": {"timeout_seconds": -1},
    "an infinite timeout": {"timeout_seconds": math.inf},
    "a timeout that is not a number": {"timeout_seconds": math.nan},
    "a negative first wait": {"backoff": Backoff(first_seconds=-1)},
    "a first wait that is not a number": {"backoff": Backoff(first_seconds=math.nan)},
    "a negative cap": {"backoff": Backoff(max_seconds=-1)},
    "an infinite cap": {"backoff": Backoff(max_seconds=math.inf)},
    "a shrinking backoff": {"backoff": Backoff(factor=0.5)},
    "an infinite factor": {"backoff": Backoff(factor=math.inf)},
    "max_running 0": {"max_running": 0},
    "a large max_running": {"max_running": 1_000_001},
    "max_running_per_key 0": {"limit_key": "{a}", "max_running_per_key": 0},
    "a large max_running_per_key": {"limit_key": "{a}", "max_running_per_key": 1_000_001},
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
async def test_define_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await services.jobs.define(Definition(**{"type": "noop", **case}))


@_cases(BAD_TENANTS)
async def test_creating_a_tenant_rejects_invalid_input(services: Services, case: dict[str, Any]) -> None:
    with services.refuse(InvalidInput):
        await services.tenants.create(**{"slug": "acme", **case})


async def _settle(services: Services, outcome: Done | Failed | Snooze) -> None:
    await services.jobs.settle(services.claim.job.id, services.claim.fence, outcome)


async def _heartbeat(services: Services, *, percent: float = 1, stage: str = "") -> None:
    await services.jobs.heartbeat(
        services.claim.job.id, services.claim.fence, progress=Progress(percent=percent, stage=stage)
    )
