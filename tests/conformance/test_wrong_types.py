"""Wrong types change nothing in a store. tests/unit/test_wrong_types.py has every case, without a store."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ingot.jobs import Claim, Done, JobNotFound, JobStatus, Progress, Release, Settle
from ingot.jobs.model import Lost
from ingot.jobs.ports import AttemptHeartbeat
from ingot.kernel.errors import InvalidInput
from tests.bad_values import NOT_FENCE, NOT_NUMBER, NOT_TEXT, NOT_WHOLE
from tests.conformance.snapshots import refuses, refuses_each
from tests.factories import Bench


async def test_a_wrong_type_changes_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    job = await bench.make_job()
    not_an_id: Any = await bench.tenants.get(bench.tenant)
    not_text: Any = b"text"
    not_a_fence: Any = 1.0
    await refuses_each(
        bench,
        InvalidInput,
        {
            "enqueue": lambda: bench.jobs.enqueue(not_an_id, "noop"),
            "cancel": lambda: bench.jobs.cancel(bench.tenant, not_text),
            "settle": lambda: bench.jobs.settle(claim.job.id, not_a_fence, Done()),
            "list": lambda: bench.jobs.list(bench.tenant, tag=not_text),
            "read events": lambda: bench.events.read(bench.tenant, after=not_text),
        },
    )
    async with refuses(bench, JobNotFound):
        await bench.jobs.cancel(bench.tenant, job.id[:-1])


TENANT_CHANGES: dict[str, list[Any]] = {
    "slug": NOT_TEXT,
    "time_zone": NOT_TEXT,
    "weight": NOT_WHOLE,
    "limits": [{}, 0, "", {"rate": 1}, [], False],
}


@pytest.mark.parametrize("name", TENANT_CHANGES)
async def test_a_tenant_change_with_a_wrong_type_is_refused(bench: Bench, name: str) -> None:
    # A change reads the tenant from the store before the new values are checked.
    change: Any = bench.tenants.change
    calls = {f"value {at}": partial(change, "default", **{name: bad}) for at, bad in enumerate(TENANT_CHANGES[name])}
    await refuses_each(bench, InvalidInput, calls)


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
        yield from (AttemptHeartbeat(**{**good, name: bad}) for bad in values)


async def test_invalid_heartbeats_do_not_affect_valid_ones_of_the_call(bench: Bench) -> None:
    claim = await bench.make_claim()
    good = bench.jobs.beat(claim.job.id, claim.fence, progress=Progress(percent=50, stage="half"))
    bad = list(_bad_beats(claim))
    answers = await bench.jobs.heartbeat_many([*bad, good])
    assert {type(answer) for answer in answers[:-1]} == {InvalidInput}
    assert len(answers) == len(bad) + 1
    assert (await bench.reload(claim)).progress == Progress(percent=50, stage="half")


async def test_wrongly_typed_settles_do_not_affect_valid_ones_of_the_call(bench: Bench) -> None:
    claim = await bench.make_claim()
    bad: list[Any] = [None, 5, Done(), Settle(job_id=claim.job.id, fence=claim.fence, outcome=Lost())]  # type: ignore[arg-type]
    good = Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release())
    answers = await bench.jobs.settle_many([*bad, good])
    assert {type(answer) for answer in answers[:-1]} == {InvalidInput}
    assert (await bench.reload(claim)).status is JobStatus.QUEUED


async def test_a_failure_can_be_an_exception(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, ValueError("boom"))
    assert (await bench.reload(claim)).last_error == "ValueError: boom"


async def test_a_status_filter_can_be_a_string(bench: Bench) -> None:
    job = await bench.make_job()
    text: Any = "queued"
    assert [found.id for found in (await bench.jobs.list(bench.tenant, status=text)).items] == [job.id]


@pytest.mark.parametrize("payload", [bytearray(b'{"a": 1}'), memoryview(b'{"a": 1}')])
async def test_json_text_can_be_any_bytes_like_object(bench: Bench, payload: object) -> None:
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
